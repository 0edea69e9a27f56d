"""WebDataset shards as a source: tars in which the files of one key make one sample (`n01.jpg`, `n01.cls`).

Samples are used in the order of the shards, and of the members in them. A picture's label is its `.cls`, else the
field `label`, `cls` or `class` of its `.json`.
"""

import json
import re
import tarfile
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from lzma import LZMAError
from pathlib import Path
from typing import Any, cast

import numpy as np

from iddpm.data.frame import UnusablePictureError
from iddpm.data.listing import LISTED, LeftOut, Source, Tally, fingerprint, natural_key
from iddpm.data.names import Names, printable
from iddpm.data.progress import Tell
from iddpm.data.sources.archives.archive import PiecesReader, first_tar, tar_member
from iddpm.data.sources.archives.members import Member, Rows
from iddpm.data.sources.archives.positioned import pool_of
from iddpm.data.sources.archives.tar_index import Tar, is_tar_name, open_tars, tar_stem, unpacking
from iddpm.data.sources.sides import HELD_OUT, TRAIN, is_split, side_in
from iddpm.data.sources.state import file_state
from iddpm.data.sources.tree.entries import SUFFIXES, Tree, suffix_of
from iddpm.data.sources.tree.folder import files_below, read_whole
from iddpm.data.sources.tree.label_table import label_text, number_classes
from iddpm.data.sources.tree.labels import Labelling, label_pictures
from iddpm.data.sources.tree.roles import Role
from iddpm.data.sources.tree.tree import listed
from iddpm.runtime.errors import ConfigError, DataError

__all__ = ["is_webdataset", "webdataset"]

OWN = {"auto": ("cls", "json"), "cls": ("cls",), "json": ("json",)}  # where a sample's label is looked for
FIELDS = ("label", "cls", "class")
FIRST = ("jpg", "jpeg", "png", "webp")  # of several pictures in a sample
LARGEST_LABEL = 1 << 20  # bytes of a file that may hold a label
PEEKED = 16  # members that tell shards from other tars

_KEY = re.compile(r"((?:.*/|)[^./][^.]*)[.]([^/]*)", re.DOTALL)
_META = re.compile(r"__[^/]*__($|/)")  # WebDataset's own notes


def is_webdataset(path: Path) -> bool:
    """Whether a tar, or the first tar of a folder without loose pictures, starts with samples of WebDataset.

    That is a picture with a .cls, .json or .txt of the same key.
    """
    tar = first_tar(path)
    if tar is None:
        return False
    try:
        with unpacking(tar) as stream, tarfile.open(fileobj=cast(Any, stream), mode="r|") as archive:
            names = [header.name for header in islice(archive, PEEKED) if header.isreg()]
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error, LZMAError):
        return False
    for key, group in groupby(names, lambda name: _key(name)[0]):
        parts = {_key(name)[1]: name for name in group}
        if key and _picture_part(parts) and {"cls", "json", "txt"} & parts.keys():
            return True
    return False


def webdataset(
    path: Path, given: str, labels: str = "auto", scratch: Path | None = None, *, tell: Tell | None = None
) -> Source:
    """List the samples of WebDataset shards. Labels are read, no picture is.

    Shards that lie in folders train and val (valid, validation, test), or have these words in their names, are
    those parts.

    Args:
        path: A shard, or a folder of shards.
        given: The source as the user gave it.
        labels: "auto": those of the samples where all have one; "cls" or "json": that alone, and samples without it
            are left out; "none"; a table's path.
        scratch: The folder to unpack compressed shards into; None takes the system's.
        tell: Called with ("unpacking", bytes read, bytes in all).

    Raises:
        ConfigError: Labels that shards do not have.
        DataError: A shard is damaged or cut, no sample has a picture, or the labels asked for do not exist.
        OutputError: There is no room to unpack.
    """
    if labels in ("folders", "prefix"):
        raise ConfigError(
            f"labels={labels}: {given} holds samples, not folders", "allowed: auto, cls, json, none, or a table's path"
        )
    root, shards, beside = _shards(path)
    state = [[name, *file_state(root / name)[1:]] for name in shards]  # as they were before they are unpacked
    tars = open_tars([root / name for name in shards], [f"{given}: {name}" for name in shards], scratch, tell)
    tree, rows, found = _gather(tars, shards, beside, labels)
    if not tree.paths:
        raise DataError(f"{given}: no sample has a picture", "allowed: " + " ".join(sorted(SUFFIXES)))
    roles = _roles(shards)
    if labels == "none":
        labelling = Labelling()
    elif labels in OWN:
        labelling = _own_labels(given, tree, roles, labels, found)
    else:
        labelling = label_pictures(given, tree, roles, labels, lambda name, _: read_whole(root / name))
    asked = labels if labelling.digest is None else "table"
    listing, _, at = listed(
        tree,
        roles,
        labelling,
        given=given,
        kind="webdataset",
        settings={"labels": labels},
        fingerprint=fingerprint("webdataset", asked, labelling.digest, state),
        part="shard",
    )
    files = tuple(tar.file for tar in tars)
    return Source(listing=listing, places=Rows(rows[at]), read=PiecesReader(files), pool=pool_of(files))


def _shards(path: Path) -> tuple[Path, list[str], list[tuple[str, str | None]]]:
    """The folder, the shards in it by path, and the other files, some with the reason to pass them over."""
    if path.is_file():
        return path.parent, [path.name], []
    shards, beside = [], []
    for entry in files_below(str(path)):
        name = "/".join(entry.parts)
        if entry.reason is None and is_tar_name(name) and not entry.parts[-1].startswith("."):
            shards.append(name)
        else:
            beside.append((name, entry.reason))
    return path, shards, beside


def _gather(
    tars: Sequence[Tar], shards: Sequence[str], beside: Sequence[tuple[str, str | None]], labels: str
) -> tuple[Tree, np.ndarray, tuple[dict[str, int], np.ndarray]]:
    """The samples as a tree in which each shard is a folder; where each picture lies; the labels found by number."""
    rows, label_of, others = array("q"), array("q"), 0
    numbers: dict[str, int] = {}
    left_out = [LeftOut(printable(name), reason or "not a shard") for name, reason in beside]

    def pictures() -> Iterator[str]:
        nonlocal others
        for number, (shard, tar) in enumerate(zip(shards, tars, strict=True)):
            for path, row, label in _samples(tar, number, OWN.get(labels, ()), strict=labels != "auto"):
                if isinstance(row, str):
                    others += 1
                    left_out.extend([LeftOut(printable(f"{shard}/{path}"), row)] if len(left_out) < LISTED else [])
                    continue
                rows.extend(row)
                label_of.append(-1 if label is None else numbers.setdefault(label, len(numbers)))
                yield f"{shard}/{path}"

    paths = Names(pictures())
    table = np.array(rows, np.int64).reshape(len(paths), 3)
    tree = Tree(
        paths=paths,
        at=np.arange(len(paths)),
        folders=tuple((shard,) for shard in shards),
        folder_of=table[:, 0],
        ignored=Tally(others + len(beside), tuple(left_out[:LISTED])),
        tables={name: 0 for name, reason in beside if reason is None},
        digest="",
    )
    return tree, table, (numbers, np.array(label_of, np.int64))


def _samples(
    tar: Tar, number: int, own: Sequence[str], strict: bool
) -> Iterator[tuple[str, tuple[int, ...] | str, str | None]]:
    """The picture of each sample: its path, where it lies, its label; or a path and why it is left out."""
    members = (member for header in tar.headers() if (member := tar_member(header, number)) is not None)
    for key, group in groupby(members, lambda member: None if member.reason else _key(member.path)[0]):
        if key is None:
            yield from ((member.path, member.reason or "belongs to no sample", None) for member in group)
            continue
        parts: dict[str, Member] = {}
        for member in group:
            part = _key(member.path)[1]
            if part in parts and _is_picture(part):
                yield parts[part].path, "a later member has the same name", None
            parts[part] = member
        picture = _picture_part(parts)
        if picture is None:
            yield key, "a sample without a picture", None
        else:
            label = _label(tar, parts, own, strict)
            yield parts[picture].path, parts[picture].row, label
            others = (part for part in parts if part != picture and _is_picture(part))
            yield from ((parts[part].path, "another picture of its sample", None) for part in others)


def _key(name: str) -> tuple[str | None, str]:
    """WebDataset's key of a file, up to the first dot of its base name, and the rest in lower case."""
    found = _KEY.fullmatch(name)
    return (found[1], found[2].lower()) if found and not _META.match(name) else (None, "")


def _picture_part(parts: Mapping[str, Any]) -> str | None:
    """Which part of a sample is its picture: the plainest name, then the order of `FIRST`."""

    def rank(part: str) -> tuple[bool, int, tuple[str, str]]:
        last = part.rpartition(".")[2]
        return "." in part, FIRST.index(last) if last in FIRST else len(FIRST), natural_key(part)

    return min(filter(_is_picture, parts), key=rank, default=None)


def _is_picture(part: str) -> bool:
    return suffix_of(f"x.{part}") in SUFFIXES


def _label(tar: Tar, parts: Mapping[str, Member], own: Sequence[str], strict: bool) -> str | None:
    """The label of a sample, or None. A value that can be no label counts as none unless it was asked for."""
    for part in own:
        value = _value(tar, part, parts[part]) if part in parts else None
        if value is not None:
            try:
                return label_text(value, f"{tar.shown}/{parts[part].path}") or None
            except DataError:
                if strict:
                    raise
    return None


def _value(tar: Tar, part: str, member: Member) -> Any:
    _, offset, size = member.row
    if size > LARGEST_LABEL:
        return None
    try:
        text = tar.file.read_at(offset, size).decode("utf-8")
        data = json.loads(text) if part == "json" else {"cls": text}
    except (UnusablePictureError, ValueError, RecursionError):
        return None
    fields = FIELDS if isinstance(data, dict) else ()
    return next((data[each] for each in fields if data.get(each) is not None), None)


def _roles(shards: Sequence[str]) -> tuple[Role, ...]:
    """The part of each shard, where some are train and others are held out."""
    sides = [_side(shard) for shard in shards]
    return tuple(Role(side=side if is_split(sides) else "") for side in sides)


def _side(shard: str) -> str | None:
    *folders, name = shard.lower().split("/")
    return next((each for each in folders if each in {TRAIN, *HELD_OUT}), None) or side_in(tar_stem(name))


def _own_labels(
    given: str, tree: Tree, roles: Sequence[Role], labels: str, found: tuple[dict[str, int], np.ndarray]
) -> Labelling:
    """The labels that the samples bring."""
    numbers, label_of = found
    inside = np.array([role.side is not None for role in roles], bool)[tree.folder_of]
    missing = inside & (label_of < 0)
    count, total = int(missing.sum()), int(inside.sum())
    where = ".cls, or label, cls, class in .json" if labels == "auto" else f".{labels}"
    if labels == "auto" and count:
        return Labelling(
            notes=(
                f"no labels: {count} of {total} samples bring none ({where}); --labels cls or json leaves those out",
            )
        )
    if count == total:
        raise DataError(f"{given}: no sample has a label ({where})", "use labels none, or a table's path")
    texts = [text for text, number in numbers.items() if (label_of[inside] == number).any()]
    classes, number = number_classes(texts, given)
    new = np.array([*(number.get(text, -1) for text in numbers), -1], np.int64)
    classes = tuple(map(printable, classes))
    return Labelling(classes=classes, labels=new[label_of], left_out=((missing, f"no label ({where})"),))

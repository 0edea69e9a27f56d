"""LSUN's LMDBs as a source: encoded pictures under their keys, one LMDB for each category and split.

Given as one LMDB (`bedroom_train_lmdb`, a folder with `data.mdb`), or as a folder of several, as LSUN is unpacked:
the names say the category and whether it is `train`, `val` or `test`. LSUN's test set is one for all categories.
"""

import io
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from iddpm.data.frame import Frame, Picture, UnusablePictureError, from_file
from iddpm.data.listing import LeftOut, Listing, Source, Tally, fingerprint, natural_key
from iddpm.data.names import Names, one_line, printable, printable_names
from iddpm.data.sources.sides import HELD_OUT, TRAIN
from iddpm.data.sources.state import changed, content_state, source_failed, stamp
from iddpm.runtime.errors import ConfigError, DataError

__all__ = ["is_lsun", "lsun"]

FILE = "data.mdb"
LABELS = ("auto", "folders", "none")

_NAME = re.compile(rf"(?:(?P<category>.+)_)?(?P<split>{'|'.join((TRAIN, *HELD_OUT))})_lmdb", re.IGNORECASE)
_opened: dict[tuple[int, int], tuple[int, Any]] = {}  # by file: the process that opened it, and what it opened
_opening = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class _Part:
    """One LMDB: its folder's name ("" for the source itself), what the name says, and how many pictures it has."""

    name: str
    category: str | None
    held_out: bool
    count: int
    state: tuple[int, int, int]


@dataclass(frozen=True)
class _Reader:
    root: str
    states: Mapping[str, tuple[int, int]]  # of each part's file, as it was listed

    def __call__(self, place: str, frame: Frame) -> Picture:
        name, key = place.split("/", 1) if "" not in self.states else ("", place)
        path = os.path.join(self.root, name)
        value = _value(path, key.encode("utf-8", "surrogateescape"), self.states[name])
        if value is None:
            raise changed(os.path.join(path, FILE))
        if not value:
            raise UnusablePictureError("empty")
        return from_file(io.BytesIO(value), frame)


def is_lsun(path: Path) -> bool:
    """Whether a path is an LMDB, or a folder with LMDBs in it."""
    return (path / FILE).is_file() or any(_names(path))


def lsun(path: Path, given: str, labels: str = "auto") -> Source:
    """List one LMDB, or a folder of several. Keys are read, no picture is.

    Args:
        path: The folder.
        given: The source as the user gave it.
        labels: "folders": the category that the LMDB's name says; "none"; "auto": "folders" where there are several
            categories, else "none".

    Raises:
        DataError: Not whole LMDBs, no picture in them, or the package lmdb is missing.
        ConfigError: Other labels.
    """
    if labels not in LABELS:
        raise ConfigError(f"labels={labels}: {given} holds LMDBs", f"allowed: {', '.join(LABELS)}")
    several = not (path / FILE).is_file()
    found = [_part(path, name, given) for name in sorted(_names(path), key=natural_key)] if several else []
    parts, ignored = _chosen(found or [_part(path, "", given)])
    classes = _classes(parts, labels)
    if labels == "folders" and not classes:
        raise DataError(f"{given}: its name says no category", "name it CATEGORY_train_lmdb, or use other labels")
    if not any(part.count for part in parts):
        raise DataError(f"{given}: no picture in its LMDB", "allowed: LMDBs of encoded pictures")
    places = Names(_places(path, parts, given))
    held_out = _held_out(parts)
    listing = Listing(
        source=given,
        kind="lsun",
        names=printable_names(places),
        classes=tuple(map(printable, classes)),
        labels=_labels(parts, classes) if classes else None,
        held_out=held_out,
        split_rule=None if held_out is None else "by name: trains on _train_lmdb, holds out _val_lmdb and _test_lmdb",
        ignored=Tally(
            sum(part.count for part, _ in ignored), tuple(LeftOut(printable(part.name), why) for part, why in ignored)
        ),
        settings={"labels": labels},
        fingerprint=fingerprint("lsun", labels, [[part.name, part.count, *part.state] for part in parts]),
    )
    read = _Reader(str(path), {part.name: content_state(part.state) for part in parts})
    return Source(listing=listing, places=places, read=read, pool="either")


def _names(path: Path) -> Iterator[str]:
    """The folders directly in a folder that are LMDBs."""
    if path.is_dir():
        with os.scandir(path) as entries:
            yield from (entry.name for entry in entries if os.path.isfile(os.path.join(entry.path, FILE)))


def _part(root: Path, name: str, given: str) -> _Part:
    said = _NAME.fullmatch(name or root.resolve().name)
    category = said["category"] if said else name or root.resolve().name
    held_out = said is not None and said["split"].lower() != "train"
    with _reported(given, str(root / name)):
        state = stamp(os.stat(root / name / FILE))
        count = _environment(str(root / name)).stat()["entries"]
    return _Part(name=name, category=category, held_out=held_out, count=count, state=state)


def _chosen(parts: list[_Part]) -> tuple[list[_Part], list[tuple[_Part, str]]]:
    """The LMDBs that are used, and the others with the reason: what is held out must be of a category trained on."""
    trained = {part.category for part in parts if part.count and not part.held_out}
    trained = trained or {part.category for part in parts}
    trained = trained - {None} or trained
    used = [part for part in parts if part.category in trained]
    reason = "no training pictures of its category"
    ignored = [
        (part, reason if part.category else "of all categories, without labels") for part in parts if part not in used
    ]
    return used, ignored


def _classes(parts: list[_Part], labels: str) -> tuple[str, ...]:
    categories = {part.category for part in parts if part.category is not None and part.count}
    wanted = labels == "folders" or (labels == "auto" and len(categories) > 1)
    return tuple(sorted(categories, key=natural_key)) if wanted else ()


def _held_out(parts: list[_Part]) -> Bool[np.ndarray, "n"] | None:
    """Which pictures are held out, or None where the names do not tell both sides."""
    if len({part.held_out for part in parts if part.count}) < 2:
        return None
    return np.repeat([part.held_out for part in parts], [part.count for part in parts])


def _labels(parts: list[_Part], classes: tuple[str, ...]) -> Int64[np.ndarray, "n"]:
    number: dict[str | None, int] = {name: index for index, name in enumerate(classes)}
    return np.repeat([number.get(part.category, 0) for part in parts], [part.count for part in parts]).astype(np.int64)


def _places(root: Path, parts: list[_Part], given: str) -> Iterator[str]:
    """Folder and key of each picture, in the LMDB's order; keys that are not UTF-8 survive."""
    for part in parts:
        prefix = f"{part.name}/" if part.name else ""
        at = str(root / part.name)
        with _reported(given, at), _environment(at).begin() as transaction:
            keys = transaction.cursor().iternext(keys=True, values=False)
            yield from (prefix + key.decode("utf-8", "surrogateescape") for key in keys)


def _value(path: str, key: bytes, listed: tuple[int, int]) -> bytes | None:
    from lmdb import CorruptedError, Error, PageNotFoundError

    file = os.path.join(path, FILE)
    try:
        if content_state(stamp(os.stat(file))) != listed:
            raise changed(file)
        with _environment(path).begin() as transaction:
            return transaction.get(key)
    except (CorruptedError, PageNotFoundError) as error:
        raise UnusablePictureError(one_line(error)) from error
    except OSError as error:
        raise source_failed(error, file) from error
    except Error as error:
        raise DataError(
            f"{printable(file)}: {one_line(error)}", "once it can be read again, the same command goes on from there"
        ) from error


@contextmanager
def _reported(given: str, path: str) -> Iterator[None]:
    """Turn what LMDB says into one error of the source."""
    try:
        from lmdb import Error
    except ImportError as error:
        raise DataError(f"{given}: LSUN's files need the package lmdb", 'pip install "iddpm[data]"') from error
    try:
        yield
    except (Error, OSError) as error:
        raise DataError(
            f"{given}: {os.path.join(path, FILE)} is no whole LMDB: {one_line(error)}", "unpack or copy it again"
        ) from error


def _environment(path: str) -> Any:
    """The LMDB at a path, opened once in a process: LMDB allows no more, and none that came through a fork."""
    state = os.stat(os.path.join(path, FILE))
    at = state.st_dev, state.st_ino
    with _opening:
        owner, environment = _opened.get(at, (os.getpid(), None))
        if owner != os.getpid():
            environment = environment.close()
        if environment is None:
            _opened[at] = os.getpid(), _open(path)
        return _opened[at][1]


def _open(path: str) -> Any:
    import lmdb

    environment = lmdb.open(path, readonly=True, create=False, lock=False, readahead=False, max_readers=1024)
    size = os.path.getsize(os.path.join(path, FILE))
    needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if size < needed:  # reading beyond the end would kill the process
        environment.close()
        raise lmdb.CorruptedError(f"{size} bytes of {needed}")
    return environment

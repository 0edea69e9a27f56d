"""CIFAR-10 and CIFAR-100 as they are distributed for Python: a folder of pickled batches, or the tar of it."""

import os
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from iddpm.data.listing import Source, fingerprint
from iddpm.data.scratch import PIECE, in_scratch, unpacked
from iddpm.data.sources.arrays.arrays import Part, array_source, as_labels, as_planes, check_labels_option
from iddpm.data.sources.arrays.pickles import plain_pickle
from iddpm.data.sources.arrays.raw_files import names_in, open_plain
from iddpm.data.sources.state import file_state
from iddpm.data.sources.tree.entries import SUFFIXES
from iddpm.runtime.errors import DataError, IddpmError

__all__ = ["cifar", "is_cifar"]

PICKLE = b"\x80"


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """How one of the sets is laid out; `labels`: for each option, the labels' and their names' keys."""

    name: str
    folder: str
    train: tuple[str, ...]
    test: str
    meta: str
    labels: Mapping[str, tuple[str, str]]

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test, self.meta)


CIFAR_10 = _Kind(
    name="cifar10",
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test="test_batch",
    meta="batches.meta",
    labels={"auto": ("labels", "label_names")},
)
CIFAR_100 = _Kind(
    name="cifar100",
    folder="cifar-100-python",
    train=("train",),
    test="test",
    meta="meta",
    labels={"auto": ("fine_labels", "fine_label_names"), "coarse": ("coarse_labels", "coarse_label_names")},
)
KINDS = (CIFAR_10, CIFAR_100)


def is_cifar(path: Path) -> bool:
    """Whether a folder holds CIFAR's batches, or a sub-folder with them and no other; or a tar begins with them."""
    return bool(_found(path))


def cifar(path: Path, given: str, labels: str = "auto", scratch: Path | None = None) -> Source:
    """List CIFAR-10 or CIFAR-100; the test pictures are held out.

    Args:
        path: The folder, one that holds it, or the tar (gzipped or not), which is unpacked to scratch files.
        given: The source as the user gave it.
        labels: "auto" (of CIFAR-100 the 100 fine labels), "none", and for CIFAR-100 "coarse".
        scratch: Where to unpack to; None is where the system keeps temporary files.

    Raises:
        DataError: A batch is missing or damaged, or is no plain data.
        ConfigError: Another option for labels.
        OutputError: No room to unpack.
    """
    found = _found(path)
    if len(found) != 1:
        there = f"both {CIFAR_10.folder} and {CIFAR_100.folder}" if found else "no CIFAR-10 or CIFAR-100"
        raise DataError(f"{given}: {there} there", "name the folder of one of them")
    kind, place = found[0]
    check_labels_option(labels, given, *(each for each in kind.labels if each != "auto"))
    with _opened(kind, place, given, scratch) as files:
        missing = [name for name in kind.files if name not in files]
        if missing:
            raise DataError(f"{given}: {', '.join(missing)} missing of {kind.folder}", "get the whole set again")
        parts, classes = _parts(kind, files, given, labels, scratch)
    states = [file_state(place / name) for name in kind.files] if place.is_dir() else file_state(place)[1:]
    return array_source(
        parts,
        source=given,
        kind=kind.name,
        classes=classes,
        settings={"labels": labels},
        fingerprint=fingerprint(kind.name, labels, states),
    )


def _found(path: Path) -> list[tuple[_Kind, Path]]:
    """Which of the sets are there, and where."""
    if os.path.isfile(path):
        top = _top_of_tar(path)
        return [(kind, path) for kind in KINDS if kind.folder == top]
    here = [(kind, path) for kind in KINDS if _holds(kind, path)]
    below = [(kind, path / kind.folder) for kind in KINDS if _holds(kind, path / kind.folder)]
    return here or (below if below and _holds_nothing_else(path) else [])


def _holds(kind: _Kind, folder: Path) -> bool:
    """Whether two or more of a set's files lie in a folder, and all of them begin as pickles do, or are empty."""
    there = [folder / name for name in kind.files if os.path.isfile(folder / name)]
    return len(there) > 1 and all(_first_byte(file) in (PICKLE, b"") for file in there)


def _holds_nothing_else(folder: Path) -> bool:
    """Whether there are neither pictures nor other folders beside the sets' own."""
    others = (name for name in names_in(folder) if name not in {kind.folder for kind in KINDS} and name[0] != ".")
    return not any(os.path.splitext(name)[1].lower() in SUFFIXES or os.path.isdir(folder / name) for name in others)


def _first_byte(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(1)
    except OSError:
        return b""


def _top_of_tar(path: Path) -> str | None:
    """The folder of the first member of a tar file, or None. Little of it is read."""
    try:
        with open_plain(path) as file, tarfile.open(fileobj=file, mode="r|") as archive:
            first = archive.next()
            return None if first is None else next(iter(PurePosixPath(first.name).parts), None)
    except Exception:  # whatever it is, it is no tar: other kinds of sources are asked next
        return None


@contextmanager
def _opened(kind: _Kind, place: Path, given: str, scratch: Path | None) -> Iterator[dict[str, IO[bytes]]]:
    """The files of a set that are there, opened."""
    with ExitStack() as stack:
        if place.is_dir():
            there = [name for name in kind.files if (place / name).is_file()]
            yield {name: stack.enter_context(_readable(place / name)) for name in there}
        else:
            yield {name: stack.enter_context(file) for name, file in _unpacked(kind, place, given, scratch)}


def _readable(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", "check the permissions") from error


def _unpacked(kind: _Kind, path: Path, given: str, scratch: Path | None) -> Iterator[tuple[str, IO[bytes]]]:
    """The files of a set in a tar, each in a scratch file."""
    wanted = {f"{kind.folder}/{name}": name for name in kind.files}
    try:
        with open_plain(path) as file:
            with tarfile.open(fileobj=file, mode="r|") as archive:
                for member in archive:
                    name = wanted.get(str(PurePosixPath(member.name)))
                    stream = archive.extractfile(member) if name and member.isfile() else None
                    if name and stream is not None:
                        yield name, unpacked(stream, scratch)
            while file.read(PIECE):
                pass  # to the end, where gzip compares the checksum
    except IddpmError:
        raise
    except Exception as error:  # damaged archives raise nearly anything: zlib, EOF, tar's own, OS...
        raise DataError(f"{given}: a damaged or cut archive", "get it again") from error


def _parts(
    kind: _Kind, files: Mapping[str, IO[bytes]], given: str, labels: str, scratch: Path | None
) -> tuple[list[Part], tuple[str, ...]]:
    """The batches, one at a time in memory, and the classes' names."""
    meta = plain_pickle(files[kind.meta], f"{given}: {kind.meta}")
    labels_key, names_key = kind.labels.get(labels, kind.labels["auto"])
    classes = _class_names(meta.get(names_key), f"{given}: {names_key} in {kind.meta}")
    parts = []
    for name in (*kind.train, kind.test):
        where = f"{given}: {name}"
        pictures, told = _batch(files[name], where, labels_key, scratch)
        _check_count(where, len(pictures), meta.get("num_cases_per_batch"))
        most = len(classes) - 1
        numbers = None if labels == "none" else as_labels(f"{where}: {labels_key}", told, len(pictures), most=most)
        parts.append(Part(name=name, pictures=pictures, labels=numbers, held_out=name == kind.test))
    return parts, classes


def _batch(file: IO[bytes], where: str, labels_key: str, scratch: Path | None) -> tuple[np.ndarray, object]:
    """A batch's pictures, out of memory, and its labels as they are there."""
    batch = plain_pickle(file, where)
    return in_scratch(as_planes(f"{where}: data", batch.get("data")), scratch), batch.get(labels_key)


def _check_count(where: str, count: int, expected: Any) -> None:
    if isinstance(expected, int) and count != expected:
        raise DataError(f"{where} holds {count} pictures, not {expected}", "get the whole set again")


def _class_names(names: Any, where: str) -> tuple[str, ...]:
    if not isinstance(names, list) or not names or not all(isinstance(each, bytes | str) for each in names):
        raise DataError(f"{where} is no list of names", "get the whole set again")
    return tuple(each.decode("utf-8", "replace") if isinstance(each, bytes) else each for each in names)

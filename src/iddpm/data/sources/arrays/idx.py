"""MNIST and sets in its format (IDX files, gzipped or not): Fashion-MNIST, EMNIST, KMNIST.

A folder holds `train-images-idx3-ubyte` and `t10k-images-idx3-ubyte` (or `test-...`) with the labels beside them in
`train-labels-idx1-ubyte` and so on; a prefix such as `emnist-letters-` and a dot before `idx` are fine.
"""

import gzip
import math
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import IO

import numpy as np

from iddpm.data.listing import Source, fingerprint
from iddpm.data.scratch import unpacked
from iddpm.data.sources.arrays.arrays import Part, array_source, as_labels, check_labels_option
from iddpm.data.sources.arrays.raw_files import mapped, names_in, open_plain
from iddpm.data.sources.state import file_state
from iddpm.runtime.errors import DataError, IddpmError

__all__ = ["idx", "is_idx"]

NAME = re.compile(r"(?P<set>.*-)?(?P<side>train|t10k|test)-(?P<what>images|labels)[-.]idx[13]-ubyte(\.gz)?")
UNSIGNED_BYTES = 8
SIDEWAYS = "emnist-"  # these pictures are stored column by column


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One part of a set: its name and its files."""

    name: str
    images: Path
    labels: Path | None


def is_idx(path: Path) -> bool:
    """Whether a folder holds files with MNIST's names; or a file has such a name, or begins as its files do."""
    if not os.path.isfile(path):
        return bool(_sets(path))
    return NAME.fullmatch(path.name) is not None or _magic(path) in (b"\0\0\x08\1", b"\0\0\x08\3")


def idx(
    path: Path,
    given: str,
    labels: str = "auto",
    scratch: Path | None = None,
    classes: tuple[str, ...] | None = None,
) -> Source:
    """List a set in MNIST's format; the test pictures of a folder are held out.

    Args:
        path: The folder; or one file of pictures, used with the labels beside it and without the rest.
        given: The source as the user gave it.
        labels: "auto": the labels where there are some; or "none".
        scratch: Where to unpack to; None is where the system keeps temporary files.
        classes: The names of the labels 0, 1, ...; by default the numbers.

    Raises:
        DataError: Files are missing, damaged or cut, or do not belong together.
        ConfigError: Another option for labels.
        OutputError: No room to unpack.
    """
    check_labels_option(labels, given)
    sides, sideways = _sides(path, given)
    labels_there = [side.labels is not None for side in sides]
    labelled = labels == "auto" and any(labels_there)
    if labelled and not all(labels_there):
        lacking = sides[labels_there.index(False)].name
        raise DataError(f"{given}: no labels file beside the {lacking} pictures", "add it, or use labels none")
    parts = [_part(side, given, labelled, sideways, classes, scratch) for side in sides]
    files = [file for side in sides for file in (side.images, side.labels) if file is not None]
    notes = ("pictures stored sideways, as EMNIST's are, were set upright",) if sideways else ()
    return array_source(
        parts,
        source=given,
        kind="idx",
        classes=classes,
        settings={"labels": labelled},
        fingerprint=fingerprint("idx", labelled, classes, [file_state(file) for file in files]),
        notes=notes if labelled or labels == "none" else (*notes, "no labels: there is no labels file"),
    )


def _sets(folder: Path) -> dict[str, dict[tuple[str, str], Path]]:
    """For each set of a folder, by its prefix, the files by (train or test, images or labels); the unpacked first."""
    sets: dict[str, dict[tuple[str, str], Path]] = {}
    matches = filter(None, map(NAME.fullmatch, names_in(folder)))
    for match in sorted(matches, key=lambda each: (each[0].endswith(".gz"), each[0])):
        if os.path.isfile(folder / match[0]):
            side = "train" if match["side"] == "train" else "test"
            sets.setdefault(match["set"] or "", {}).setdefault((side, match["what"]), folder / match[0])
    return sets


def _sides(path: Path, given: str) -> tuple[list[_Side], bool]:
    """The parts of the one set that is there, and whether its pictures are stored sideways."""
    if os.path.isfile(path):
        match = NAME.fullmatch(path.name)
        side = match["side"] if match else "images"
        beside = _sets(path.parent).get(match["set"] or "", {}) if match else {}
        labels = beside.get(("train" if side == "train" else "test", "labels"))
        return [_Side(name=side, images=path, labels=labels)], path.name.startswith(SIDEWAYS)
    sets = _sets(path)
    if len(sets) != 1:
        there = f"more than one set there: {', '.join(sorted(map(repr, sets)))}" if sets else "no IDX files there"
        raise DataError(f"{given}: {there}", "move one set into a folder of its own, or name its file of pictures")
    prefix, files = next(iter(sets.items()))
    if ("train", "images") not in files:
        raise DataError(f"{given}: no {prefix}train-images-idx3-ubyte there", "add it, or name the file to use")
    sides = [
        _Side(name=side, images=files[side, "images"], labels=files.get((side, "labels")))
        for side in ("train", "test")
        if (side, "images") in files
    ]
    return sides, prefix.startswith(SIDEWAYS)


def _part(
    side: _Side, given: str, labelled: bool, sideways: bool, classes: tuple[str, ...] | None, scratch: Path | None
) -> Part:
    pictures = _array(side.images, 3, given, scratch)
    numbers = None
    if labelled and side.labels is not None:
        labels = _array(side.labels, 1, given, scratch)
        if len(labels) != len(pictures):
            raise DataError(
                f"{given}: {len(pictures)} pictures in {side.images.name}, {len(labels)} labels in {side.labels.name}",
                "get files that belong together",
            )
        most = {} if classes is None else {"most": len(classes) - 1}
        numbers = as_labels(f"{given}: {side.labels.name}", labels, len(pictures), **most)
    upright = pictures.transpose(0, 2, 1) if sideways else pictures
    return Part(name=side.name, pictures=upright, labels=numbers, held_out=side.name == "test")


def _array(path: Path, dimensions: int, given: str, scratch: Path | None) -> np.ndarray:
    """What an IDX file holds, mapped."""
    where = f"{given}: {path.name}"
    with _seekable(path, where, scratch) as file:
        head = file.read(4)
        if len(head) < 4 or head[:2] != b"\0\0":
            raise DataError(f"{where} is no IDX file, or is damaged at its start", "get it again")
        if head[2:] != bytes((UNSIGNED_BYTES, dimensions)):
            raise DataError(
                f"{where} holds {_kind(head[3])} of type {head[2]}, not {_kind(dimensions)} of unsigned bytes",
                "check that pictures and labels are not swapped",
            )
        sides = file.read(4 * dimensions)
        size = file.seek(0, 2)
        shape = struct.unpack(f">{dimensions}I", sides) if len(sides) == 4 * dimensions else ()
        expected = 4 + len(sides) + math.prod(shape)
        if not shape or size != expected:
            raise DataError(f"{where}: {size} bytes, not the {expected} that its start says", "get it again")
        if not math.prod(shape):
            raise DataError(f"{where} is empty: {list(shape)}", "give a file with pictures")
        return mapped(file, shape, offset=4 + len(sides))


@contextmanager
def _seekable(path: Path, where: str, scratch: Path | None) -> Iterator[IO[bytes] | BufferedIOBase]:
    """A file, unpacked to a scratch file if it is gzipped."""
    try:
        with open_plain(path) as file:
            if not isinstance(file, gzip.GzipFile):
                yield file
                return
            with unpacked(file, scratch) as whole:
                yield whole
    except IddpmError:
        raise
    except Exception as error:  # a damaged gzip file raises EOF, zlib's own, OS...
        raise DataError(f"{where}: a damaged or cut file", "get it again") from error


def _magic(path: Path) -> bytes:
    """The first four bytes of a file, unpacked; empty where it cannot be read."""
    try:
        with open_plain(path) as file:
            return file.read(4)
    except Exception:  # whatever it is, it is no IDX file
        return b""


def _kind(dimensions: int) -> str:
    return {1: "labels", 3: "pictures"}.get(dimensions, f"arrays of {dimensions} dimensions")

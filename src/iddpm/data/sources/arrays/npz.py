"""An npz file as a source: `arr_0` holds uint8 pictures, `arr_1` the labels. Or one array in a .npy file.

Other names that leave no doubt are taken too: one of `images`, `image`, `pictures`, `x` or `data` with one of
`labels`, `label`, `y` or `targets`; or a training part with its labels, such as `x_train` and `y_train` or
`train_images` and `train_labels`, whose parts `val`, `valid`, `validation` and `test` are held out.
"""

import struct
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from iddpm.data.listing import Source, fingerprint
from iddpm.data.scratch import PIECE, unpacked
from iddpm.data.sources.arrays.arrays import Part, array_source, as_labels, as_pictures, check_labels_option
from iddpm.data.sources.arrays.raw_files import mapped
from iddpm.data.sources.sides import HELD_OUT, TRAIN
from iddpm.data.sources.state import file_state
from iddpm.runtime.errors import DataError, IddpmError

__all__ = ["member_arrays", "npz"]

PICTURES = ("images", "image", "pictures", "x", "data")
LABELS = ("labels", "label", "y", "targets")
SPLIT = (("x_{}", "y_{}"), ("{}_images", "{}_labels"), ("{}_x", "{}_y"), ("images_{}", "labels_{}"))
CHECKED = 1 << 28  # bytes; opening a file must not take as long as reading it

_Place = tuple[str, str | None, bool]  # the array of pictures, that of their labels, whether they are held out


def npz(path: Path, given: str, labels: str = "auto", scratch: Path | None = None) -> Source:
    """List an npz or npy file; pickled objects in it are never loaded.

    Pictures are uint8: [n, h, w]; [n, h, w, c] with c one of 1, 3, 4; or [n, c, h, w] with c one of 1, 3, where the
    last side is none of 1, 3, 4. What is stored uncompressed is read where it lies, and up to 256 MB of it are checked
    against their checksum; what is compressed is unpacked first.

    Args:
        path: The file.
        given: The source as the user gave it.
        labels: "auto": labels where there are some; or "none".
        scratch: Where to unpack to; None is where the system keeps temporary files.

    Raises:
        DataError: Damaged, or its arrays have another name, type or shape.
        ConfigError: Another option for labels.
        OutputError: No room to unpack.
    """
    check_labels_option(labels, given)
    with _told(given), path.open("rb") as file:
        if _is_npy(file):
            parts, members = [Part(name="array", pictures=as_pictures(given, _npy(file)), labels=None)], []
        else:
            with zipfile.ZipFile(file) as archive:
                parts = _parts(archive, file, given, labels, scratch)
                members = [[each.filename, each.file_size, each.CRC] for each in archive.infolist()]
    labelled = all(part.labels is not None for part in parts)
    return array_source(
        parts,
        source=given,
        kind="npz",
        settings={"labels": labelled},
        fingerprint=fingerprint("npz", labelled, file_state(path)[1:], members),
    )


def member_arrays(path: Path, given: str, names: Sequence[str], scratch: Path | None) -> dict[str, np.ndarray]:
    """Some arrays of an npz file, by name, mapped; those that are not there are left out.

    Raises:
        DataError: Not a whole npz file of plain arrays.
        OutputError: No room to unpack.
    """
    with _told(given), path.open("rb") as file, zipfile.ZipFile(file) as archive:
        members = _members(archive)
        return {name: _member(archive, file, members[name], scratch) for name in names if name in members}


@contextmanager
def _told(given: str) -> Iterator[None]:
    """Turns whatever reading raises into one error."""
    try:
        yield
    except IddpmError:
        raise
    except PermissionError as error:
        raise DataError(f"{given}: {error.strerror}", "check the permissions") from error
    except Exception as error:  # damaged zips and headers raise nearly anything: zlib, struct, tokenize, Runtime...
        raise DataError(f"{given}: not a whole npz file of plain arrays", "make or copy it again") from error


def _parts(archive: zipfile.ZipFile, file: IO[bytes], given: str, labels: str, scratch: Path | None) -> list[Part]:
    members = _members(archive)
    parts = []
    for name, labels_name, held_out in _layout(given, list(members), labels):
        pictures = as_pictures(f"{given}: {name}", _member(archive, file, members[name], scratch))
        told = _member(archive, file, members[labels_name], scratch) if labels_name else None
        numbers = None if told is None else as_labels(f"{given}: {labels_name}", told, len(pictures))
        parts.append(Part(name=name, pictures=pictures, labels=numbers, held_out=held_out))
    return parts


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    return {each.filename.removesuffix(".npy"): each for each in archive.infolist()}


def _layout(given: str, names: list[str], labels: str) -> list[_Place]:
    """Which arrays hold the pictures and which their labels."""
    layouts: list[list[_Place]] = (
        [[("arr_0", "arr_1", False)]] if "arr_0" in names else [*_whole(names), *_split(names)]
    )
    there = ", ".join(names[:20]) or "none"
    if not layouts:
        raise DataError(
            f"{given}: no array arr_0, images or x_train (arrays: {there})",
            "save with numpy.savez(FILE, images, labels)",
        )
    if labels == "none":
        layouts = list({tuple(place[::2] for place in layout): layout for layout in layouts}.values())
    if len(layouts) > 1:
        raise DataError(
            f"{given}: more than one array may hold the pictures or their labels (arrays: {there})",
            "name the pictures arr_0 and their labels arr_1",
        )
    return _labelled(given, layouts[0], names, labels)


def _whole(names: list[str]) -> list[list[_Place]]:
    labels = [name for name in LABELS if name in names] or [None]
    return [[(pictures, each, False)] for pictures in PICTURES if pictures in names for each in labels]


def _split(names: list[str]) -> list[list[_Place]]:
    return [
        [(x.format(side), y.format(side), side != TRAIN) for side in (TRAIN, *HELD_OUT) if x.format(side) in names]
        for x, y in SPLIT
        if x.format("train") in names
    ]


def _labelled(given: str, layout: list[_Place], names: list[str], labels: str) -> list[_Place]:
    """The layout with the labels that are there and wanted: for all parts or for none."""
    there = [name in names for _, name, _ in layout if name is not None]
    if labels == "auto" and any(there) and not all(there):
        missing = [name for _, name, _ in layout if name not in names]
        raise DataError(f"{given}: no array {missing[0]}, while other parts have labels", "add it, or use labels none")
    wanted = labels == "auto" and any(there)
    return [(pictures, name if wanted else None, held_out) for pictures, name, held_out in layout]


def _member(archive: zipfile.ZipFile, file: IO[bytes], info: zipfile.ZipInfo, scratch: Path | None) -> np.ndarray:
    """One array of the archive: mapped where it lies, or unpacked and mapped."""
    if info.compress_type != zipfile.ZIP_STORED:
        with archive.open(info) as packed, unpacked(packed, scratch) as whole:
            return _npy(whole)
    with archive.open(info) as stored:  # which checks the local header
        while info.file_size <= CHECKED and stored.read(PIECE):
            pass  # the archive compares the checksum at the end
    file.seek(info.header_offset)
    name, extra = struct.unpack("<26xHH", file.read(30))
    return _npy(file, info.header_offset + 30 + name + extra, info.file_size)


def _is_npy(file: IO[bytes]) -> bool:
    start = file.read(len(npy.MAGIC_PREFIX))
    file.seek(0)
    return start == npy.MAGIC_PREFIX


def _npy(file: IO[bytes], start: int = 0, size: int | None = None) -> np.ndarray:
    """The array that a file holds in numpy's format from one place on, up to its end or for so many bytes."""
    end = start + size if size is not None else file.seek(0, 2)
    file.seek(start)
    shape, fortran, dtype = _header(file)
    if dtype.hasobject:
        raise ValueError("objects")
    count = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if file.tell() + count != end or end > file.seek(0, 2):
        raise ValueError("cut off")
    if not count:
        return np.empty(shape, dtype)
    return mapped(file, shape, offset=end - count, dtype=dtype, order="F" if fortran else "C")


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(file)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # headers written by Python 2 are fine
        return npy.read_array_header_1_0(file) if version == (1, 0) else npy.read_array_header_2_0(file)

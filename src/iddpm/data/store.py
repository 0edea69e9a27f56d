"""The prepared store: a folder that holds pictures of one size as raw uint8, ready to be memory-mapped.

    store.json      what it is: schema, size, channels, classes, content hash, split, provenance
    images.bin      uint8 [count, channels, size, size], without a header
    labels.npy      int64 [count], where the pictures have labels
    held_out.npy    int64, rising: the pictures that training never reads

`open_store` costs no full read: it compares the sizes of the files with what `store.json` says.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import cattrs
import numpy as np
from jaxtyping import Int64, UInt8

from iddpm.data.listing import Provenance
from iddpm.data.split import digest
from iddpm.runtime.errors import DataError
from iddpm.runtime.files import write_json

__all__ = [
    "HEADER",
    "IMAGES",
    "SCHEMA",
    "Split",
    "Store",
    "check_content",
    "content_hash",
    "is_store",
    "label_of",
    "open_store",
    "write_tables",
]

FORMAT = "iddpm store"
SCHEMA = 1
HEADER, IMAGES, LABELS, HELD_OUT = "store.json", "images.bin", "labels.npy", "held_out.npy"

Split = Literal["train", "held_out", "all"]


@dataclass(frozen=True, kw_only=True)
class _Header:
    format: str
    schema: int
    size: int
    channels: int
    count: int
    labelled: bool
    classes: tuple[str, ...]
    held_out: int
    content_hash: str
    provenance: Provenance


@dataclass(frozen=True, kw_only=True, eq=False)
class Store:
    """An opened store. `images` is mapped, not read.

    Attributes:
        path: The folder it was opened from; nothing else depends on it.
        labels: Class index of each picture, or None.
        classes: Class names; a label is an index into them. Empty without labels.
        content_hash: Stands for the pixels, labels, class names and split, wherever the folder lies.
        train: Indices of the pictures to train on, rising.
        held_out: Indices of the pictures that training never reads, rising. May be empty.
    """

    path: Path
    images: UInt8[np.ndarray, "n c h w"]
    labels: Int64[np.ndarray, "n"] | None
    classes: tuple[str, ...]
    size: int
    channels: int
    content_hash: str
    train: Int64[np.ndarray, "t"]
    held_out: Int64[np.ndarray, "v"]
    provenance: Provenance

    def __len__(self) -> int:
        """The number of pictures, held-out ones included."""
        return len(self.images)

    def indices(self, split: Split) -> Int64[np.ndarray, "k"]:
        """The pictures of one side of the split, or all of them."""
        if split == "all":
            return np.arange(len(self))
        return self.train if split == "train" else self.held_out


def is_store(path: Path | str) -> bool:
    """Whether a folder says that it is a store (it may still be damaged)."""
    return os.path.isfile(os.path.join(path, HEADER))


def open_store(path: Path | str, *, size: int | None = None, channels: int | None = None) -> Store:
    """Open a store after a check that reads no pixels.

    Args:
        path: The store's folder.
        size: The side that the caller needs, or None for any.
        channels: The channels that the caller needs, or None for any.

    Raises:
        DataError: No such folder, not a store, damaged, of another schema, size or number of channels.
    """
    path = Path(path)
    header = _read_header(path)
    _check_asked(path, header, size, channels)
    shape = (header.count, header.channels, header.size, header.size)
    _check_bytes(path / IMAGES, int(np.prod(shape)))
    held_out = _read_indices(path / HELD_OUT, header.held_out, header.count)
    labels = _read_indices(path / LABELS, header.count, len(header.classes)) if header.labelled else None
    return Store(
        path=path,
        images=np.memmap(path / IMAGES, dtype=np.uint8, mode="r", shape=shape),
        labels=labels,
        classes=header.classes,
        size=header.size,
        channels=header.channels,
        content_hash=header.content_hash,
        train=np.setdiff1d(np.arange(header.count), held_out, assume_unique=True),
        held_out=held_out,
        provenance=header.provenance,
    )


def write_tables(
    folder: Path,
    *,
    size: int,
    channels: int,
    digests: np.ndarray,
    labels: Int64[np.ndarray, "n"] | None,
    classes: tuple[str, ...],
    held_out: Int64[np.ndarray, "v"],
    provenance: Provenance,
) -> str:
    """Write all of a store but `images.bin` into a folder; the content hash comes back."""
    np.save(folder / HELD_OUT, held_out.astype(np.int64))
    if labels is not None:
        np.save(folder / LABELS, labels.astype(np.int64))
    header = _Header(
        format=FORMAT,
        schema=SCHEMA,
        size=size,
        channels=channels,
        count=len(digests),
        labelled=labels is not None,
        classes=classes,
        held_out=len(held_out),
        content_hash=content_hash((channels, size), digests, labels, classes, held_out),
        provenance=provenance,
    )
    write_json(folder / HEADER, cattrs.unstructure(header))
    return header.content_hash


def content_hash(
    shape: tuple[int, int],
    digests: np.ndarray,
    labels: np.ndarray | None,
    classes: tuple[str, ...],
    held_out: np.ndarray,
) -> str:
    """SHA-256 over (channels, size), the digests of the pictures in order, labels, class names and split."""
    parts = [json.dumps([FORMAT, SCHEMA, *shape, len(digests), list(classes), labels is not None]).encode()]
    parts += [digests.tobytes(), held_out.astype("<i8").tobytes()]
    if labels is not None:
        parts.append(labels.astype("<i8").tobytes())
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.hexdigest()


def check_content(store: Store) -> None:
    """Read every pixel and compare with the content hash.

    Raises:
        DataError: The pixels, labels or split are not those that were prepared.
    """
    digests = np.array([digest(image.tobytes()) for image in store.images], dtype="S16")
    shape = (store.channels, store.size)
    if content_hash(shape, digests, store.labels, store.classes, store.held_out) != store.content_hash:
        raise DataError(f"{store.path}: the content differs from what was prepared", "prepare it again")


def label_of(classes: tuple[str, ...], name: str) -> int:
    """The label of a class asked for by name, or by index where no class has a number for a name.

    Raises:
        DataError: No such class.
    """
    if name in classes:
        return classes.index(name)
    numbered = any(each.isdecimal() for each in classes)
    if not numbered and name.isdecimal() and int(name) < len(classes):
        return int(name)
    shown = ", ".join(classes[:20]) + (f" and {len(classes) - 20} more" if len(classes) > 20 else "")
    raise DataError(f"no class {name!r}", f"allowed: {shown}" if classes else "this data has no classes: leave it out")


def _read_header(path: Path) -> _Header:
    if not os.path.exists(path):
        raise DataError(f"{path}: no such store", "make it with: iddpm prepare SOURCE --size N --out FOLDER")
    if not is_store(path):
        raise DataError(f"{path} is not a prepared store (no {HEADER})", "make one with: iddpm prepare SOURCE")
    again = "remove it and prepare the source again"
    try:
        fields: Any = json.loads((path / HEADER).read_text(encoding="utf-8"))
        if fields["format"] != FORMAT:
            raise DataError(f"{path / HEADER} is not of a store", again)
        if fields["schema"] != SCHEMA:
            raise DataError(f"{path}: store schema {fields['schema']}, this version reads {SCHEMA}", again)
        return cattrs.structure(fields, _Header)
    except (ValueError, KeyError, TypeError, cattrs.BaseValidationError) as error:
        raise DataError(f"{path / HEADER} is damaged", again) from error
    except OSError as error:
        raise DataError(f"{path / HEADER} cannot be read: {error.strerror}", "check its permissions") from error


def _check_asked(path: Path, header: _Header, size: int | None, channels: int | None) -> None:
    for name, asked, there in (("size", size, header.size), ("channels", channels, header.channels)):
        if asked is not None and asked != there:
            raise DataError(
                f"{path}: pictures of {name} {there}, asked for {asked}",
                f"prepare the source again with --{name} {asked} into another folder",
            )


def _check_bytes(path: Path, expected: int) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", "remove it and prepare the source again") from error
    if size != expected:
        raise DataError(
            f"{path} is cut or overwritten: {size} bytes, expected {expected}",
            "remove it and prepare the source again",
        )


def _read_indices(path: Path, count: int, below: int) -> Int64[np.ndarray, "k"]:
    """An int64 array of `count` numbers in [0, below)."""
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is missing or damaged", "remove it and prepare the source again") from error
    fits = values.dtype == np.int64 and values.shape == (count,)
    if not fits or (count and (values.min() < 0 or values.max() >= below)):
        raise DataError(f"{path} does not fit the store", "remove it and prepare the source again")
    return values

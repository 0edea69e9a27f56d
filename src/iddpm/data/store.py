"""The prepared store: a folder that holds pictures of one size, ready to be used as they lie there.

    store.json         what it is: schema, size, channels, classes, content hash, split, provenance
    images-00000.bin   the pictures, in shards: see `iddpm.data.shards`
    labels.npy         int64 [count], where the pictures have labels
    held_out.npy       int64, rising: the pictures that training never reads

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
from iddpm.data.shards import ENDS, Encoding, Layout, Pictures, is_shard, open_pictures
from iddpm.runtime.errors import DataError
from iddpm.runtime.files import sha256_of, sync_file, write_json

__all__ = [
    "HEADER",
    "SCHEMA",
    "Split",
    "Store",
    "content_hash",
    "is_store",
    "is_store_file",
    "label_of",
    "open_store",
    "write_tables",
]

FORMAT = "iddpm store"
SCHEMA = 2
CONTENT = 1  # of the content hash: what it covers does not depend on how the files are laid out
HEADER, LABELS, HELD_OUT = "store.json", "labels.npy", "held_out.npy"
TABLES = (HELD_OUT, LABELS, ENDS)

Split = Literal["train", "held_out", "all"]


@dataclass(frozen=True, kw_only=True)
class _Header:
    format: str
    schema: int
    size: int
    channels: int
    count: int
    encoding: Encoding
    per_shard: int
    tables: dict[str, str]  # the SHA-256 of each file beside the shards
    labelled: bool
    classes: tuple[str, ...]
    held_out: int
    content_hash: str
    provenance: Provenance


@dataclass(frozen=True, kw_only=True, eq=False)
class Store:
    """An opened store. Its pictures are mapped, not read.

    Attributes:
        path: The folder it was opened from; nothing else depends on it.
        count: The number of pictures, held-out ones included.
        pictures: Where `read` gets them.
        layout: How they lie in files.
        labels: Class index of each picture, or None.
        classes: Class names; a label is an index into them. Empty without labels.
        content_hash: Stands for the pixels, labels, class names and split, wherever the folder lies.
        train: Indices of the pictures to train on, rising.
        held_out: Indices of the pictures that training never reads, rising. May be empty.
    """

    path: Path
    count: int
    pictures: Pictures
    layout: Layout
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
        return self.count

    @property
    def encoding(self) -> Encoding:
        """How the pictures are stored: "raw", or "webp" for losslessly encoded ones."""
        return self.layout.encoding

    @property
    def raw_bytes(self) -> int:
        """The size of all its pixels."""
        return self.count * self.channels * self.size**2

    def read(self, index: Int64[np.ndarray, "k"] | slice) -> UInt8[np.ndarray, "k c h w"]:
        """Some of the pictures, in a new array.

        Raises:
            DataError: One of them is damaged.
        """
        return self.pictures.read(np.arange(self.count)[index] if isinstance(index, slice) else index)

    def indices(self, split: Split) -> Int64[np.ndarray, "k"]:
        """The pictures of one side of the split, or all of them."""
        if split == "all":
            return np.arange(self.count)
        return self.train if split == "train" else self.held_out


def is_store_file(name: str) -> bool:
    """Whether a name is one that a store gives to its files."""
    return name in (HEADER, *TABLES) or is_shard(name)


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
    for name, expected in header.tables.items():
        _check_table(path / name, expected)
    shape = (header.channels, header.size, header.size)
    layout = Layout(shape=shape, encoding=header.encoding, per_shard=header.per_shard)
    held_out = _read_indices(path / HELD_OUT)
    labels = _read_indices(path / LABELS) if header.labelled else None
    return Store(
        path=path,
        count=header.count,
        pictures=open_pictures(path, layout, header.count),
        layout=layout,
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
    layout: Layout,
    digests: np.ndarray,
    labels: Int64[np.ndarray, "n"] | None,
    classes: tuple[str, ...],
    held_out: Int64[np.ndarray, "v"],
    provenance: Provenance,
) -> str:
    """Write all of a store but its pictures into a folder, the header last; the content hash comes back."""
    np.save(folder / HELD_OUT, held_out.astype(np.int64))
    if labels is not None:
        np.save(folder / LABELS, labels.astype(np.int64))
    tables = [name for name in TABLES if (folder / name).is_file()]
    for name in tables:
        sync_file(folder / name)
    header = _Header(
        format=FORMAT,
        schema=SCHEMA,
        size=layout.shape[1],
        channels=layout.shape[0],
        count=len(digests),
        encoding=layout.encoding,
        per_shard=layout.per_shard,
        tables={name: sha256_of(folder / name) for name in tables},
        labelled=labels is not None,
        classes=classes,
        held_out=len(held_out),
        content_hash=content_hash(layout.shape[:2], digests, labels, classes, held_out),
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
    parts = [json.dumps([FORMAT, CONTENT, *shape, len(digests), list(classes), labels is not None]).encode()]
    parts += [digests.tobytes(), held_out.astype("<i8").tobytes()]
    if labels is not None:
        parts.append(labels.astype("<i8").tobytes())
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.hexdigest()


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
        header = cattrs.structure(fields, _Header)
        if min(header.size, header.channels, header.count, header.per_shard) < 1:
            raise ValueError("a number below 1")
        return header
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


def _check_table(path: Path, expected: str) -> None:
    again = "remove it and prepare the source again"
    try:
        if sha256_of(path) != expected:
            raise DataError(f"{path} is damaged: its content is not what was written", again)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", again) from error


def _read_indices(path: Path) -> Int64[np.ndarray, "k"]:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is missing or damaged", "remove it and prepare the source again") from error

"""The pictures of a store on the disk: raw shards, mapped into memory, or losslessly encoded ones, behind one interface.

    images-00000.bin     raw: uint8 [k, channels, size, size], without a header
    images-00000.webp    encoded: k pictures one after the other, each a lossless WebP file
    ends.npy             encoded: int64 [count], where each picture ends within its shard

Every shard but the last holds the same number of pictures.
"""

import io
import mmap
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64, UInt8
from PIL import Image

from iddpm.runtime.cores import usable_cores
from iddpm.runtime.errors import DataError

__all__ = [
    "ENDS",
    "MOST_ENCODED_SIDE",
    "Encoding",
    "Layout",
    "Pictures",
    "decoded",
    "encoded",
    "is_shard",
    "open_pictures",
]

ENDS = "ends.npy"
SHARD_BYTES = 1 << 30
MOST_SHARDS = 256
MOST_ENCODED_SIDE = 16383  # pixels; WebP has no larger pictures
SUFFIX = {"raw": "bin", "webp": "webp"}
WORTH_THREADS = 1 << 18  # bytes of pixels; fewer are decoded before threads have their work

Encoding = Literal["raw", "webp"]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the pictures of a store lie in files.

    Attributes:
        shape: Channels, height and width of every picture.
        encoding: "raw", or "webp" for lossless WebP.
        per_shard: Pictures in each shard but the last.
    """

    shape: tuple[int, int, int]
    encoding: Encoding
    per_shard: int

    @staticmethod
    def of(shape: tuple[int, int, int], count: int, encoding: Encoding) -> "Layout":
        """Shards of 1 GiB of raw pixels, or larger ones where those were many: each keeps a file open."""
        per_shard = max(1, SHARD_BYTES // int(np.prod(shape)), -(-count // MOST_SHARDS))
        return Layout(shape=shape, encoding=encoding, per_shard=per_shard)

    @property
    def picture_bytes(self) -> int:
        """Raw bytes of one picture."""
        return int(np.prod(self.shape))

    def file(self, shard: int) -> str:
        """The name of a shard's file."""
        return f"images-{shard:05d}.{SUFFIX[self.encoding]}"

    def shards(self, count: int) -> list[int]:
        """How many of `count` pictures lie in each shard."""
        full, rest = divmod(count, self.per_shard)
        return [self.per_shard] * full + [rest] * (rest > 0)


def is_shard(name: str) -> bool:
    """Whether a name is one that a shard's file has, in any layout."""
    return re.fullmatch(r"images-[0-9]{5}\.(bin|webp)", name) is not None


@runtime_checkable
class Pictures(Protocol):
    """The pictures of a store, whatever their files are. Safe to use from several threads."""

    def read(self, index: Int64[np.ndarray, "k"]) -> UInt8[np.ndarray, "k c h w"]:
        """Some of the pictures, in a new array."""
        ...


def open_pictures(folder: Path, layout: Layout, count: int) -> Pictures:
    """Open the shards of a store after a check of their sizes; nothing is read.

    Raises:
        DataError: A shard is missing, cut or overwritten.
    """
    held = layout.shards(count)
    if layout.encoding == "raw":
        sizes = [number * layout.picture_bytes for number in held]
        return _Raw(layout, [_mapped(folder / layout.file(shard), size) for shard, size in enumerate(sizes)])
    ends = _read_ends(folder / ENDS)
    sizes = [int(ends[min((shard + 1) * layout.per_shard, count) - 1]) for shard in range(len(held))]
    return _Encoded(layout, [_mapped(folder / layout.file(shard), size) for shard, size in enumerate(sizes)], ends)


def encoded(pixels: UInt8[np.ndarray, "c h w"]) -> bytes:
    """A picture as lossless WebP, grey or RGB."""
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    file = io.BytesIO()
    # Nearly the smallest files in a fifth of the time that the smallest take.
    image.convert("RGB").save(file, "WEBP", lossless=True, quality=20, method=1)
    return file.getvalue()


def decoded(content: bytes | memoryview, channels: int) -> UInt8[np.ndarray, "c h w"]:
    """The picture that `encoded` was given.

    Raises:
        DataError: The bytes are damaged.
    """
    try:
        with Image.open(io.BytesIO(content), formats=("WEBP",)) as image:
            return np.asarray(image.convert("RGB")).transpose(2, 0, 1)[:channels]
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise DataError(f"a picture in the store is damaged: {error}", "prepare the source again") from error


class _Raw:
    """Raw pixels; what is asked for is announced to the system first, so that a cold disk reads all of it at once."""

    def __init__(self, layout: Layout, shards: Sequence[mmap.mmap]):
        self._layout = layout
        self._maps = shards
        self._arrays = [np.frombuffer(shard, np.uint8).reshape(-1, *layout.shape) for shard in shards]

    def read(self, index: Int64[np.ndarray, "k"]) -> UInt8[np.ndarray, "k c h w"]:
        shard, within = np.divmod(index, self._layout.per_shard)
        size = self._layout.picture_bytes
        for number, at in zip(shard.tolist(), within.tolist(), strict=True):
            _announce(self._maps[number], at * size, size)
        if len(self._arrays) == 1:
            return self._arrays[0][within]
        out = np.empty((len(index), *self._layout.shape), np.uint8)
        for number in np.unique(shard).tolist():
            rows = np.flatnonzero(shard == number)
            out[rows] = self._arrays[number][within[rows]]
        return out


class _Encoded:
    """Lossless WebP, decoded by threads (decoding releases the interpreter lock)."""

    def __init__(self, layout: Layout, shards: Sequence[mmap.mmap], ends: Int64[np.ndarray, "n"]):
        self._layout, self._maps, self._ends = layout, shards, ends

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(usable_cores(), thread_name_prefix="decoding")

    def read(self, index: Int64[np.ndarray, "k"]) -> UInt8[np.ndarray, "k c h w"]:
        pieces = [self._piece(at) for at in index.tolist()]
        for number, start, stop in pieces:
            _announce(self._maps[number], start, stop - start)
        out = np.empty((len(index), *self._layout.shape), np.uint8)

        def fill(row: int) -> None:
            number, start, stop = pieces[row]
            out[row] = decoded(self._maps[number][start:stop], self._layout.shape[0])

        if out.nbytes < WORTH_THREADS:
            for row in range(len(index)):
                fill(row)
        else:
            list(self._pool.map(fill, range(len(index))))
        return out

    def _piece(self, at: int) -> tuple[int, int, int]:
        """Shard, start and end of a picture."""
        number, within = divmod(at, self._layout.per_shard)
        return number, int(self._ends[at - 1]) if within else 0, int(self._ends[at])


def _announce(shard: mmap.mmap, start: int, length: int) -> None:
    """Tell the system that these bytes are about to be read."""
    if hasattr(mmap, "MADV_WILLNEED"):
        before = start % mmap.PAGESIZE
        shard.madvise(mmap.MADV_WILLNEED, start - before, length + before)


def _mapped(path: Path, expected: int) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            if size == expected:
                return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except OSError as error:
        cure = (
            "check its permissions" if isinstance(error, PermissionError) else "remove it and prepare the source again"
        )
        raise DataError(f"{path} cannot be read: {error.strerror}", cure) from error
    raise DataError(
        f"{path} is cut or overwritten: {size} bytes, expected {expected}", "remove it and prepare the source again"
    )


def _read_ends(path: Path) -> Int64[np.ndarray, "n"]:
    """Where each picture ends within its shard."""
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is missing or damaged", "remove it and prepare the source again") from error

"""Files that hold raw arrays: opened, and mapped. Arrays are maps of files: none is read into memory whole."""

import gzip
import os
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Literal

import numpy as np

__all__ = ["mapped", "names_in", "open_plain"]


def names_in(folder: Path) -> list[str]:
    """What lies in a folder; nothing where it cannot be seen. A list of names alone, as there may be millions."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def open_plain(path: Path) -> BufferedIOBase:
    """A file to be read once through, unpacked on the way where it is gzipped. Raises what the system does."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.GzipFile(path) if packed else path.open("rb")


def mapped(
    file: IO[bytes] | BufferedIOBase,
    shape: tuple[int, ...],
    *,
    offset: int = 0,
    dtype: np.dtype | type[np.uint8] = np.uint8,
    order: Literal["C", "F"] = "C",
) -> np.ndarray:
    """An array that lies in a file, which may be closed afterwards; at least one element."""
    return np.asarray(np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=shape, order=order))

"""Files that hold raw arrays: opened, unpacked into scratch files where they must be, and mapped.

Arrays are maps of files: none is read into memory whole.
"""

import gzip
import os
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from iddpm.data.scratch import PIECE, new_scratch
from iddpm.runtime.errors import DataError, OutputError

__all__ = ["Stream", "file_state", "in_scratch", "mapped", "names_in", "open_plain", "unpacked_file"]

ROWS = 64  # pictures copied at a time


@runtime_checkable
class Stream(Protocol):
    """What can be read once through."""

    def read(self, count: int, /) -> bytes:
        """So many bytes, or fewer at the end."""
        ...


def names_in(folder: Path) -> list[str]:
    """What lies in a folder; nothing where it cannot be seen. A list of names alone, as there may be millions."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def file_state(path: Path) -> list[object]:
    """Name, bytes and time of change of a file: enough to see that it was not touched since.

    Raises:
        DataError: It cannot be seen.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", "check the path and the permissions") from error
    return [path.name, state.st_size, state.st_mtime_ns]


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


def unpacked_file(stream: Stream, folder: Path | None) -> IO[bytes]:
    """All that a stream holds, in a scratch file. Errors of the stream come through.

    Raises:
        OutputError: There is no room for it.
    """
    file = new_scratch(folder)
    try:
        while piece := stream.read(PIECE):
            _write(file, piece)
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file


def in_scratch(array: UInt8[np.ndarray, "n ..."], folder: Path | None) -> UInt8[np.ndarray, "n ..."]:
    """A copy of an array in a scratch file, mapped; at least one element.

    Raises:
        OutputError: There is no room for it.
    """
    with new_scratch(folder) as file:
        for start in range(0, len(array), ROWS):
            _write(file, array[start : start + ROWS].tobytes())
        return mapped(file, array.shape)


def _write(file: IO[bytes], piece: bytes) -> None:
    """Written rather than stored through a map: on a full disk that is an error, where a map ends the process."""
    try:
        file.write(piece)
        file.flush()
    except OSError as error:
        raise OutputError(f"cannot unpack: {error.strerror}", "free some room, or set TMPDIR") from error

"""Room on the disk for what must be unpacked before it can be read at any place: files without a name.

Such a file goes with the process, however it ends, and is reached through the page cache, so that unpacked data
of any size costs no memory that others need.
"""

import tempfile
from pathlib import Path
from typing import IO, Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from iddpm.runtime.errors import OutputError

__all__ = ["PIECE", "Stream", "in_scratch", "new_scratch", "unpacked"]

PIECE = 1 << 20  # bytes copied at a time
ROWS = 64  # pictures copied at a time


@runtime_checkable
class Stream(Protocol):
    """What can be read once through."""

    def read(self, count: int, /) -> bytes:
        """So many bytes, or fewer at the end."""
        ...


def new_scratch(folder: Path | None) -> IO[bytes]:
    """An empty file without a name in a folder, or where the system keeps temporary files.

    Raises:
        OutputError: There is no room for one.
    """
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        raise _no_room(folder, error) from error


def unpacked(stream: Stream, folder: Path | None) -> IO[bytes]:
    """All that a stream holds, in a scratch file, from its start. Errors of the stream come through.

    Raises:
        OutputError: There is no room for it.
    """
    file = new_scratch(folder)
    try:
        while piece := stream.read(PIECE):
            _write(file, piece, folder)
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
            _write(file, array[start : start + ROWS].tobytes(), folder)
        return np.asarray(np.memmap(file, dtype=np.uint8, mode="r", shape=array.shape))


def _write(file: IO[bytes], piece: bytes, folder: Path | None) -> None:
    """Written rather than stored through a map: on a full disk that is an error, where a map ends the process."""
    try:
        file.write(piece)
        file.flush()
    except OSError as error:
        raise _no_room(folder, error) from error


def _no_room(folder: Path | None, error: OSError) -> OutputError:
    where = folder if folder is not None else tempfile.gettempdir()
    return OutputError(
        f"cannot unpack into {where}: {error.strerror or error}", "free some room there, or choose another place"
    )

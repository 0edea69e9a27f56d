"""Room on the disk for what must be unpacked before it can be read at any place: files without a name.

Such a file goes with the process, however it ends, and is reached through the page cache, so that unpacked data
of any size costs no memory that others need.
"""

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np
from jaxtyping import UInt8

from iddpm.runtime.errors import OutputError

__all__ = ["new_scratch", "scratch_array", "unpacked"]

PIECE = 1 << 20


def new_scratch(folder: Path | None) -> IO[bytes]:
    """An empty file without a name in a folder, or where the system keeps temporary files.

    Raises:
        OutputError: There is no room for one.
    """
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        raise _no_room(folder, error) from error


def unpacked(stream: IO[bytes], folder: Path | None) -> IO[bytes]:
    """All that a stream holds, in a scratch file, from its start. Errors of the stream come through.

    Raises:
        OutputError: The scratch file cannot be written.
    """
    with ExitStack() as undo:
        file = undo.enter_context(new_scratch(folder))
        while piece := stream.read(PIECE):
            try:
                file.write(piece)
            except OSError as error:
                raise _no_room(folder, error) from error
        file.flush()
        file.seek(0)
        undo.pop_all()
    return file


def scratch_array(shape: tuple[int, ...], folder: Path | None) -> UInt8[np.ndarray, "..."]:
    """A uint8 array of zeros on a scratch file, to be filled.

    Raises:
        OutputError: There is no room for it.
    """
    count = int(np.prod(shape, dtype=np.int64))
    where = folder if folder is not None else tempfile.gettempdir()
    try:
        free = shutil.disk_usage(where).free
    except OSError as error:
        raise _no_room(folder, error) from error
    if count > free:
        raise OutputError(
            f"{where}: {count} bytes are needed to unpack into, {free} are free", "free some room, or set TMPDIR"
        )
    return np.memmap(new_scratch(folder), dtype=np.uint8, mode="w+", shape=shape)


def _no_room(folder: Path | None, error: OSError) -> OutputError:
    where = folder if folder is not None else tempfile.gettempdir()
    return OutputError(f"cannot unpack into {where}: {error.strerror or error}", "free some room, or set TMPDIR")

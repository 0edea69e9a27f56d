"""Files read at any position, by several threads and processes at once."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO

from iddpm.data.frame import UnusablePictureError
from iddpm.data.listing import Pool
from iddpm.data.sources.state import changed, content_state, failed, source_failed, stamp

__all__ = ["NamedFile", "UnnamedFile", "named_file", "pool_of"]

MOST_OPEN = 64  # files a process keeps open

_CUT = "the archive ends within it"


class _Handle:
    """An open file that is closed with its last user."""

    def __init__(self, path: str):
        self.number = -1
        self.number = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


@dataclass(frozen=True)
class NamedFile:
    """A file by its path, as it was when it was listed. Opened when first read, once a process."""

    path: str
    state: tuple[int, int, int]

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.state[0]

    def read_at(self, offset: int, size: int) -> bytes:
        """So many bytes at a position.

        Raises:
            UnusablePictureError: The file ends before.
            DataError: It has changed since it was listed, or cannot be read.
        """
        if offset + size > self.size:
            raise UnusablePictureError(_CUT)
        try:
            handle = _handle(self)  # kept until all is read: two threads may open it at once, and one of the two goes
            if content_state(stamp(os.fstat(handle.number))) != content_state(self.state):
                raise changed(self.path)
        except OSError as error:
            raise source_failed(error, self.path) from error
        try:
            return _read(handle.number, offset, size)
        except OSError as error:
            raise failed(error, self.path) from error


@dataclass(frozen=True, eq=False)
class UnnamedFile:
    """A scratch file: it can be read in this process alone, and goes with its last user."""

    file: IO[bytes] = field(repr=False)

    def __del__(self) -> None:
        """Close it."""
        self.file.close()

    def read_at(self, offset: int, size: int) -> bytes:
        """So many bytes at a position.

        Raises:
            UnusablePictureError: The file ends before.
            DataError: It cannot be read.
        """
        try:
            return _read(self.file.fileno(), offset, size)
        except OSError as error:
            raise failed(error, "what was unpacked") from error


def pool_of(files: Iterable[NamedFile | UnnamedFile]) -> Pool:
    """Who may read from these files."""
    return "threads" if any(isinstance(file, UnnamedFile) for file in files) else "either"


def named_file(path: Path) -> NamedFile:
    """A file as it is now. Errors of the file system come through."""
    return NamedFile(str(path), stamp(path.stat()))


@lru_cache(MOST_OPEN)
def _handle(file: NamedFile) -> _Handle:
    return _Handle(file.path)


def _read(number: int, offset: int, size: int) -> bytes:
    """All the bytes asked for: one call of the system may give fewer."""
    pieces = []
    while size > 0:
        piece = os.pread(number, size, offset)
        if not piece:
            raise UnusablePictureError(_CUT)
        pieces.append(piece)
        offset, size = offset + len(piece), size - len(piece)
    return b"".join(pieces)

"""What lies in tars, by their headers alone. A tar that was cut is refused: what lay behind the cut is not known."""

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from iddpm.data.names import one_line
from iddpm.data.progress import Tell
from iddpm.data.scratch import unpacked
from iddpm.data.sources.archives.positioned import NamedFile, UnnamedFile, named_file
from iddpm.runtime.errors import DataError

__all__ = ["Tar", "headers", "is_tar_name", "open_tars", "tar_stem", "unpacking"]

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tbz", ".tar.xz", ".txz")
PACKED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
FOLLOWING = 1 << 20  # bytes behind the end mark that are searched for another archive


@dataclass(frozen=True, kw_only=True, eq=False)
class Tar:
    """A tar that can be read at any position.

    Attributes:
        shown: What messages call it.
        file: The file, or where it was unpacked.
        start: Its first byte there.
        end: The byte behind its last.
    """

    shown: str
    file: NamedFile | UnnamedFile
    start: int
    end: int

    def headers(self) -> Iterator[tarfile.TarInfo]:
        """The headers of its members.

        Raises:
            DataError: As for `headers`.
        """
        if isinstance(self.file, UnnamedFile):
            yield from headers(self.file.file, self.shown, self.start, self.end)
            return
        with Path(self.file.path).open("rb") as file:
            yield from headers(file, self.shown, self.start, self.end)


def is_tar_name(name: str) -> bool:
    """Whether a file of this name is a tar, compressed or not."""
    return name.lower().endswith(TAR_SUFFIXES)


def tar_stem(name: str) -> str:
    """A tar's name without its suffix."""
    suffix = max((each for each in TAR_SUFFIXES if name.lower().endswith(each)), key=len, default="")
    return name[: len(name) - len(suffix)]


def open_tars(
    paths: Sequence[Path], shown: Sequence[str], scratch: Path | None, tell: Tell | None = None
) -> tuple[Tar, ...]:
    """Make tars readable at any position; the compressed ones are unpacked, all into one scratch file.

    Args:
        paths: The tars.
        shown: What messages call each.
        scratch: The folder to unpack into; None takes the system's.
        tell: Called with ("unpacking", bytes read, bytes in all).

    Raises:
        DataError: One cannot be read or unpacked.
        OutputError: There is no room to unpack.
    """
    packed = [number for number, path in enumerate(paths) if _is_packed(path, shown[number])]
    stream = _Joined([paths[number] for number in packed], [shown[number] for number in packed], tell)
    file = UnnamedFile(unpacked(io.BufferedReader(stream), scratch)) if packed else None
    tars = []
    for number, path in enumerate(paths):
        if file is not None and number in packed:
            end = stream.ends[packed.index(number)]
            start = stream.ends[packed.index(number) - 1] if packed.index(number) else 0
            tars.append(Tar(shown=shown[number], file=file, start=start, end=end))
        else:
            named = named_file(path)
            tars.append(Tar(shown=shown[number], file=named, start=0, end=named.size))
    return tuple(tars)


def unpacking(path: Path) -> io.BufferedIOBase:
    """A tar as a stream of its bytes, unpacked where it is compressed."""
    with path.open("rb") as file:
        head = file.read(6)
    opener = next((opener for magic, opener in PACKED.items() if head.startswith(magic)), open)
    return cast(io.BufferedIOBase, opener(path, "rb"))


def headers(file: IO[bytes], shown: str, start: int, end: int) -> Iterator[tarfile.TarInfo]:
    """The headers of a tar that lies in a part of a file; none is kept.

    Raises:
        DataError: It is no tar, it is damaged or cut, or another archive was appended to it.
    """
    file.seek(start)
    position = start
    try:
        tar = tarfile.TarFile(fileobj=file, encoding="utf-8")
        while (header := tar.next()) is not None:
            vars(tar)["members"].clear()  # the library keeps them all
            position = tar.offset
            if position > end:
                raise tarfile.ReadError(f"{header.name} is cut")
            yield header
        file.seek(position)
        if end - position < tarfile.BLOCKSIZE or any(file.read(tarfile.BLOCKSIZE)):
            raise tarfile.ReadError("the mark of its end is missing")
    except (tarfile.TarError, ValueError, OSError, OverflowError) as error:
        raise DataError(
            f"{shown}: not a whole tar file: damaged or cut at byte {position - start}: {one_line(error)}",
            "make or copy it again",
        ) from error
    _check_rest(file.read(min(FOLLOWING, end - position - tarfile.BLOCKSIZE)), shown, position + tarfile.BLOCKSIZE)


def _check_rest(rest: bytes, shown: str, start: int) -> None:
    """Tars that were joined end to end would be used up to the first end mark without a word."""
    for at in range(0, len(rest), tarfile.BLOCKSIZE):
        if rest[at + 257 : at + 262] == b"ustar":
            raise DataError(
                f"{shown}: another archive follows its end, at byte {start + at}", "unpack it, and give the folder"
            )


def _is_packed(path: Path, shown: str) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(6)
    except OSError as error:
        raise DataError(f"{shown}: {error.strerror}", "check the path, and the permissions") from error
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        raise DataError(f"{shown}: compressed with zstd", "unpack it first: zstd -d")
    return head.startswith(tuple(PACKED))


class _Joined(io.RawIOBase):
    """Compressed files unpacked one after the other, as one stream; `ends` says where each one stops."""

    mode = "rb"
    name = "archives"

    def __init__(self, paths: Sequence[Path], shown: Sequence[str], tell: Tell | None):
        self.ends: list[int] = []
        self._pieces = self._unpack(paths, shown, tell)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        self._rest = self._rest or memoryview(next(self._pieces, b""))
        count = min(len(self._rest), len(buffer))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count

    def _unpack(self, paths: Sequence[Path], shown: Sequence[str], tell: Tell | None) -> Iterator[bytes]:
        sizes = [path.stat().st_size for path in paths]
        position = 0
        for number, path in enumerate(paths):
            done = sum(sizes[:number])
            for piece, consumed in _pieces(path, shown[number]):
                position += len(piece)
                if tell is not None:
                    tell("unpacking", done + consumed, sum(sizes))
                yield piece
            self.ends.append(position)


def _pieces(path: Path, shown: str) -> Iterator[tuple[bytes, int]]:
    """The pieces of an unpacked file, each with how much of the file has been read."""
    count = 0
    with path.open("rb") as raw, closing(_opener(raw)(raw, "rb")) as stream:
        try:
            while piece := stream.read(1 << 20):
                count += len(piece)
                yield piece, os.lseek(raw.fileno(), 0, os.SEEK_CUR)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise DataError(
                f"{shown}: damaged or cut: it can be unpacked to byte {count}: {error}", "make or copy it again"
            ) from error


def _opener(raw: IO[bytes]) -> Callable[..., IO[bytes]]:
    head = raw.read(6)
    raw.seek(0)
    return cast(Callable[..., IO[bytes]], next(opener for magic, opener in PACKED.items() if head.startswith(magic)))

"""What lies in a zip, from its directory alone, and how one member is unpacked.

The standard library keeps an object of about a kilobyte for each member. Here it is five whole numbers, and
members can be read by several threads and processes at once.
"""

import bz2
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from iddpm.data.frame import UnusablePictureError
from iddpm.data.sources.archives.members import Member, normal_path
from iddpm.data.sources.archives.positioned import NamedFile
from iddpm.runtime.errors import DataError

__all__ = ["WIDTH", "unpacked_member", "zip_members"]

WIDTH = 5  # of a row: offset, bytes packed, bytes, checksum, method
LARGEST = 1 << 30  # bytes of one member: more is no picture, and could be a bomb

STORED, DEFLATED, BZIP2 = 0, 8, 12
_END = struct.Struct("<4s4H2LH")  # signature, disks, entries, bytes and offset of the directory, comment
_END64_PLACE = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_ENCRYPTED, _DOS = 0x1, 0
_FULL = 0xFFFFFFFF
_MOST = (1 << 63) - 1
_COUNTED = 1 << 16  # the end record of a zip that is not of the large kind counts to here, and starts again


@dataclass(frozen=True)
class _Directory:
    """Where the directory lies, how many members it has, and how far all offsets are off."""

    start: int
    size: int
    count: int
    shift: int


def zip_members(file: IO[bytes], shown: str) -> Iterator[Member]:
    """The members of a zip in the order of its directory, folders apart.

    Raises:
        DataError: It is no whole zip.
    """
    directory = _directory(file, shown)
    file.seek(directory.start)
    count = 0
    while file.tell() < directory.start + directory.size:
        head = file.read(_ENTRY.size)
        if len(head) < _ENTRY.size or not head.startswith(b"PK\1\2"):
            raise _broken(shown, f"its directory is damaged at byte {file.tell() - len(head)}")
        fields = _ENTRY.unpack(head)
        rest = file.read(sum(fields[10:13]))
        if len(rest) < sum(fields[10:13]):
            raise _broken(shown, "its directory is cut")
        count += 1
        member = _member(fields, rest, directory.shift)
        if member is not None and max(member.row) > _MOST:
            raise _broken(shown, f"its directory is damaged at byte {file.tell() - len(rest) - len(head)}")
        if member is not None:
            yield member
    if (count - directory.count) % _COUNTED:
        raise _broken(shown, f"its directory holds {count} members, its end says {directory.count}")


def unpacked_member(file: NamedFile, row: Sequence[int]) -> bytes:
    """The bytes of a member.

    Raises:
        UnusablePictureError: It is damaged.
    """
    offset, packed, size, crc, method = row
    head = file.read_at(offset, _LOCAL.size)
    if not head.startswith(b"PK\3\4"):
        raise UnusablePictureError("the archive is damaged: no member where its directory says")
    name, extra = _LOCAL.unpack(head)[9:]
    data = file.read_at(offset + _LOCAL.size + name + extra, packed)
    try:
        if method == DEFLATED:
            data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
        elif method == BZIP2:
            data = bz2.BZ2Decompressor().decompress(data, size + 1)
    except (zlib.error, OSError, ValueError) as error:
        raise UnusablePictureError(f"the archive is damaged: {error}") from error
    if len(data) != size or zlib.crc32(data) != crc:
        raise UnusablePictureError("the archive is damaged: its checksum differs")
    return data


def _directory(file: IO[bytes], shown: str) -> _Directory:
    """Find the directory from the end of the file."""
    length = file.seek(0, 2)
    tail_start = max(0, length - _END.size - 0xFFFF)
    file.seek(tail_start)
    tail = file.read()
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < _END.size:
        raise _broken(shown, "its directory, at the end, is missing")
    _, disk, first_disk, _, count, size, offset, _ = _END.unpack_from(tail, at)
    end = tail_start + at
    far = _far_end(file, end)
    if far is not None:
        end, disk, first_disk, count, size, offset = far
    if disk or first_disk:
        raise _broken(shown, "it is one of several parts")
    shift = end - size - offset  # bytes that stand before the archive, as in a self-extracting one
    if shift < 0 or size > end:
        raise _broken(shown, "its directory does not lie where it should")
    return _Directory(end - size, size, count, shift)


def _far_end(file: IO[bytes], end: int) -> tuple[int, int, int, int, int, int] | None:
    """What the end record of a large zip says, or None where there is none."""
    if end < _END64_PLACE.size + _END64.size:
        return None
    file.seek(end - _END64_PLACE.size)
    if file.read(4) != b"PK\6\7":
        return None
    place = end - _END64_PLACE.size - _END64.size
    file.seek(place)
    signature, _, _, _, disk, first_disk, _, count, size, offset = _END64.unpack(file.read(_END64.size))
    return (place, disk, first_disk, count, size, offset) if signature == b"PK\6\6" else None


def _member(fields: tuple[Any, ...], rest: bytes, shift: int) -> Member | None:
    """One entry of the directory; None for a folder."""
    _, made_by, _, flags, method, _, _, crc, packed, size, name_size, extra_size = fields[:12]
    name = _name(rest[:name_size], made_by >> 8)
    path = normal_path(name)
    if not path or name.endswith("/"):
        return None
    size, packed, offset = _wide(rest[name_size : name_size + extra_size], size, packed, fields[16])
    link = made_by >> 8 != _DOS and stat.S_ISLNK(fields[15] >> 16)
    reason = "a link" if link else _unreadable(flags, method, size)
    return Member(path=path, row=(offset + shift, packed, size, crc, method), reason=reason)


def _unreadable(flags: int, method: int, size: int) -> str | None:
    if flags & _ENCRYPTED:
        return "encrypted"
    if method not in (STORED, DEFLATED, BZIP2):
        return f"compressed by a method that is not read here (number {method})"
    return f"{size} bytes: too large for a picture" if size > LARGEST else None


def _name(raw: bytes, system: int) -> str:
    """A member's name: UTF-8, as today's tools write it whether they say so or not, else the old code page."""
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        name = raw.decode("cp437")
    name = name.partition("\0")[0]
    return name.replace("\\", "/") if system == _DOS else name


def _wide(extra: bytes, *values: int) -> tuple[int, ...]:
    """Sizes and offset, of which those that do not fit into 32 bits stand in an extra field, in this order."""
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<2H", extra)
        if kind == 1:
            wide = iter(struct.unpack_from(f"<{min(length, len(extra) - 4) // 8}Q", extra, 4))
            return tuple(next(wide, value) if value == _FULL else value for value in values)
        extra = extra[4 + length :]
    return values


def _broken(shown: str, how: str) -> DataError:
    return DataError(f"{shown}: not a whole zip file: {how}", "make or copy it again")

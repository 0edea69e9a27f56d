"""Archives of picture files as sources: a zip, a tar, a folder of tars. Nothing is unpacked but a compressed tar."""

import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from iddpm.data.frame import Frame, Picture, UnusablePictureError, from_file
from iddpm.data.listing import Source, natural_key
from iddpm.data.names import one_line
from iddpm.data.progress import Tell
from iddpm.data.sources.archives.members import Member, Members, Rows, entries_of, indexed, normal_path
from iddpm.data.sources.archives.positioned import NamedFile, UnnamedFile, named_file, pool_of
from iddpm.data.sources.archives.tar_index import Tar, is_tar_name, open_tars, tar_stem
from iddpm.data.sources.archives.zip_index import WIDTH, unpacked_member, zip_members
from iddpm.data.sources.sides import is_split, side_in
from iddpm.data.sources.state import file_state
from iddpm.data.sources.tree.entries import SUFFIXES, Entry, suffix_of
from iddpm.data.sources.tree.folder import files_below
from iddpm.data.sources.tree.tree import tree_source
from iddpm.runtime.errors import DataError

__all__ = [
    "PiecesReader",
    "first_tar",
    "is_tar_folder",
    "tar_archive",
    "tar_folder",
    "tar_member",
    "zip_archive",
]


@dataclass(frozen=True)
class _ZipReader:
    file: NamedFile

    def __call__(self, place: Sequence[int], frame: Frame) -> Picture:
        return _picture(self.content(place), frame)

    def content(self, place: Sequence[int]) -> bytes:
        return unpacked_member(self.file, place)


@dataclass(frozen=True)
class PiecesReader:
    """Reads pictures that lie whole in one of several files: a place is (file, first byte, bytes)."""

    files: tuple[NamedFile | UnnamedFile, ...]

    def __call__(self, place: Sequence[int], frame: Frame) -> Picture:
        """The picture at a place."""
        return _picture(self.content(place), frame)

    def content(self, place: Sequence[int]) -> bytes:
        """The bytes at a place."""
        number, offset, size = place
        return self.files[number].read_at(offset, size)


def zip_archive(path: Path, given: str, labels: str = "auto") -> Source:
    """List a zip of picture files. Its members stay where they are.

    Args:
        path: The file.
        given: The source as the user gave it.
        labels: As for `tree_source`.

    Raises:
        DataError: No whole zip, no picture file in it, or the labels asked for do not exist.
    """
    try:
        file = named_file(path)
        with path.open("rb") as opened:
            members = indexed(zip_members(opened, given), WIDTH)
    except OSError as error:
        raise DataError(f"{given}: {error.strerror}", "check the path, and the permissions") from error
    return _archive(members, _ZipReader(file), given, "zip", labels, file.state)


def tar_archive(
    path: Path, given: str, labels: str = "auto", scratch: Path | None = None, *, tell: Tell | None = None
) -> Source:
    """List a tar of picture files, or of tars that each hold a class. A compressed tar is unpacked first.

    Args:
        path: The file.
        given: The source as the user gave it.
        labels: As for `tree_source`.
        scratch: The folder to unpack into; None takes the system's.
        tell: Called with ("unpacking", bytes read, bytes in all).

    Raises:
        DataError: No whole tar, no picture file in it, or the labels asked for do not exist.
        OutputError: There is no room to unpack.
    """
    state = file_state(path)[1:]  # as it was before it is unpacked
    tars = open_tars([path], [given], scratch, tell)
    members = indexed(_members(0, tars[0], ""), 3)
    return _archive(members, PiecesReader((tars[0].file,)), given, "tar", labels, state)


def tar_folder(
    root: Path, given: str, labels: str = "auto", scratch: Path | None = None, *, tell: Tell | None = None
) -> Source:
    """List a folder of tars as if each were unpacked into a folder of its name.

    Tars at the top of which one has "train" in its name, and another "val" or "test", are those parts.

    Args:
        root: The folder.
        given: The source as the user gave it.
        labels: As for `tree_source`.
        scratch: The folder to unpack into; None takes the system's.
        tell: Called with ("unpacking", bytes read, bytes in all).

    Raises:
        DataError: One is no whole tar, no picture file is there, or the labels asked for do not exist.
        OutputError: There is no room to unpack.
    """
    found = list(files_below(str(root)))
    packed = [entry.reason is None and is_tar_name(entry.parts[-1]) for entry in found]
    names = ["/".join(entry.parts) for entry, is_tar in zip(found, packed, strict=True) if is_tar]
    state = [[name, *file_state(root / name)[1:]] for name in names]
    tars = open_tars([root / name for name in names], [f"{given}: {name}" for name in names], scratch, tell)
    files: list[NamedFile | UnnamedFile] = [tar.file for tar in tars]

    def members() -> Iterator[Member]:
        for entry, is_tar in zip(found, packed, strict=True):
            if not is_tar:
                yield _beside(root, entry, files)
        for number, (tar, folder) in enumerate(zip(tars, _folders(names), strict=True)):
            yield from _members(number, tar, f"{folder}/")

    return _archive(indexed(members(), 3), PiecesReader(tuple(files)), given, "tars", labels, state)


def is_tar_folder(path: Path) -> bool:
    """Whether a folder holds tars and no picture files."""
    if not path.is_dir() or first_tar(path) is None:
        return False
    return not any(entry.reason is None and suffix_of(entry.parts[-1]) in SUFFIXES for entry in files_below(str(path)))


def first_tar(path: Path) -> Path | None:
    """A tar itself; or the first of a folder's, at its top or one folder below, unless pictures lie there too."""
    if path.is_file():
        return path if is_tar_name(path.name) else None
    found = _glance(path)
    if found is None:
        return None
    tars, folders = found
    below = map(_glance, folders) if not tars else ()
    for inner in below:
        if inner is None:
            return None
        tars = tars or inner[0]
    return min(tars, key=lambda each: natural_key(each.name), default=None)


def tar_member(header: tarfile.TarInfo, number: int = 0, prefix: str = "") -> Member | None:
    """A tar's header as a member of an archive; None for a folder."""
    path = normal_path(header.name)
    if header.isdir() or not path:
        return None
    reason = None
    if header.issym() or header.islnk():
        reason = "a link"
    elif not header.isreg():
        reason = "not a regular file"
    elif header.issparse():
        reason = "a sparse member"
    return Member(path=prefix + path, row=(number, header.offset_data, header.size), reason=reason)


def _archive(
    members: Members,
    read: _ZipReader | PiecesReader,
    given: str,
    kind: str,
    labels: str,
    state: Sequence[object],
) -> Source:
    def read_table(path: str, at: int) -> bytes:
        try:
            return read.content(members.rows[at].tolist())
        except UnusablePictureError as error:
            raise DataError(f"{given}: {one_line(path)}: {error}", "make or copy it again") from error

    return tree_source(
        entries_of(members),
        given=given,
        kind=kind,
        labels=labels,
        state=state,
        read_table=read_table,
        places=lambda _, at: Rows(members.rows[at]),
        read=read,
        pool=pool_of(read.files) if isinstance(read, PiecesReader) else "either",
    )


def _glance(folder: Path) -> tuple[list[Path], list[Path]] | None:
    """The tars and the folders in a folder; None as soon as there is a picture, or where it cannot be read."""
    tars, folders = [], []
    try:
        with os.scandir(folder) as scan:
            for entry in scan:
                if entry.name.startswith("."):
                    continue
                if suffix_of(entry.name) in SUFFIXES:
                    return None
                if is_tar_name(entry.name):
                    tars.append(Path(entry.path))
                elif entry.is_dir():
                    folders.append(Path(entry.path))
    except OSError:
        return None
    return tars, sorted(folders, key=lambda each: natural_key(each.name))


def _members(number: int, tar: Tar, prefix: str) -> Iterator[Member]:
    """The members of a tar; where it holds no picture but tars, those of each as in a folder of its name."""
    found = indexed(filter(None, (tar_member(header, number, prefix) for header in tar.headers())), 3)
    opened = not any(suffix_of(path) in SUFFIXES for path in found.paths)
    for path, row, reason in zip(found.paths, found.rows, found.reason_of, strict=True):
        member = Member(path=path, row=tuple(row.tolist()), reason=found.reasons[reason])
        if opened and member.reason is None and path.lower().endswith(".tar"):
            _, start, size = member.row
            inner = Tar(shown=f"{tar.shown}: {one_line(path)}", file=tar.file, start=start, end=start + size)
            yield from _members(number, inner, f"{tar_stem(path)}/")
        else:
            yield member


def _beside(root: Path, entry: Entry, files: list[NamedFile | UnnamedFile]) -> Member:
    """A file beside tars; it may be a table of labels, so that it is one of the files to read."""
    path = "/".join(entry.parts)
    if entry.reason is not None or suffix_of(path) in SUFFIXES:
        return Member(path=path, row=(0, 0, 0), reason=entry.reason or "beside the archives")
    files.append(named := named_file(root / path))
    return Member(path=path, row=(len(files) - 1, 0, named.size))


def _folders(names: Sequence[str]) -> list[str]:
    """The folder that stands for each tar: its name, or its part where the names at the top tell parts."""
    sides = [side_in(tar_stem(name)) if "/" not in name else None for name in names]
    told = [side for side in sides if side is not None]
    parted = is_split(told) and len(set(told)) == len(told)
    return [side if parted and side else tar_stem(name) for name, side in zip(names, sides, strict=True)]


def _picture(content: bytes, frame: Frame) -> Picture:
    if not content:
        raise UnusablePictureError("empty file")
    return from_file(io.BytesIO(content), frame)

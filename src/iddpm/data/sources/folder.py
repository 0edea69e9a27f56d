"""A folder of picture files as a source: which are used, in which order, with which labels and split."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from iddpm.data.frame import Frame, Picture, UnusablePictureError, from_file
from iddpm.data.listing import Source, natural_key
from iddpm.data.sources.entries import SUFFIXES, Entry, Parts, is_hidden_folder, suffix_of
from iddpm.data.sources.tree import tree_source
from iddpm.runtime.errors import DataError

__all__ = ["files_below", "folder", "read_whole"]


@dataclass(frozen=True)
class _Reader:
    root: str

    def __call__(self, place: str, frame: Frame) -> Picture:
        path = os.path.join(self.root, place)
        try:
            with open(path, "rb") as file:
                if not os.fstat(file.fileno()).st_size:
                    raise UnusablePictureError("empty file")
                return from_file(file, frame)
        except OSError as error:
            raise UnusablePictureError(error.strerror or str(error)) from error


def folder(root: Path, given: str, labels: str = "auto") -> Source:
    """List a folder and all below it. No picture is read.

    Args:
        root: The folder.
        given: The source as the user gave it.
        labels: As for `tree_source`.

    Raises:
        DataError: No picture file there, a folder that cannot be read, or the labels asked for do not exist.
    """
    return tree_source(
        files_below(str(root)),
        given=given,
        kind="folder",
        labels=labels,
        state=(),
        read_table=lambda path, _: read_whole(root / path),
        places=lambda paths, _: paths,
        read=_Reader(str(root)),
    )


def read_whole(path: Path) -> bytes:
    """The bytes of a small file.

    Raises:
        DataError: It cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", "check the permissions") from error


def files_below(root: str) -> Iterator[Entry]:
    """The files below a folder in natural order, one folder in memory at a time. Links are followed, no folder twice."""
    entered = {os.path.realpath(root)}
    waiting = [_inside(root, (), entered)]
    while waiting:
        entry = next(waiting[-1], None)
        if entry is None:
            waiting.pop()
        elif isinstance(entry, Entry):
            yield entry
        else:
            waiting.append(_inside(os.path.join(root, *entry), entry, entered))


def _inside(path: str, above: Parts, entered: set[str]) -> Iterator[Entry | Parts]:
    """The files of one folder, and the parts of each sub-folder that is to be entered."""
    try:
        with os.scandir(path) as scan:
            found = sorted(scan, key=lambda each: natural_key(each.name))
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}", "check the permissions") from error
    folders = {each.name: _refusal(each, entered) for each in found if _is_folder(each)}
    for each in found:
        parts = (*above, each.name)
        if each.name not in folders:
            yield _entry(each, parts)
        elif reason := folders[each.name]:
            yield Entry(parts=parts, reason=reason)
        else:
            yield parts


def _is_folder(each: os.DirEntry[str]) -> bool:
    try:
        return each.is_dir()
    except OSError:  # a link to itself
        return False


def _refusal(each: os.DirEntry[str], entered: set[str]) -> str | None:
    """Why a folder is not entered; else it counts as entered from now on."""
    if is_hidden_folder(each.name):
        return "hidden folder"
    real = os.path.realpath(each.path)
    if real in entered:
        return "link to a folder read already"
    entered.add(real)
    return None


def _entry(each: os.DirEntry[str], parts: Parts) -> Entry:
    """A file, with its size and time of change where it is a picture: enough to see that it was not touched since."""
    if each.name.startswith(".") or suffix_of(each.name) not in SUFFIXES:
        return Entry(parts=parts)
    try:
        if not each.is_file():
            return Entry(parts=parts, reason="not a regular file, or a broken link")
        state = each.stat()
    except OSError:  # gone since, or a link to itself
        return Entry(parts=parts, reason="not a regular file, or a broken link")
    return Entry(parts=parts, state=(state.st_size, state.st_mtime_ns))

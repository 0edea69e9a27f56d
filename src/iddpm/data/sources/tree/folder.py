"""A folder of picture files as a source: which are used, in which order, with which labels and split."""

import errno
import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG

import numpy as np
from jaxtyping import Int64

from iddpm.data.frame import Frame, Picture, UnusablePictureError, from_file
from iddpm.data.items import Items
from iddpm.data.listing import Source, natural_key
from iddpm.data.names import Names, printable
from iddpm.data.sources.state import changed, content_state, failed, failed_within, stamp
from iddpm.data.sources.tree.entries import SUFFIXES, Entry, Parts, is_hidden_folder, suffix_of
from iddpm.data.sources.tree.tree import tree_source
from iddpm.runtime.errors import DataError

__all__ = ["files_below", "folder", "has_pictures_near", "read_whole"]

_NO_FILE = "not a regular file, or a broken link"
_LEADS_NOWHERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM})  # of a link


@dataclass(frozen=True)
class _Reader:
    root: str

    def __call__(self, place: tuple[str, int, int], frame: Frame) -> Picture:
        path, size, time = os.path.join(self.root, place[0]), *place[1:]
        try:
            with open(path, "rb") as file:
                if content_state(stamp(os.fstat(file.fileno()))) != (size, time):
                    raise changed(path)
                if not size:
                    raise UnusablePictureError("empty file")
                return from_file(file, frame)
        except UnusablePictureError as error:
            raise failed_within(error, path) from error.__cause__
        except OSError as error:
            raise failed(error, path) from error


@dataclass(frozen=True, eq=False)
class _Files(Items[tuple[str, int, int]]):
    """Path, bytes and time of change of each picture."""

    paths: Names
    states: Int64[np.ndarray, "n 2"]

    def __len__(self) -> int:
        return len(self.paths)

    def item(self, index: int) -> tuple[str, int, int]:
        return (self.paths[index], *self.states[index].tolist())


def folder(root: Path, given: str, labels: str = "auto") -> Source:
    """List a folder and all below it. No picture is read.

    Args:
        root: The folder.
        given: The source as the user gave it.
        labels: As for `tree_source`.

    Raises:
        DataError: No picture file there, a folder that cannot be read, or the labels asked for do not exist.
    """
    states = array("q")

    def places(paths: Names, at: Int64[np.ndarray, "n"]) -> _Files:
        table = np.frombuffer(states, np.int64).reshape(-1, 2)
        return _Files(paths, table if len(at) == len(table) else table[at])

    return tree_source(
        _noted(files_below(str(root)), states),
        given=given,
        kind="folder",
        labels=labels,
        state=(),
        read_table=lambda path, _: read_whole(root / path),
        places=places,
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
        raise DataError(f"{printable(str(path))}: {error.strerror}", "check the permissions") from error


def has_pictures_near(path: Path) -> bool:
    """Whether picture files lie in a folder, or one folder below: a look that ends at the first."""
    below = []
    try:
        with os.scandir(path) as scan:
            for entry in scan:
                if entry.name.startswith("."):
                    continue
                if suffix_of(entry.name) in SUFFIXES:
                    return True
                if entry.is_dir():
                    below.append(entry.path)
        return any(suffix_of(name) in SUFFIXES and name[0] != "." for each in below for name in os.listdir(each))
    except OSError:  # reading it will say so
        return False


def _noted(entries: Iterable[Entry], states: array) -> Iterator[Entry]:
    """The entries, those of pictures with their number; bytes and time of change of each picture go to `states`."""
    for entry in entries:
        if not entry.state:
            yield entry
            continue
        yield Entry(parts=entry.parts, state=entry.state, at=len(states) // 2)
        states.extend(content_state(entry.state))


@dataclass(frozen=True)
class _Walk:
    """Where a walk starts, and the folders that it has entered, links resolved."""

    root: str
    entered: set[str] = field(default_factory=set)

    def refusal(self, path: str, is_link: bool) -> str | None:
        """Why a folder is not entered; else it counts as entered from now on."""
        if is_hidden_folder(os.path.basename(path)):
            return "hidden folder"
        real = os.path.realpath(path)
        if is_link and self._comes_to(real):
            return "link to a folder that is read elsewhere in the source"
        if real in self.entered:
            return "link to a folder read already"
        self.entered.add(real)
        return None

    def _comes_to(self, real: str) -> bool:
        """Whether a folder lies in the source itself, so that it is read under its own name."""
        above = os.path.join(self.root, "")
        return real.startswith(above) and not any(map(is_hidden_folder, real.removeprefix(above).split(os.sep)))


def files_below(root: str) -> Iterator[Entry]:
    """The files below a folder in natural order, one folder in memory at a time.

    Links are followed, no folder twice: a folder of the source goes by its own name, whatever links lead to it.
    """
    walk = _Walk(os.path.realpath(root))
    walk.entered.add(walk.root)
    waiting = [_inside(root, (), walk)]
    while waiting:
        entry = next(waiting[-1], None)
        if entry is None:
            waiting.pop()
        elif isinstance(entry, Entry):
            yield entry
        else:
            waiting.append(_inside(os.path.join(root, *entry), entry, walk))


def _inside(path: str, above: Parts, walk: _Walk) -> Iterator[Entry | Parts]:
    """The files of one folder, and the parts of each sub-folder that is to be entered."""
    names, folders = _scanned(path)
    if above and _is_store(names):
        yield Entry(parts=above, reason="a prepared store")
        return
    names.sort()
    names.sort(key=_by_number)
    real_first = sorted((name for name in names if name in folders), key=lambda name: folders[name])
    refused = {name: walk.refusal(os.path.join(path, name), folders[name]) for name in real_first}
    for name in names:
        parts = (*above, name)
        if name not in refused:
            yield _entry(os.path.join(path, name), parts)
        elif reason := refused[name]:
            yield Entry(parts=parts, reason=reason)
        else:
            yield parts


def _by_number(name: str) -> str:
    """The first half of the natural key: of millions of names, sorted before, both halves take half a gigabyte."""
    return natural_key(name)[0]


def _scanned(path: str) -> tuple[list[str], dict[str, bool]]:
    """The names in a folder; and which of them are folders, with whether it is a link that leads there."""
    names, folders = [], {}
    try:
        with os.scandir(path) as scan:
            for each in scan:
                names.append(each.name)
                if _is_folder(each):
                    folders[each.name] = each.is_symlink()
    except OSError as error:
        raise DataError(f"{printable(path)}: {error.strerror}", "check the permissions") from error
    return names, folders


def _is_folder(each: os.DirEntry[str]) -> bool:
    try:
        return each.is_dir()
    except OSError as error:
        if error.errno not in _LEADS_NOWHERE:  # the failure of a disk must not hide a folder
            raise
        return False


def _is_store(names: list[str]) -> bool:
    return "store.json" in names and any(name.startswith("images-") for name in names)


def _entry(path: str, parts: Parts) -> Entry:
    """A file, with its stamp where it is a picture."""
    if parts[-1].startswith(".") or suffix_of(parts[-1]) not in SUFFIXES:
        return Entry(parts=parts)
    try:
        state = os.stat(path)
    except OSError as error:
        if error.errno in _LEADS_NOWHERE:
            return Entry(parts=parts, reason=_NO_FILE)
        raise DataError(f"{printable(path)}: {error.strerror}", "check the path, and the permissions") from error
    if not S_ISREG(state.st_mode):
        return Entry(parts=parts, reason=_NO_FILE)
    return Entry(parts=parts, state=stamp(state))

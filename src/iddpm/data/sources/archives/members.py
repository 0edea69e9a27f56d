"""The members of an archive as the entries of a tree: in natural order, folder by folder, wherever they lie in it."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import cast

import numpy as np
from jaxtyping import Int64

from iddpm.data.items import Items
from iddpm.data.listing import natural_key
from iddpm.data.names import Names
from iddpm.data.sources.tree.entries import Entry, Parts, is_hidden_folder

__all__ = ["Member", "Members", "Rows", "entries_of", "indexed", "normal_path"]


MOST_PARTS, LONGEST = 100, 4096  # folders and name, and bytes, of a path; no tree on a disk goes beyond


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One file of an archive.

    Attributes:
        path: Its path, `/` between the parts, as `normal_path` gives it.
        row: Where it lies, in whole numbers.
        reason: Why it is left out whatever its name, or None.
    """

    path: str
    row: tuple[int, ...]
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Members:
    """The files of an archive in its own order.

    Attributes:
        paths: Their paths.
        rows: Where each lies.
        reasons: Every reason once, None first.
        reason_of: The number of each one's reason.
    """

    paths: Names
    rows: Int64[np.ndarray, "m k"]
    reasons: tuple[str | None, ...]
    reason_of: Int64[np.ndarray, "m"]


@dataclass(frozen=True, eq=False)
class Rows(Items[list[int]]):
    """The rows of a table of whole numbers as lists."""

    table: Int64[np.ndarray, "n k"]

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.table)

    def item(self, index: int) -> list[int]:
        """One row."""
        return self.table[index].tolist()


def indexed(members: Iterable[Member], width: int) -> Members:
    """Take in members one after the other; `width` whole numbers say where one lies."""
    rows, reason_of = array("q"), array("q")
    reasons: dict[str | None, int] = {None: 0}

    def paths() -> Iterator[str]:
        for member in members:
            path, reason = _within_bounds(member)
            rows.extend(member.row)
            reason_of.append(reasons.setdefault(reason, len(reasons)))
            yield path

    names = Names(paths())
    return Members(
        paths=names,
        rows=np.array(rows, np.int64).reshape(len(names), width),
        reasons=tuple(reasons),
        reason_of=np.array(reason_of, np.int64),
    )


def entries_of(members: Members) -> Iterator[Entry]:
    """The entries of the tree that the members make. A hidden folder is one entry, whatever it holds.

    Of members of one name the last counts, as it would when they are unpacked.
    """
    hidden = None
    for here, after in pairwise(chain(_in_order(members.paths), (None,))):
        path = members.paths[cast(int, here)]
        parts = tuple(path.split("/"))
        above = _hidden_folder(parts)
        if above is None:
            replaced = after is not None and members.paths[after] == path
            yield _entry(members, cast(int, here), parts, "a later member has the same name" if replaced else None)
        elif above != hidden:
            hidden = above
            yield Entry(parts=above, reason="hidden folder")


def normal_path(name: str) -> str:
    """A member's name as a path from the top: without leading `/` or `./`, without doubled slashes."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def _within_bounds(member: Member) -> tuple[str, str | None]:
    """Path and reason; of an endless path the start: each of its folders would take memory of its own."""
    path = member.path
    if path.count("/") < MOST_PARTS and len(path.encode("utf-8", "surrogateescape")) <= LONGEST:
        return path, member.reason
    return f"{path[:100]}...", f"a path of more than {MOST_PARTS} parts or {LONGEST} bytes"


def _entry(members: Members, index: int, parts: Parts, reason: str | None) -> Entry:
    reason = reason or members.reasons[members.reason_of[index]] or ("'..' in its path" if ".." in parts else None)
    return Entry(parts=parts, state=tuple(members.rows[index].tolist()), at=index, reason=reason)


def _hidden_folder(parts: Parts) -> Parts | None:
    """The topmost hidden folder above a file."""
    for depth, part in enumerate(parts[:-1], 1):
        if is_hidden_folder(part) and part != "..":
            return parts[:depth]
    return None


def _in_order(paths: Names) -> Iterator[int]:
    """Indices in natural order, one folder in memory at a time; those of one path as they lie."""
    files, folders = _by_folder(paths)
    waiting = [_inside("", files, folders, paths)]
    while waiting:
        item = next(waiting[-1], None)
        if item is None:
            waiting.pop()
        elif isinstance(item, int):
            yield item
        else:
            waiting.append(_inside(item, files, folders, paths))


def _by_folder(paths: Names) -> tuple[dict[str, array], dict[str, list[str]]]:
    """The files of each folder by index, and its sub-folders by path."""
    files: dict[str, array] = {"": array("q")}
    folders: dict[str, list[str]] = {}
    for index, path in enumerate(paths):
        folder = path.rpartition("/")[0]
        below = folder
        while below not in files:
            files[below] = array("q")
            above = below.rpartition("/")[0]
            folders.setdefault(above, []).append(below)
            below = above
        files[folder].append(index)
    return files, folders


def _inside(folder: str, files: dict[str, array], folders: dict[str, list[str]], paths: Names) -> Iterator[int | str]:
    """What lies in a folder: files by index, folders by path."""
    start = len(folder) + 1 if folder else 0
    named: list[tuple[str, int | str]] = [(paths[index][start:], index) for index in files[folder]]
    named += [(path[start:], path) for path in folders.get(folder, ())]
    named.sort(key=lambda each: natural_key(each[0]))
    return (item for _, item in named)

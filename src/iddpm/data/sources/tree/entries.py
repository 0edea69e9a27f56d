"""The files of a tree, whatever holds it: which of them are pictures, and why the others are not used.

Entries come in natural order, folder by folder. Of millions of pictures are kept their names in one block and a few
whole numbers each; what is said of a folder (its side of the split, its class) is said once for all that lie in it.
"""

import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from iddpm.data.listing import LISTED, LeftOut, Tally
from iddpm.data.names import Names, printable

__all__ = [
    "SUFFIXES",
    "Entry",
    "Parts",
    "Tree",
    "gather",
    "is_hidden_folder",
    "suffix_of",
]

SUFFIXES = frozenset(
    {
        ".bmp",
        ".gif",
        ".jfif",
        ".jpe",
        ".jpeg",
        ".jpg",
        ".pbm",
        ".pgm",
        ".png",
        ".pnm",
        ".ppm",
        ".tif",
        ".tiff",
        ".webp",
    }
)
_HINTS = ("dataset.json", "metadata.csv", "metadata.jsonl")  # files that other tools keep labels in

Parts = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One file of a tree.

    Attributes:
        parts: The folders above it, then its name.
        state: Whole numbers that change when the file does.
        at: Where the source finds it.
        reason: Why it is left out whatever its name, or None.
    """

    parts: Parts
    state: tuple[int, ...] = ()
    at: int = 0
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Tree:
    """The picture files of a tree, in its order.

    Attributes:
        paths: Their paths from the top, `/` between the parts.
        at: Where the source finds each.
        folders: Every folder that holds some, as parts.
        folder_of: The number of each one's folder.
        ignored: The files that are no pictures.
        tables: Where files lie that may hold labels, by their paths.
        digest: Stands for the names and states of the pictures: other files may come and go.
    """

    paths: Names
    at: Int64[np.ndarray, "n"]
    folders: tuple[Parts, ...]
    folder_of: Int64[np.ndarray, "n"]
    ignored: Tally
    tables: dict[str, int]
    digest: str


def gather(entries: Iterable[Entry], table: str) -> Tree:
    """Take the entries of a tree, in their order, one after the other.

    Args:
        entries: All the files.
        table: The name or path of a file with labels that may be among them.
    """
    at, folder_of = array("q"), array("q")
    folders: dict[Parts, int] = {}
    tables: dict[str, int] = {}
    digest = hashlib.sha256()
    ignored: list[LeftOut] = []
    others = 0

    def pictures() -> Iterator[str]:
        nonlocal others
        for entry in entries:
            path, name = "/".join(entry.parts), entry.parts[-1]
            reason = entry.reason or _no_picture(name)
            if reason is None:
                digest.update(repr((path, entry.state)).encode())
                at.append(entry.at)
                folder_of.append(folders.setdefault(entry.parts[:-1], len(folders)))
                yield path
                continue
            others += 1
            if others <= LISTED:
                ignored.append(LeftOut(printable(path), reason))
            if entry.reason is None and (name in _HINTS or table in (name, path)):
                tables[path] = entry.at

    paths = Names(pictures())
    return Tree(
        paths=paths,
        at=np.array(at, np.int64),
        folders=tuple(folders),
        folder_of=np.array(folder_of, np.int64),
        ignored=Tally(others, tuple(ignored)),
        tables=tables,
        digest=digest.hexdigest(),
    )


def is_hidden_folder(name: str) -> bool:
    """Whether nothing below a folder of this name is looked at."""
    return name.startswith(".") or name == "__MACOSX"


def suffix_of(name: str) -> str:
    """The suffix of a file's name, in lower case, with its dot."""
    return os.path.splitext(name)[1].lower()


def _no_picture(name: str) -> str | None:
    """Why a file of this name is not taken for a picture, or None."""
    if name.startswith("."):
        return "hidden file"
    suffix = suffix_of(name)
    if suffix not in SUFFIXES:
        return f"not a picture file ({printable(suffix)})" if suffix else "not a picture file (no suffix)"
    return None

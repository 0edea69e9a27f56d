"""Which row of a table of labels means which picture: by the path, else by a name that only one of them has."""

import hashlib
import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from iddpm.data.names import Names, one_line
from iddpm.data.sources.tree.entries import SUFFIXES, suffix_of
from iddpm.data.sources.tree.label_table import LabelTable
from iddpm.runtime.errors import DataError

__all__ = ["match"]

_Key = Callable[[str], str]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Matches:
    """What tables say of pictures.

    Attributes:
        texts: Every label once.
        label_of: The number of each picture's label, -1 where no row means it.
        idle: Rows that mean no picture; a file that is named again counts once.
    """

    texts: tuple[str, ...]
    label_of: Int64[np.ndarray, "n"]
    idle: int


def match(paths: Names, tables: Sequence[LabelTable], common: int = 0) -> _Matches:
    """Find the row of each picture: by its path, else by its base name, else by that without its suffix.

    Names must be the only ones of their kind, among the pictures and among the rows. Texts are compared by their
    digests, 16 bytes each, so that millions need little memory.

    Args:
        paths: The pictures' paths, `/` between the parts.
        tables: The tables.
        common: Leading folders of the paths that a table may leave out.

    Raises:
        DataError: The tables give one file two labels.
    """
    texts, rows_label = _labels(tables)
    rows = _once(tables, texts, rows_label)
    label_of = np.full(len(paths), -1, np.int64)
    idle = np.zeros(len(rows_label), bool)
    idle[rows] = True
    for of_picture, of_row, by_name in _ways(tables, common):
        if (label_of >= 0).all():
            break
        keys, first, counts = np.unique(_keys(of_row(tables))[rows], return_index=True, return_counts=True)
        keys, first = keys[counts == 1], rows[first[counts == 1]]
        pictures = _keys(map(of_picture, paths))
        if not len(keys) or not len(pictures):
            continue
        near = np.minimum(np.searchsorted(keys, pictures), len(keys) - 1)
        found = (keys[near] == pictures) & (label_of < 0)
        if by_name:
            found &= _alone(pictures)
        label_of[found] = rows_label[first[near[found]]]
        idle[first[near[found]]] = False
    return _Matches(texts=texts, label_of=label_of, idle=int(idle.sum()))


def _labels(tables: Sequence[LabelTable]) -> tuple[tuple[str, ...], Int64[np.ndarray, "rows"]]:
    """The labels of all the tables, numbered in common."""
    numbers: dict[str, int] = {}
    parts = []
    for table in tables:
        own = np.array([numbers.setdefault(text, len(numbers)) for text in table.texts], np.int64)
        parts.append(own[table.label_of])
    return tuple(numbers), np.concatenate(parts)


def _once(
    tables: Sequence[LabelTable], texts: tuple[str, ...], labels: Int64[np.ndarray, "rows"]
) -> Int64[np.ndarray, "once"]:
    """The first row of each file."""
    _, first, group = np.unique(_keys(_in_place(tables)), return_index=True, return_inverse=True)
    other = np.flatnonzero(labels[first[group]] != labels)
    if len(other):
        file = next(file for row, file in enumerate(_in_place(tables)) if row == other[0])
        one, two = texts[labels[first[group[other[0]]]]], texts[labels[other[0]]]
        raise DataError(
            f"{tables[0].name}: {one_line(file)} has two labels, {one_line(one)} and {one_line(two)}",
            "allowed: one label for each file",
        )
    return np.sort(first).astype(np.int64)


def _ways(
    tables: Sequence[LabelTable], common: int
) -> Iterator[tuple[_Key, Callable[[Sequence[LabelTable]], Iterable[str]], bool]]:
    """How to name a picture and a row alike, the surest first, and whether such names may occur twice."""
    yield _slashes, _in_place, False
    if any(table.folder for table in tables):
        yield _slashes, _as_written, False
    if common:
        yield lambda path: "/".join(_slashes(path).split("/")[common:]), _as_written, False
    yield _base, lambda tables: map(_base, _as_written(tables)), True
    yield _stem, lambda tables: map(_stem, _as_written(tables)), True


def _as_written(tables: Sequence[LabelTable]) -> Iterator[str]:
    for table in tables:
        yield from table.files


def _in_place(tables: Sequence[LabelTable]) -> Iterator[str]:
    """The files of the rows, from the source's top where the table lies in the source."""
    for table in tables:
        yield from (f"{table.folder}/{file}" if table.folder else file for file in table.files)


def _slashes(path: str) -> str:
    return path.replace("\\", "/")


def _base(path: str) -> str:
    """The base name, its accents composed: some systems take them apart."""
    return unicodedata.normalize("NFC", _slashes(path).rpartition("/")[2])


def _stem(path: str) -> str:
    """The base name without a picture's suffix; rows of ImageNet's tables have none."""
    name = _base(path)
    return os.path.splitext(name)[0] if suffix_of(name) in SUFFIXES else name


def _alone(keys: np.ndarray) -> np.ndarray:
    """Where a key occurs once."""
    _, group, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[group] == 1


def _keys(texts: Iterable[str]) -> np.ndarray:
    block = bytearray()
    for text in texts:
        block += hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).digest()
    return np.frombuffer(bytes(block), dtype="S16")

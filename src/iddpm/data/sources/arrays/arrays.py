"""What sources share that hold pictures as raw arrays: parts of a source, and checks of what arrays hold."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from iddpm.data.frame import Frame, Picture, from_array
from iddpm.data.items import Items
from iddpm.data.listing import Listing, Source
from iddpm.runtime.errors import ConfigError, DataError

__all__ = [
    "MOST_CLASSES",
    "Numbered",
    "Part",
    "array_source",
    "as_labels",
    "as_pictures",
    "as_planes",
    "check_labels_option",
]

MOST_CLASSES = 100_000


class Numbered(Items[str]):
    """The names "train[0]", "train[1]" and so on of some parts, which need no memory."""

    def __init__(self, parts: Iterable[tuple[str, int]]):
        parts = tuple(parts)
        self._names = [name for name, _ in parts]
        self._ends = list(accumulate(count for _, count in parts))

    def __len__(self) -> int:
        """The number of names."""
        return self._ends[-1] if self._ends else 0

    def item(self, index: int) -> str:
        """One name."""
        part, within = _located(self._ends, index)
        return f"{self._names[part]}[{within}]"


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Some of a source's pictures, in one array.

    Attributes:
        name: What its pictures are named after.
        held_out: Whether the source itself keeps this part for tests.
    """

    name: str
    pictures: UInt8[np.ndarray, "n h w"] | UInt8[np.ndarray, "n h w c"]
    labels: Int64[np.ndarray, "n"] | None
    held_out: bool = False


@dataclass(frozen=True, eq=False)
class _Reader:
    arrays: tuple[np.ndarray, ...]
    ends: tuple[int, ...]

    def __call__(self, place: int, frame: Frame) -> Picture:
        part, within = _located(self.ends, place)
        return from_array(self.arrays[part][within], frame)


def array_source(
    parts: Sequence[Part],
    *,
    source: str,
    kind: str,
    fingerprint: str,
    classes: tuple[str, ...] | None = None,
    settings: dict[str, Any] | None = None,
    attribution: str | None = None,
    notes: tuple[str, ...] = (),
) -> Source:
    """A source of some parts, in their order; what else is told of it as in `Listing`.

    Classes without names are "0", "1" and so on, up to the highest label.
    """
    labels = _joined_labels(parts)
    if labels is not None and classes is None:
        classes = tuple(map(str, range(int(labels.max()) + 1)))
    counts = [len(part.pictures) for part in parts]
    held_out = np.repeat([part.held_out for part in parts], counts)
    listing = Listing(
        source=source,
        kind=kind,
        names=Numbered((part.name, count) for part, count in zip(parts, counts, strict=True)),
        classes=() if labels is None or classes is None else classes,
        labels=labels,
        held_out=held_out if held_out.any() else None,
        split_rule=_split_rule(parts) if held_out.any() else None,
        settings=settings or {},
        fingerprint=fingerprint,
        attribution=attribution,
        notes=notes,
    )
    read = _Reader(tuple(part.pictures for part in parts), tuple(accumulate(counts)))
    return Source(listing=listing, places=range(sum(counts)), read=read)


def as_pictures(where: str, array: np.ndarray) -> UInt8[np.ndarray, "n h w"] | UInt8[np.ndarray, "n h w c"]:
    """A view of an array of pictures, channels last.

    Channels may lie first, [n, 1 or 3, h, w], where the last side is not one of 1, 3, 4: there they are the last.

    Raises:
        DataError: Another type or shape, or no picture.
    """
    if array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] in (3, 4) and array.shape[1] > 4:
        raise DataError(
            f"{where} is {array.dtype} {list(array.shape)}: one picture in colour, or {len(array)} very narrow grey ones?",
            "allowed: uint8 [n, h, w, 3]; save one picture as array[None], grey ones as array[..., None]",
        )
    last = array.ndim == 4 and array.shape[3] in (1, 3, 4)
    first = array.ndim == 4 and not last and array.shape[1] in (1, 3)
    if array.dtype != np.uint8 or not array.size or not (array.ndim == 3 or last or first):
        raise DataError(
            f"{where} is {array.dtype} {list(array.shape)}",
            "allowed: uint8 [n, h, w], [n, h, w, 1, 3 or 4] or [n, 1 or 3, h, w]",
        )
    return array.transpose(0, 2, 3, 1) if first else array


def as_planes(where: str, array: object) -> UInt8[np.ndarray, "n side side 3"]:
    """A view of pictures that are stored as rows: all that is red, then green, then blue.

    Raises:
        DataError: Not such an array.
    """
    if not isinstance(array, np.ndarray):
        raise DataError(f"{where} is no array", "get the file again from its origin")
    side = math.isqrt(array.shape[1] // 3) if array.ndim == 2 else 0
    if array.dtype != np.uint8 or not array.size or array.shape[1] != 3 * side * side:
        raise DataError(f"{where} is {array.dtype} {list(array.shape)}", "allowed: uint8 [n, 3 x side x side]")
    return array.reshape(-1, 3, side, side).transpose(0, 2, 3, 1)


def as_labels(
    where: str, given: object, count: int, *, least: int = 0, most: int = MOST_CLASSES - 1
) -> Int64[np.ndarray, "n"]:
    """Labels that belong to so many pictures, given as an array or a list.

    Raises:
        DataError: They are not whole numbers, one for each picture, from `least` to `most`.
    """
    if not isinstance(given, np.ndarray) and not _is_flat(given):
        raise DataError(f"{where} is no list of numbers", f"allowed: whole numbers [{count}]")
    labels = np.asarray(given)
    if labels.shape == (count, 1):
        labels = labels[:, 0]
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape != (count,):
        raise DataError(f"{where} is {labels.dtype} {list(labels.shape)}", f"allowed: whole numbers [{count}]")
    if labels.min() < least or labels.max() > most:
        raise DataError(f"{where} holds labels from {labels.min()} to {labels.max()}", f"allowed: {least} to {most}")
    return labels.astype(np.int64)


def check_labels_option(labels: str, given: str, *others: str) -> None:
    """Refuse an option for labels that a source with labels of its own does not have.

    Raises:
        ConfigError: Not "auto", "none" or one of the others.
    """
    allowed = ("auto", "none", *others)
    if labels not in allowed:
        raise ConfigError(f"labels={labels}: {given} brings its own labels", f"allowed: {', '.join(allowed)}")


def _is_flat(given: object) -> bool:
    """Whether it is a list of whole numbers. Lists that hold one list twice, at each level, would take endless memory."""
    return isinstance(given, list) and all(type(each) is int for each in given)


def _located(ends: Sequence[int], index: int) -> tuple[int, int]:
    """Which part an index falls into, and its index there."""
    part = bisect_right(ends, index)
    return part, index - (ends[part - 1] if part else 0)


def _joined_labels(parts: Sequence[Part]) -> np.ndarray | None:
    labels = [part.labels for part in parts if part.labels is not None]
    return np.concatenate(labels) if labels and len(labels) == len(parts) else None


def _split_rule(parts: Sequence[Part]) -> str:
    train, held_out = ([part.name for part in parts if part.held_out == side] for side in (False, True))
    return f"the source's own: trains on {_listed(train)}, holds out {_listed(held_out)}"


def _listed(names: list[str]) -> str:
    return f"{names[0]} to {names[-1]}" if len(names) > 2 else " and ".join(names)

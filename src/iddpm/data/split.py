"""Which pictures are held out: decided by their content, so that copies never lie on both sides.

A digest is a 16-byte BLAKE2b, of a picture's prepared pixels or of what the source has of it, kept as an `S16` array:
one entry a picture.
"""

import hashlib
from collections.abc import Iterator
from itertools import islice

import numpy as np
from jaxtyping import Int64

__all__ = [
    "HELD_OUT_LIMIT",
    "HELD_OUT_PART",
    "count_duplicates",
    "digest",
    "held_out_by_content",
    "new_digest",
    "with_copies",
]

HELD_OUT_PART = 0.05
HELD_OUT_LIMIT = 5000


def new_digest() -> hashlib.blake2b:
    """A digest to be fed."""
    return hashlib.blake2b(digest_size=16)


def digest(content: bytes | memoryview) -> bytes:
    """16 bytes that stand for a picture's pixels, or for what the source has of it."""
    return hashlib.blake2b(content, digest_size=16).digest()


def count_duplicates(digests: np.ndarray) -> int:
    """How many pictures are pixel-identical copies of an earlier one."""
    return len(digests) - len(np.unique(digests))


def held_out_by_content(
    digests: np.ndarray, origins: np.ndarray, labels: Int64[np.ndarray, "n"] | None = None
) -> Int64[np.ndarray, "v"]:
    """Choose 5% of the pictures, at most 5000, at least one of two, in the order of their origins' digests.

    Pictures that are copies count as one group and go to one side. A group larger than the room left is passed over;
    where every group is, the smallest is held out. No class loses its last training picture, so that nothing may be
    held out.

    Args:
        digests: Of the prepared pixels: where they are equal, pictures are copies.
        origins: Of the pictures as the source has them: the same choice at every size.
        labels: Their classes, if they have any.

    Returns:
        Indices in rising order.
    """
    count = len(digests)
    if count < 2:
        return np.empty(0, np.int64)
    groups = _Groups(digests, origins)
    left = _Left(np.zeros(count, np.int64) if labels is None else labels)
    room = min(HELD_OUT_LIMIT, max(1, round(HELD_OUT_PART * count)))
    chosen: list[np.ndarray] = []
    for group in groups.in_order():
        if len(group) <= room and left.take(group):
            chosen.append(group)
            room -= len(group)
        if room == 0:
            break
    if not chosen:
        chosen = list(islice((group for group in groups.smallest_first() if left.take(group)), 1))
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.int64)


def with_copies(digests: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """Add to some held-out indices every picture that is a copy of one of them."""
    return np.flatnonzero(np.isin(digests, digests[held_out]))


class _Groups:
    """Pictures by what they show: the indices of each group of copies."""

    def __init__(self, digests: np.ndarray, origins: np.ndarray):
        _, group = np.unique(digests, return_inverse=True)
        self._order = np.lexsort((origins, group))
        self._bounds = np.append(np.flatnonzero(np.diff(group[self._order], prepend=-1)), len(group))
        self._ranks = np.argsort(origins[self._order[self._bounds[:-1]]], kind="stable")

    def in_order(self) -> Iterator[np.ndarray]:
        """By the first of their origins' digests."""
        return (self._members(number) for number in self._ranks.tolist())

    def smallest_first(self) -> Iterator[np.ndarray]:
        """By their size, then in order."""
        sizes = np.diff(self._bounds)[self._ranks]
        return (self._members(number) for number in self._ranks[np.argsort(sizes, kind="stable")].tolist())

    def _members(self, number: int) -> np.ndarray:
        return self._order[self._bounds[number] : self._bounds[number + 1]]


class _Left:
    """How many training pictures each class has left."""

    def __init__(self, labels: np.ndarray):
        self._labels, self._counts = labels, np.bincount(labels)

    def take(self, group: np.ndarray) -> bool:
        """Take a group out of training, unless a class would then have no picture."""
        classes, counts = np.unique(self._labels[group], return_counts=True)
        if (self._counts[classes] <= counts).any():
            return False
        self._counts[classes] -= counts
        return True

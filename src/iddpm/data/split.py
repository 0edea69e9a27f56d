"""Which pictures are held out: decided by what the pictures show, so that copies never lie on both sides.

A digest is the 16-byte BLAKE2b of a picture's prepared pixels, kept as an `S16` array: one entry a picture.
"""

import hashlib

import numpy as np

__all__ = [
    "HELD_OUT_LIMIT",
    "HELD_OUT_PART",
    "count_duplicates",
    "digest",
    "held_out_by_content",
    "with_copies",
]

HELD_OUT_PART = 0.05
HELD_OUT_LIMIT = 5000


def digest(pixels: bytes) -> bytes:
    """16 bytes that stand for a picture's pixels."""
    return hashlib.blake2b(pixels, digest_size=16).digest()


def count_duplicates(digests: np.ndarray) -> int:
    """How many pictures are pixel-identical copies of an earlier one."""
    return len(digests) - len(np.unique(digests))


def held_out_by_content(digests: np.ndarray) -> np.ndarray:
    """Choose 5% of the pictures, at most 5000, at least one of two, by the order of their digests.

    Copies count as one group and go to one side. A group larger than the room left is passed over; where
    every group is, the smallest is held out. Where all the pictures are the same, none is held out.

    Returns:
        Indices in rising order, int64.
    """
    count = len(digests)
    if count < 2:
        return np.empty(0, np.int64)
    target = min(HELD_OUT_LIMIT, max(1, round(HELD_OUT_PART * count)))
    _, group, sizes = np.unique(digests, return_inverse=True, return_counts=True)
    if len(sizes) == 1:
        return np.empty(0, np.int64)
    chosen = _fill(sizes, target)
    return np.flatnonzero(np.isin(group, chosen or [int(sizes.argmin())]))


def with_copies(digests: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """Add to some held-out indices every picture that is a copy of one of them."""
    return np.flatnonzero(np.isin(digests, digests[held_out]))


def _fill(sizes: np.ndarray, target: int) -> list[int]:
    """Group numbers, in order, as long as they fit into `target` pictures."""
    chosen, room = [], target
    for number, size in enumerate(sizes.tolist()):
        if room == 0:
            break
        if size <= room:
            chosen.append(number)
            room -= size
    return chosen

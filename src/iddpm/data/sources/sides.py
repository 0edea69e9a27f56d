"""The words that say which part of a split pictures belong to."""

import re
from collections.abc import Collection, Iterable

__all__ = ["HELD_OUT", "TRAIN", "is_split", "side_in", "split_words"]

TRAIN = "train"
HELD_OUT = ("val", "valid", "validation", "test")


def is_split(sides: Collection[str | None]) -> bool:
    """Whether some pictures are to be trained on, and others are to be held out."""
    return TRAIN in sides and not set(HELD_OUT).isdisjoint(sides)


def side_in(name: str) -> str | None:
    """The one word train, val, valid, validation or test in a file's name, or None."""
    words = set(re.split("[^a-z]+", name.lower())) & {TRAIN, *HELD_OUT}
    return words.pop() if len(words) == 1 else None


def split_words(sides: Iterable[str]) -> str:
    """The parts in use, in words."""
    return f"trains on train, holds out {' and '.join(sorted(set(sides) - {TRAIN}))}"

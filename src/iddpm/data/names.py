"""Millions of short texts in little memory: one block of bytes and where each text ends."""

from array import array
from collections.abc import Iterable, Sequence
from typing import overload

__all__ = ["Names"]


class Names(Sequence[str]):
    """An immutable sequence of texts: its bytes and 8 more for each. File names that are not UTF-8 survive.

    A slice is a list, so that a part of it can be handed to another process.
    """

    def __init__(self, texts: Iterable[str] = ()):
        block, ends = bytearray(), array("q", [0])
        for text in texts:
            block += text.encode("utf-8", "surrogateescape")
            ends.append(len(block))
        self._block, self._ends = bytes(block), ends

    def __len__(self) -> int:
        """The number of texts."""
        return len(self._ends) - 1

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        """One text, or a list of some."""
        if isinstance(at, slice):
            return [self._text(index) for index in range(*at.indices(len(self)))]
        index = at + len(self) if at < 0 else at
        if not 0 <= index < len(self):
            raise IndexError(at)
        return self._text(index)

    def __eq__(self, other: object) -> bool:
        """Whether the texts are the same."""
        return isinstance(other, Names) and (self._block, self._ends) == (other._block, other._ends)

    def __hash__(self) -> int:
        """By the texts."""
        return hash((self._block, len(self)))

    def _text(self, index: int) -> str:
        return self._block[self._ends[index] : self._ends[index + 1]].decode("utf-8", "surrogateescape")

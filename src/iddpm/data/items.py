"""Sequences whose items are made when they are asked for, so that millions of them take little memory."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar, overload

__all__ = ["Items"]

Item = TypeVar("Item", covariant=True)


class Items(Sequence[Item]):
    """Such a sequence. A slice is a list, so that a part of it can be handed to another process."""

    @abstractmethod
    def item(self, index: int) -> Item:
        """The item at an index that is there, counted from the front."""

    @overload
    def __getitem__(self, at: int) -> Item: ...
    @overload
    def __getitem__(self, at: slice) -> list[Item]: ...
    def __getitem__(self, at: int | slice) -> Item | list[Item]:
        """One item, or a list of some."""
        if isinstance(at, slice):
            return [self.item(index) for index in range(*at.indices(len(self)))]
        index = at + len(self) if at < 0 else at
        if not 0 <= index < len(self):
            raise IndexError(at)
        return self.item(index)

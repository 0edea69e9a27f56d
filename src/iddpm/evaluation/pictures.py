"""The pictures to measure on, batch by batch, in any order: each process reads those of its batches alone."""

from typing import Protocol, runtime_checkable

import numpy as np
import torch

from iddpm.data.crop import resized
from iddpm.data.loader import Batch, fixed_order
from iddpm.data.store import Split, Store

__all__ = ["InOrder", "NumberedBatches"]


@runtime_checkable
class NumberedBatches(Protocol):
    """Batches that can be asked for one by one; a list of them is one."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def __getitem__(self, number: int, /) -> Batch:
        """One of them."""
        ...


class InOrder:
    """Each picture of a split once, in `fixed_order`, unflipped, uncropped; the last batch may be short.

    Args:
        store: Where the pictures are.
        split: Which of them.
        batch_size: Pictures in a batch.
        num: How many; None: all.
        size: Side of the pictures; None: the store's.

    Raises:
        DataError: The split is empty.
    """

    def __init__(self, store: Store, split: Split, batch_size: int, num: int | None = None, size: int | None = None):
        self.pictures = fixed_order(store, split, num)
        self._store, self._batch_size, self._size = store, batch_size, size or store.size

    def __len__(self) -> int:
        """Batches there are."""
        return -(-len(self.pictures) // self._batch_size)

    def __getitem__(self, number: int) -> Batch:
        """The batch of a number; `place` is the place of each picture in the whole order."""
        start = number * self._batch_size
        index = self.pictures[start : start + self._batch_size]
        if not 0 <= number < len(self):
            raise IndexError(number)
        return Batch(
            images=torch.from_numpy(resized(self._store.read(index), self._size)),
            labels=None if self._store.labels is None else torch.from_numpy(self._store.labels[index]),
            place=torch.from_numpy(np.arange(start, start + len(index))),
            index=torch.from_numpy(index),
        )

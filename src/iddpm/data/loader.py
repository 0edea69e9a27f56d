"""Batches from a store: the order is a function of (seed, step), whatever happened before.

Training walks through an endless sequence of positions. Epoch e is a permutation of the training pictures
drawn from (seed, e); the epochs follow one another without a gap, and step k takes the positions from
k * batch_size up to (k + 1) * batch_size - 1. So a batch larger than the set, or one that does not divide it,
needs no special case, and nothing is dropped.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from iddpm.data.crop import CentreCrop, Crop, RandomCrop, Windows, draw_windows, resized, stored_size
from iddpm.data.store import Split, Store
from iddpm.runtime.errors import DataError
from iddpm.runtime.seeds import Draws, Stream, permutation

__all__ = ["Batch", "Batches", "Prefetch", "fixed_order"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Some pictures of a store.

    Attributes:
        images: Flips applied.
        labels: Class indices, or None where the store has none.
        place: The place of each in the step's global batch: the example index of every random draw.
        index: The index of each picture in the store.
    """

    images: UInt8[Tensor, "b c h w"]
    labels: Int64[Tensor, "b"] | None
    place: Int64[Tensor, "b"]
    index: Int64[Tensor, "b"]

    def __len__(self) -> int:
        """The number of pictures."""
        return len(self.images)

    def __getitem__(self, rows: slice) -> "Batch":
        """Some of the pictures."""
        labels = None if self.labels is None else self.labels[rows]
        return Batch(self.images[rows], labels, self.place[rows], self.index[rows])

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        labels = None if self.labels is None else self.labels.to(device, non_blocking=True)
        images, place, index = (part.to(device, non_blocking=True) for part in (self.images, self.place, self.index))
        return Batch(images, labels, place, index)


class Batches:
    """The training batches of a store.

    Args:
        store: Where the pictures are.
        split: The side of the split to draw from.
        batch_size: Pictures in a step, over all processes.
        seed: Of the order and the flips.
        flip: Whether each picture is mirrored left to right with probability one half, drawn anew each time.
        size: Side of the pictures, if not the store's.
        crop: What is cut from the store's pictures where they are larger.

    Raises:
        DataError: That side of the split is empty, or the store's pictures have not the size that the crop needs.
    """

    def __init__(
        self,
        store: Store,
        split: Split,
        batch_size: int,
        seed: int,
        flip: bool = False,
        size: int | None = None,
        crop: Crop | None = None,
    ):
        self.store, self.batch_size, self.seed, self.flip = store, batch_size, seed, flip
        self.size, self.crop = size or store.size, crop or CentreCrop()
        needed = stored_size(self.crop, self.size)
        if store.size < needed or (store.size > needed and not isinstance(self.crop, RandomCrop)):
            raise DataError(
                f"{store.path}: pictures of size {store.size}; {needed} is needed", f"prepare with --size {needed}"
            )
        self._pictures = store.indices(split)
        self._orders: dict[int, np.ndarray] = {}
        if not len(self._pictures):
            raise _empty(store, split)

    @property
    def epoch_size(self) -> int:
        """Pictures in an epoch."""
        return len(self._pictures)

    @property
    def cure(self) -> str:
        """What makes these batches come faster, should training wait for them."""
        if self.store.encoding != "raw":
            return "the store is encoded: prepare it raw (--encode-above-gb), or give the process more cores"
        if isinstance(self.crop, RandomCrop):
            return "random crops are cut on the CPU: give the process more cores, or take --crop centre"
        return f"the disk of {self.store.path} is too slow: copy the store ({self.store.raw_bytes / 1e9:.1f} GB) to a local one, or to memory"

    def at(self, step: int, first: int = 0, count: int | None = None) -> Batch:
        """The batch of a step (the first step is 0), or `count` of its pictures from place `first` on."""
        place = np.arange(first, self.batch_size if count is None else first + count)
        index = self._pictures[self._chosen(step * self.batch_size + place)]
        draws = Draws(self.seed, step, torch.from_numpy(place))
        windows = draw_windows(self.crop, self.size, draws) if isinstance(self.crop, RandomCrop) else None
        mirrored = draws.uniform(Stream.FLIP) < 0.5 if self.flip else None
        return _gather(self.store, index, place, self.size, windows, mirrored)

    def _chosen(self, positions: Int64[np.ndarray, "b"]) -> Int64[np.ndarray, "b"]:
        """Which picture of the split stands at each position of the endless sequence."""
        epochs, offsets = np.divmod(positions, self.epoch_size)
        chosen = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            chosen[epochs == epoch] = self._order(epoch)[offsets[epochs == epoch]]
        return chosen

    def _order(self, epoch: int) -> np.ndarray:
        """The order of an epoch. The last two are kept: a batch mostly needs one, or two that meet in it."""
        order = self._orders.get(epoch)
        if order is None:
            order = permutation(self.seed, epoch, self.epoch_size)
            latest = sorted(self._orders)[-1:]
            self._orders = {each: self._orders[each] for each in latest} | {epoch: order}
        return order


def fixed_order(store: Store, split: Split, num: int | None = None) -> Int64[np.ndarray, "k"]:
    """The pictures of a split, shuffled once and for all, so that the first `num` of them are a fair sample.

    Raises:
        DataError: The split is empty.
    """
    pictures = store.indices(split)
    if not len(pictures):
        raise _empty(store, split)
    return pictures[permutation(0, 0, len(pictures))][:num]


def _empty(store: Store, split: Split) -> DataError:
    name = split.replace("_", "-")
    return DataError(f"{store.path}: no picture is in the split {name}", "take another split, or prepare more pictures")


class Prefetch:
    """Batches of consecutive steps, made by one background thread ahead of their use.

    A context manager and an iterator of `(step, batch)`. Leaving the block stops the thread. An error in the
    thread is raised by the `next` that would have returned that batch. `rows` are the places of each batch that are
    wanted, where not all are.

    Attributes:
        wait_seconds: How long the last `next` waited for its batch.
    """

    def __init__(
        self, batches: Batches, start: int, stop: int | None = None, ahead: int = 4, rows: slice | None = None
    ):
        self.wait_seconds = 0.0
        part = slice(0, batches.batch_size) if rows is None else rows
        self._first, self._count = part.start, part.stop - part.start
        self._batches, self._steps = batches, (start, stop)
        self._ready: queue.Queue[tuple[int, Batch] | BaseException | None] = queue.Queue(maxsize=ahead)
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)

    def __enter__(self) -> "Prefetch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        with contextlib.suppress(queue.Empty):
            self._ready.get_nowait()  # room for the batch that the thread may be holding
        self._thread.join()

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        return self

    def __next__(self) -> tuple[int, Batch]:
        """The next step and its batch."""
        before = time.perf_counter()
        made = self._ready.get()
        self.wait_seconds = time.perf_counter() - before
        if isinstance(made, tuple):
            return made
        self._ready.put(made)  # the end stays the end, however often it is asked for
        raise StopIteration if made is None else made

    def _work(self) -> None:
        step, stop = self._steps
        try:
            while not self._leaving.is_set() and (stop is None or step < stop):
                self._put((step, self._batches.at(step, self._first, self._count)))
                step += 1
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, made: tuple[int, Batch] | BaseException | None) -> None:
        """Hand over as soon as there is room, or drop it once the block is being left."""
        while not self._leaving.is_set():
            with contextlib.suppress(queue.Full):
                self._ready.put(made, timeout=0.05)
                return


def _gather(
    store: Store,
    index: np.ndarray,
    place: np.ndarray,
    size: int,
    windows: Windows | None = None,
    mirrored: Tensor | None = None,
) -> Batch:
    images = resized(store.read(index), size, windows)
    if mirrored is not None:
        turned = mirrored.numpy()
        images[turned] = images[turned][..., ::-1]
    labels = None if store.labels is None else torch.from_numpy(store.labels[index])
    return Batch(torch.from_numpy(images), labels, torch.from_numpy(place), torch.from_numpy(index))

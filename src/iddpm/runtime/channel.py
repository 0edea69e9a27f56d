"""Values between the processes of a job, over torch's key-value store: for what is rare and small, and may take long.

A collective has a timeout, blocks in torch and fails without saying whom it waited for. Here a process asks the store from
time to time, as long as it takes; that somebody has died or hangs is `iddpm.runtime.watch`'s to find.
"""

import pickle
import time
from collections.abc import Callable
from typing import TypeVar

from torch.distributed import Store

from iddpm.runtime.errors import IddpmError, TrainingError

__all__ = ["ALONE", "Channel"]

T = TypeVar("T")
_SOONEST_SECONDS, _LATEST_SECONDS = 0.0005, 0.1


class Channel:
    """A line of its own between all processes: each calls the same methods in the same order, from one thread.

    Of one process it is the same path without the waiting. What is sent is pickled; it comes from this job alone.

    Args:
        rank: This process.
        size: All.
        store: Where the values lie; None for one process.
        name: Keeps channels apart.
    """

    def __init__(self, rank: int = 0, size: int = 1, store: Store | None = None, name: str = ""):
        self.rank, self.size = rank, size
        self._store, self._name, self._number, self._counters = store, name, 0, 0

    def gather(self, value: T) -> list[T]:
        """The values of all processes, by rank; on each of them."""
        if self._store is None:
            return [value]
        keys = [f"{self._name}/{self._number}/{rank}" for rank in range(self.size)]
        try:
            self._store.set(keys[self.rank], pickle.dumps(value))  # pyright: ignore[reportArgumentType]  # takes bytes
            self._wait(keys)
            values = [
                value if rank == self.rank else pickle.loads(self._store.get(key)) for rank, key in enumerate(keys)
            ]
            if self._number:  # who has sent this one has read all of the one before
                self._store.delete_key(f"{self._name}/{self._number - 1}/{self.rank}")
        except RuntimeError as error:
            raise _unreachable(error) from error
        self._number += 1
        return values

    def first(self, work: Callable[[], T]) -> T:
        """Do work in the first process alone, and have its result in all.

        Raises:
            IddpmError: What the work raised, in all processes.
        """
        outcome = _outcome(work) if self.rank == 0 else (None, None)
        value, error = self.gather(outcome)[0]
        _raise(error, 0, self.rank)
        return value  # type: ignore[return-value]

    def together(self, work: Callable[[], T]) -> T:
        """Do work in each process, and go on only if all have done it.

        Returns:
            What came of it here.

        Raises:
            IddpmError: What it raised in the first process in which it did, in all processes.
        """
        value, error = _outcome(work)
        for rank, raised in enumerate(self.gather(error)):
            _raise(error if rank == self.rank else raised, rank, self.rank)
        return value  # type: ignore[return-value]

    def counter(self) -> Callable[[int], int]:
        """A number that starts at 0, common to all processes: given what to add, it tells what the number was before.

        Whoever comes first is served first, without waiting for the others.
        """
        store, key, self._counters = self._store, f"{self._name}/counter-{self._counters}", self._counters + 1
        alone = 0

        def add(amount: int) -> int:
            nonlocal alone
            try:
                alone = alone + amount if store is None else store.add(key, amount)
            except RuntimeError as error:
                raise _unreachable(error) from error
            return alone - amount

        return add

    def in_turn(self, work: Callable[[], T]) -> T:
        """Work that leaves something for those who come after: the first process does it before the others.

        Returns:
            What came of it here.

        Raises:
            IddpmError: As `together`.
        """
        mine: list[T] = []
        self.first(lambda: mine.append(work()))
        return self.together(lambda: mine[0] if mine else work())

    def _wait(self, keys: list[str]) -> None:
        assert self._store is not None, "there are others to wait for"
        pause = _SOONEST_SECONDS
        while not self._store.check(keys):
            time.sleep(pause)
            pause = min(pause * 1.5, _LATEST_SECONDS)


ALONE = Channel()
"""That of one process, which no thread can get wrong."""


def _unreachable(error: RuntimeError) -> TrainingError:
    return TrainingError(
        f"the other processes cannot be reached any more: {str(error).splitlines()[0]}",
        "one of them, or its machine, is gone; the same command goes on from the last checkpoint",
    )


def _outcome(work: Callable[[], T]) -> tuple[T | None, IddpmError | None]:
    try:
        return work(), None
    except IddpmError as error:
        return None, error


def _raise(error: IddpmError | None, raised_in: int, rank: int) -> None:
    if error is not None:
        error.is_told_elsewhere = raised_in != rank
        raise error

"""Work in pieces that do not depend on one another: each is done once, by whichever process is free."""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from iddpm.runtime.errors import IddpmError
from iddpm.runtime.memory import first_line, is_out_of_memory
from iddpm.runtime.telling import SILENT, Listener
from iddpm.runtime.world import World

__all__ = ["Tally", "share", "together"]

T = TypeVar("T")
_TOLD_EVERY_SECONDS = 0.5


def share(world: World, pieces: Sequence[T], work: Callable[[T], object]) -> None:
    """Do the work of each piece in one of the processes; return in all of them once all of it is done.

    A process takes the next piece from a common queue when it is done with its last, so none waits while there is
    work, however unequal they are. Where one fails, the others begin no other piece.

    Args:
        world: The processes; each calls this with the same pieces.
        pieces: What there is to do, in this order.
        work: Does one.

    Raises:
        IddpmError: What the work raised in one process, in all.
        OutOfMemoryError: Likewise.
    """
    taken = world.channel.counter()

    def own_part() -> None:
        try:
            while (number := taken(1)) < len(pieces):
                work(pieces[number])
        except BaseException:
            with contextlib.suppress(IddpmError):
                taken(len(pieces))
            raise

    together(world, own_part)


def together(world: World, work: Callable[[], T]) -> T:
    """`Channel.together` for work that may take long and much memory: that it has run out in one is raised in all.

    Returns:
        What came of the work here.

    Raises:
        IddpmError: What it raised in the first process in which it did, in all processes.
        OutOfMemoryError: Likewise.
    """
    value, raised = None, None
    try:
        value = work()
    except Exception as error:
        if world.size == 1 or not (isinstance(error, IddpmError) or is_out_of_memory(error)):
            raise
        raised = error
    with world.patient("waiting"):
        told = world.channel.gather(_sendable(raised))
    for rank, one in enumerate(told):
        error = raised if rank == world.rank else one
        if error is not None:
            error.is_told_elsewhere = rank != world.rank  # pyright: ignore[reportAttributeAccessIssue]
            raise error
    return value  # type: ignore[return-value]


def _sendable(error: Exception | None) -> Exception | None:
    """An error as the other processes raise it; what torch raises may hold what cannot be sent."""
    return error if error is None or isinstance(error, IddpmError) else torch.OutOfMemoryError(first_line(error))


class Tally:
    """Counts what all processes have done of a task, for the first to show, and says where this one is.

    Every process makes one for the same task. The count of one process is exact; those of several learn of one
    another now and then, as each step of a network would be too often.

    Args:
        world: The processes.
        listener: Told in the first process.
        task: What is done, for people and for the watch.
        total: Units there are.
        done: Units that were done before.
        detail: More about the task, for people.
    """

    def __init__(
        self, world: World, listener: Listener, task: str, total: int, done: int = 0, detail: str = ""
    ) -> None:
        self._world, self._listener = world, listener if world.is_first else SILENT
        self._task, self._total, self._detail = task, total, detail
        self._done_before, self._known, self._own, self._untold = done, done, 0, 0
        self._steps, self._shown = 0, done
        self._sum = world.channel.counter()
        self._told_at = time.monotonic()

    def add(self, amount: int) -> None:
        """So many units more are done here."""
        self._steps += 1
        self._untold += amount
        self._world.at(self._task, self._steps)
        if time.monotonic() - self._told_at > _TOLD_EVERY_SECONDS:
            self._known = self._done_before + self._sum(self._untold) + self._untold
            self._untold, self._told_at = 0, time.monotonic()
        self._show(self._known + self._untold)

    def finish(self) -> None:
        """All is done, in all processes."""
        if self._shown < self._total:
            self._show(self._total)

    def _show(self, done: int) -> None:
        self._shown = done
        self._listener.progress(self._task, done, self._total, self._detail)

"""What the processes of a job have to agree on step by step, since one alone knows it: whether to stop, whether to try a
save again. It travels with the exchange that every step has anyway, so all hear it at the same step.
"""

from collections.abc import Sequence
from pathlib import Path

from iddpm.runtime.world import World
from iddpm.training.keeping import GO_ON, Keeper
from iddpm.training.stop import StopRequest

__all__ = ["Agreement"]

_SENT_ON_SECONDS = 2.0


class Agreement:
    """Of one process it is what that process says itself.

    Args:
        world: The processes.
        stop_file: Asks to stop as soon as it is there.
        deadline: Asks to stop from this moment of `time.monotonic` on.
        keeper: Says whether it is time to try again what could not be written; the first process's counts.

    Attributes:
        stop: What this process is asked.
    """

    def __init__(self, world: World, stop_file: Path, deadline: float | None, keeper: Keeper):
        several = world.size > 1
        self.stop = StopRequest(stop_file if world.is_first else None, deadline, _SENT_ON_SECONDS if several else 0.0)
        self._world, self._stop_file, self._keeper = world, stop_file, keeper
        self._asked: str | None = None
        self._mood = GO_ON

    def asked(self) -> str | None:
        """What asks to stop; the same in all processes at the same step."""
        return self.stop.asked() if self._world.size == 1 else self._asked

    def mood(self) -> int:
        """The keeper's mood; likewise."""
        return self._keeper.mood() if self._world.size == 1 else self._mood

    def own(self) -> tuple[float, ...]:
        """What this process tells the others with its next step."""
        return () if self._world.size == 1 else (float(self.stop.code()), float(self._keeper.mood()))

    def hear(self, told: Sequence[Sequence[float]]) -> None:
        """Take in what all have told, a row a process."""
        if self._world.size == 1:
            return
        code = int(max(code for code, _ in told))
        self._asked = self._asked or self.stop.reason(code, self._stop_file)
        self._mood = int(told[0][1])

    def meet(self) -> None:
        """Hear all before the first step of a stretch."""
        self.hear(self._world.channel.gather(self.own()))

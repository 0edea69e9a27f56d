"""How fast it goes and how long it still takes, from what this session has done itself."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Pace", "duration"]


@dataclass
class Pace:
    """Rate of a session that began at step `start` of `total`.

    The first step is left out of the rate: it carries what happens once (allocations, kernel choice, reading).
    """

    start: int
    total: int
    clock: Callable[[], float] = time.perf_counter
    _marks: list[tuple[float, int]] = field(default_factory=list)

    def mark(self, step: int) -> None:
        """Tell that `step` steps are done in all."""
        now = (self.clock(), step)
        if len(self._marks) < 2:
            self._marks.append(now)
        else:
            self._marks[1] = now

    @property
    def seconds_per_step(self) -> float | None:
        """Mean over this session's steps but the first; None before the second."""
        if len(self._marks) < 2:
            return None
        (begun, first), (now, last) = self._marks
        return (now - begun) / (last - first)

    @property
    def seconds_left(self) -> float | None:
        """Time to the last step at this session's rate, never negative."""
        rate = self.seconds_per_step
        if rate is None:
            return None
        return max(self.total - self._marks[-1][1], 0) * rate


def duration(seconds: float) -> str:
    """A length of time for people: "40 ms", "8 s", "12 min 5 s", "3 h 20 min", "2 d 4 h"."""
    whole = round(seconds)
    if 0 < seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.0095 else f"{seconds * 1000:.1f} ms"
    if whole < 60:
        return f"{whole} s" if whole >= 10 or seconds == whole else f"{seconds:.1f} s"
    for big, unit, small, sub in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= big:
            rest = whole % big // small
            return f"{whole // big} {unit}" + (f" {rest} {sub}" if rest else "")
    raise AssertionError("unreachable")

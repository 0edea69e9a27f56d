"""How long something takes here, measured on the thing itself."""

import statistics
import time
from collections.abc import Callable

__all__ = ["seconds_per_call"]


def seconds_per_call(
    call: Callable[[], object],
    *,
    at_least: int = 5,
    seconds: float = 5.0,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Median seconds of a call, after one that is not counted.

    Args:
        call: What to time; on a GPU it must wait for its own end.
        at_least: Calls to time.
        seconds: Go on timing for as long.
        clock: Seconds now.
    """
    call()
    taken: list[float] = []
    began = clock()
    while len(taken) < at_least or clock() - began < seconds:
        before = clock()
        call()
        taken.append(clock() - before)
    return statistics.median(taken)

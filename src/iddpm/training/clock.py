"""Seconds by phase, and the most memory used."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import torch

__all__ = ["PhaseClock", "peak_memory_bytes"]


class PhaseClock:
    """Seconds spent by phase, as the host sees them.

    `told` hears of each phase as it begins. On a GPU the host only queues work, so the phases share out the wall time there as the queueing does.
    """

    def __init__(self, told: Callable[[str], object] | None = None) -> None:
        self._seconds: dict[str, float] = {}
        self._told = told

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block's time under `name`."""
        if self._told is not None:
            self._told(name)
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - begun)

    def add(self, name: str, seconds: float) -> None:
        """Count seconds under `name`."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def read(self) -> dict[str, float]:
        """Seconds by phase since the last reading; starts anew."""
        seconds, self._seconds = self._seconds, {}
        return {name: round(value, 6) for name, value in seconds.items()}


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory used so far: allocated on the GPU, or resident in this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows has no such module
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

"""Sums kept on the device between two journal entries, and seconds by phase."""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from iddpm.diffusion.objective import Terms

__all__ = ["Meter", "PhaseClock", "peak_memory_bytes"]

_QUARTILES = 4


class Meter:
    """Means since the last reading. Nothing is read from the device until `read`."""

    def __init__(self, timesteps: int | None):
        self._timesteps = timesteps
        self._reset()

    def _reset(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._examples = 0
        self.steps = 0
        self._norm: Tensor | None = None
        self._quartiles: Tensor | None = None

    @torch.no_grad()
    def add(self, terms: Sequence[Terms], grad_norm: Tensor) -> None:
        """Take in one step."""
        self.steps += 1
        self._norm = grad_norm.clone() if self._norm is None else self._norm.add_(grad_norm)
        for micro in terms:
            self._examples += len(micro.loss)
            for name, value in {"loss": micro.loss.detach(), **micro.parts}.items():
                total = micro.weighted(value).sum(dtype=torch.float64 if value.device.type == "cpu" else torch.float32)
                self._sums[name] = total if name not in self._sums else self._sums[name].add_(total)
            self._add_quartiles(micro)

    def _add_quartiles(self, terms: Terms) -> None:
        if terms.t is None or self._timesteps is None or "mse" not in terms.parts:
            return
        quartile = terms.t * _QUARTILES // self._timesteps
        sums = torch.zeros(2, _QUARTILES, device=quartile.device)
        sums[0].scatter_add_(0, quartile, terms.weighted(terms.parts["mse"]).float())
        sums[1].scatter_add_(0, quartile, terms.weighted(torch.ones_like(terms.parts["mse"])).float())
        self._quartiles = sums if self._quartiles is None else self._quartiles.add_(sums)

    def read(self) -> dict[str, Any]:
        """Means over the examples (losses) and the steps (gradient norm) since the last reading; starts anew.

        All are weighted where t was drawn by importance, so that they mean the same in every run; "mse_by_quartile" is
        None where no t fell.
        """
        means = {name: float(total) / self._examples for name, total in self._sums.items()}
        reading: dict[str, Any] = {
            "loss": means.pop("loss"),
            "parts": means,
            "grad_norm": float(self._norm or 0) / self.steps,
        }
        if self._quartiles is not None:
            sums, counts = self._quartiles.tolist()
            reading["mse_by_quartile"] = [s / c if c else None for s, c in zip(sums, counts, strict=True)]
        self._reset()
        return reading


class PhaseClock:
    """Seconds spent by phase, as the host sees them.

    On a GPU the host only queues work, so the phases share out the wall time there as the queueing does.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block's time under `name`."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - begun

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

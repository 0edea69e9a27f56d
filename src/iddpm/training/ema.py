"""Averages of the weights over training, one for each rate [H20 Section 4: 0.9999]."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

__all__ = ["Ema", "ema_decay", "ema_name"]


def ema_decay(rate: float, step: int, warmup: bool) -> float:
    """The decay of the update after training step `step` (0-based); the configured rate is its ceiling."""
    return min(rate, (1 + step) / (10 + step)) if warmup else rate


def ema_name(rate: float) -> str:
    """The name of an average in checkpoints and keys, e.g. "ema-0.9999"."""
    return f"ema-{rate:g}"


class Ema:
    """Float32 copies of a module's parameters for each rate; updated in place, never swapped into the module."""

    def __init__(self, module: nn.Module, rates: Sequence[float], warmup: bool):
        self.warmup = warmup
        self._names = [name for name, _ in module.named_parameters()]
        self._live: list[Tensor] = [parameter for _, parameter in module.named_parameters()]
        self._buffers = dict(module.named_buffers())
        self._averages = {rate: [p.detach().clone() for p in self._live] for rate in rates}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Average <- decay * average + (1 - decay) * weights, after training step `step` (0-based)."""
        for rate, average in self._averages.items():
            torch._foreach_lerp_(average, self._live, 1.0 - ema_decay(rate, step, self.warmup))

    def state_dict(self, rate: float) -> dict[str, Tensor]:
        """The averaged weights under the module's own names, buffers included, so that they load strictly."""
        return dict(zip(self._names, self._averages[rate], strict=True)) | self._buffers

    @torch.no_grad()
    def load_state_dict(self, rate: float, state: Mapping[str, Tensor]) -> None:
        """Put back what `state_dict` gave."""
        for name, average in zip(self._names, self._averages[rate], strict=True):
            average.copy_(state[name])

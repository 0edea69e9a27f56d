"""Averages of the weights over training: of a fixed rate [H20 Section 4: 0.9999], or of a fixed relative width [KAL24]."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from iddpm.runtime.errors import RunError
from iddpm.training.distribution import Weights

__all__ = ["Ema", "ema_decay", "ema_name", "power_decay", "power_exponent", "power_name", "power_width"]


def ema_decay(rate: float, step: int, warmup: bool) -> float:
    """The decay of the update after training step `step` (0-based); the configured rate is its ceiling."""
    return min(rate, (1 + step) / (10 + step)) if warmup else rate


def ema_name(rate: float) -> str:
    """The name of an average in checkpoints and keys, e.g. "ema-0.9999"."""
    return f"ema-{rate:g}"


def power_name(width: float) -> str:
    """The name of a power-function average in checkpoints and keys, e.g. "power-0.1"."""
    return f"power-{width:g}"


def power_width(exponent: float) -> float:
    """The standard deviation of the weight profile t^exponent on (0, 1] [KAL24 Section 3]."""
    return math.sqrt((exponent + 1) / (exponent + 3)) / (exponent + 2)


def power_exponent(width: float) -> float:
    """The exponent (0 or more) whose relative width this is; the inverse of `power_width`.

    With x = exponent + 2 it is the largest root of x^3 + x^2 - x / width^2 + 1 / width^2, which is convex above 0, so
    that Newton's steps from the right fall onto it.
    """
    assert 0 < width <= power_width(0.0), "a width that a power function on (0, 1] has"
    inverse_square = width**-2
    x, below = math.inf, 1 / width
    while below < x:
        x = below
        below = x - (((x + 1) * x - inverse_square) * x + inverse_square) / ((3 * x + 2) * x - inverse_square)
    return max(x - 2, 0.0)


def power_decay(exponent: float, step: int) -> float:
    """The decay of the update after training step `step` (0-based): 0 at first, so that no initial weight has a part.

    After n = step + 1 updates the weights of step i = 1..n have the part (i^(e+1) - (i-1)^(e+1)) / n^(e+1) in the average.
    """
    return (step / (step + 1)) ** (exponent + 1)


class Ema:
    """Float32 averages of a module's parameters, known by name; updated in place, never swapped into the module.

    Args:
        module: Whose parameters are averaged.
        rates: Rates of exponential averages; their names are those of `ema_name`.
        warmup: Whether these rise to their rate, see `ema_decay`.
        widths: Relative widths of power-function averages; their names are those of `power_name`.
    """

    def __init__(self, module: Weights, rates: Sequence[float], warmup: bool, widths: Sequence[float] = ()):
        self._warmup = warmup
        self._rates = {ema_name(rate): rate for rate in rates}
        self._exponents = {power_name(width): power_exponent(width) for width in widths}
        self._parameters = [name for name, _ in module.named_parameters()]
        self._live: list[Tensor] = [parameter for _, parameter in module.named_parameters()]
        self._buffers = dict(module.named_buffers())
        self._averages = {name: [p.detach().clone() for p in self._live] for name in self.names}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the averages, the rates first."""
        return (*self._rates, *self._exponents)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Average <- decay * average + (1 - decay) * weights, after training step `step` (0-based)."""
        for name, average in self._averages.items():
            torch._foreach_lerp_(average, self._live, 1.0 - self._decay(name, step))

    def _decay(self, name: str, step: int) -> float:
        if name in self._rates:
            return ema_decay(self._rates[name], step, self._warmup)
        return power_decay(self._exponents[name], step)

    def state_dict(self, name: str) -> dict[str, Tensor]:
        """The averaged weights under the module's own names, buffers included, so that they load strictly."""
        return dict(zip(self._parameters, self._averages[name], strict=True)) | self._buffers

    @torch.no_grad()
    def load_state_dict(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Put back what `state_dict` gave.

        Raises:
            RunError: The state is of another module.
        """
        for parameter, average in zip(self._parameters, self._averages[name], strict=True):
            if parameter not in state or state[parameter].shape != average.shape:
                raise RunError(
                    f"the checkpoint's average {name} does not fit the parameter {parameter}",
                    "start a new run directory",
                )
            average.copy_(state[parameter])

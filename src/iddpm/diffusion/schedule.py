"""Noise schedules: how much of the data is left at each index of the chain.

`alpha_bar` is the primary quantity; every other table follows from it, so that a respaced chain is the same
two arrays indexed. `t` is the 0-based index into the chain in use: index 0 is the least noisy step, and
alpha_bar before it is 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from iddpm.runtime.errors import ConfigError

__all__ = ["Cosine", "Linear", "NoiseSchedule", "Schedule", "Table", "TimeScale", "noise_schedule"]

TimeScale = Literal["thousand", "index"]
"""What the network is told at index i of T: i * 1000 / T, or i itself."""

Table = Literal[
    "alpha_bar",
    "alpha_bar_next",
    "alpha_bar_prev",
    "beta",
    "beta_tilde",
    "beta_tilde_log_clipped",
    "log_beta",
    "log_beta_clipped",
    "log_one_minus_alpha_bar",
    "log_snr",
    "model_time",
    "posterior_mean_coef1",
    "posterior_mean_coef2",
    "snr",
    "sqrt_alpha_bar",
    "sqrt_one_minus_alpha_bar",
]

LINEAR_STEPS = 1000
LINEAR_FIRST_BETA = 1e-4
LINEAR_LAST_BETA = 0.02


@dataclass(frozen=True, kw_only=True)
class Linear:
    """beta on a line from 1e-4 to 0.02 over 1000 steps, both ends scaled by 1000/T elsewhere [H20 Sec. 4].

    Raises:
        ConfigError: T is so small that the last beta would reach 1.
    """

    timesteps: int = 1000

    def __post_init__(self):
        _require_timesteps(self.timesteps)
        last_beta = LINEAR_LAST_BETA * LINEAR_STEPS / self.timesteps
        if last_beta >= 1:
            least = int(LINEAR_LAST_BETA * LINEAR_STEPS) + 1
            raise ConfigError(
                f"linear schedule, timesteps={self.timesteps}: its last beta, {last_beta:.4g}, must be < 1",
                f"use timesteps >= {least}, or the cosine schedule",
            )

    def beta(self) -> Float64[np.ndarray, "T"]:
        """Beta at each index."""
        scale = LINEAR_STEPS / self.timesteps
        return np.linspace(LINEAR_FIRST_BETA * scale, LINEAR_LAST_BETA * scale, self.timesteps)


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """alpha_bar along a squared cosine, beta capped near the end [ND21 Eq. 17].

    Attributes:
        timesteps: T, the length of the chain.
        s: Offset that keeps beta from vanishing near index 0.
        max_beta: Cap on beta; alpha_bar is the product after the cap.
    """

    timesteps: int = 1000
    s: float = 0.008
    max_beta: float = 0.999

    def __post_init__(self):
        _require_timesteps(self.timesteps)
        if not self.s >= 0:
            raise ConfigError(f"cosine schedule, s={self.s}: the offset must be >= 0", "the paper uses s=0.008")
        if not 0 < self.max_beta < 1:
            raise ConfigError(
                f"cosine schedule, max_beta={self.max_beta}: it must lie between 0 and 1, both excluded",
                "the paper uses max_beta=0.999",
            )

    def beta(self) -> Float64[np.ndarray, "T"]:
        """Beta at each index."""
        u = np.arange(self.timesteps + 1) / self.timesteps
        f = np.cos((u + self.s) / (1 + self.s) * np.pi / 2) ** 2
        return np.minimum(1 - f[1:] / f[:-1], self.max_beta)


Schedule = Linear | Cosine


def _require_timesteps(timesteps: int) -> None:
    if timesteps < 1:
        raise ConfigError(f"timesteps={timesteps}: a chain has at least one step", "the paper uses 1000 and 4000")


@dataclass(frozen=True, eq=False)
class NoiseSchedule:
    """The chain in use, as two arrays; all other tables are derived from them in float64.

    Attributes:
        alpha_bar: Share of the signal's variance left at index i, strictly decreasing between 1 and 0.
        model_time: What the network is told at index i; a respaced chain keeps the original values.

    Raises:
        ConfigError: `alpha_bar` does not decrease strictly inside (0, 1).
    """

    alpha_bar: Float64[np.ndarray, "T"]
    model_time: Float64[np.ndarray, "T"]
    _on_device: dict[tuple[Table, torch.device, torch.dtype], Tensor] = field(
        default_factory=dict, init=False, repr=False
    )

    def __post_init__(self):
        bounded = np.concatenate([[1.0], self.alpha_bar, [0.0]])
        if len(self.alpha_bar) < 1 or not (np.diff(bounded) < 0).all():
            raise ConfigError(
                "noise schedule: alpha_bar must decrease strictly inside (0, 1), over at least one step",
                "give steps in increasing order, each once, and keep every beta inside (0, 1)",
            )
        self.alpha_bar.setflags(write=False)
        self.model_time.setflags(write=False)

    @property
    def timesteps(self) -> int:
        """Number of steps of this chain."""
        return len(self.alpha_bar)

    def respace(self, keep: Sequence[int]) -> "NoiseSchedule":
        """The chain that visits only the indices `keep`, in increasing order [ND21 Sec. 4, Eq. 19]."""
        index = np.asarray(keep, dtype=np.int64)
        return NoiseSchedule(self.alpha_bar[index], self.model_time[index])

    @cached_property
    def alpha_bar_prev(self) -> Float64[np.ndarray, "T"]:
        """alpha_bar one step nearer to the data; 1 before index 0."""
        return np.append(1.0, self.alpha_bar[:-1])

    @cached_property
    def alpha_bar_next(self) -> Float64[np.ndarray, "T"]:
        """alpha_bar one step nearer to the noise; 0 after the last index."""
        return np.append(self.alpha_bar[1:], 0.0)

    @cached_property
    def beta(self) -> Float64[np.ndarray, "T"]:
        """Variance of q(x_t | x_{t-1}); on a respaced chain its own, not capped again [ND21 Eq. 19]."""
        return 1 - self.alpha_bar / self.alpha_bar_prev

    @cached_property
    def beta_tilde(self) -> Float64[np.ndarray, "T"]:
        """Variance of q(x_{t-1} | x_t, x0); 0 at index 0 [ND21 Eq. 10]."""
        return (1 - self.alpha_bar_prev) / (1 - self.alpha_bar) * self.beta

    @cached_property
    def beta_tilde_log_clipped(self) -> Float64[np.ndarray, "T"]:
        """Log beta_tilde, its infinite element 0 replaced by element 1 (a chain of one step has beta's)."""
        return np.log(np.append(self._first_variance, self.beta_tilde[1:]))

    @cached_property
    def log_beta(self) -> Float64[np.ndarray, "T"]:
        """Log beta, nothing replaced: the upper end of the learned range [ND21 Eq. 15]."""
        return np.log(self.beta)

    @cached_property
    def log_beta_clipped(self) -> Float64[np.ndarray, "T"]:
        """Log beta, element 0 replaced by log beta_tilde[1]: the larger fixed variance."""
        return np.log(np.append(self._first_variance, self.beta[1:]))

    @property
    def _first_variance(self) -> float:
        return float(self.beta_tilde[1] if self.timesteps > 1 else self.beta[0])

    @cached_property
    def posterior_mean_coef1(self) -> Float64[np.ndarray, "T"]:
        """Weight of x0 in the mean of q(x_{t-1} | x_t, x0) [ND21 Eq. 11]."""
        return self.beta * np.sqrt(self.alpha_bar_prev) / (1 - self.alpha_bar)

    @cached_property
    def posterior_mean_coef2(self) -> Float64[np.ndarray, "T"]:
        """Weight of x_t in the mean of q(x_{t-1} | x_t, x0) [ND21 Eq. 11]."""
        return (1 - self.alpha_bar_prev) * np.sqrt(1 - self.beta) / (1 - self.alpha_bar)

    @cached_property
    def sqrt_alpha_bar(self) -> Float64[np.ndarray, "T"]:
        """Weight of x0 in x_t [ND21 Eq. 9]."""
        return np.sqrt(self.alpha_bar)

    @cached_property
    def sqrt_one_minus_alpha_bar(self) -> Float64[np.ndarray, "T"]:
        """Weight of the noise in x_t [ND21 Eq. 9]."""
        return np.sqrt(1 - self.alpha_bar)

    @cached_property
    def log_one_minus_alpha_bar(self) -> Float64[np.ndarray, "T"]:
        """Log variance of q(x_t | x0)."""
        return np.log1p(-self.alpha_bar)

    @cached_property
    def snr(self) -> Float64[np.ndarray, "T"]:
        """Signal-to-noise ratio alpha_bar / (1 - alpha_bar)."""
        return self.alpha_bar / (1 - self.alpha_bar)

    @cached_property
    def log_snr(self) -> Float64[np.ndarray, "T"]:
        """Natural logarithm of the signal-to-noise ratio."""
        return np.log(self.alpha_bar) - self.log_one_minus_alpha_bar

    def table(self, name: Table, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "T"]:
        """One table as a tensor, copied to the device once and kept there."""
        key = (name, device, dtype)
        if key not in self._on_device:
            # A tensor made in inference mode could not enter a later training step.
            with torch.inference_mode(False):
                self._on_device[key] = torch.tensor(getattr(self, name), dtype=dtype, device=device)
        return self._on_device[key]

    def at(self, name: Table, t: Int[Tensor, "b"], like: Float[Tensor, "b *shape"]) -> Float[Tensor, "b ..."]:
        """One table's values at `t`, in the dtype and on the device of `like`, shaped to multiply it."""
        return self.table(name, like.device, like.dtype)[t].reshape(-1, *[1] * (like.ndim - 1))


def noise_schedule(spec: Schedule, time_scale: TimeScale) -> NoiseSchedule:
    """The full chain of a spec."""
    index = np.arange(spec.timesteps, dtype=np.float64)
    model_time = index * (1000 / spec.timesteps) if time_scale == "thousand" else index
    return NoiseSchedule(np.cumprod(1 - spec.beta()), model_time)

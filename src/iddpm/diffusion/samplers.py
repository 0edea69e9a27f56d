"""From noise to data along a chain, and back.

A sampler is called as `(denoiser, x_T, cond, noise)` and yields a state after each step, largest index first.
It visits every index of the denoiser's chain: fewer steps are a respaced chain, a start halfway is a chain
cut off there. No step copies from host to device, or waits for the device.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iddpm.diffusion.denoiser import Cond, Denoiser
from iddpm.diffusion.prediction import Prediction, clipped
from iddpm.diffusion.process import reverse_step
from iddpm.runtime.errors import ConfigError

__all__ = ["Ancestral", "Ddim", "Sampler", "SamplerState", "invert_ddim"]


@dataclass(frozen=True)
class SamplerState:
    """After one step.

    Attributes:
        index: The index at which the denoiser was asked, 0-based, in the chain in use.
        x: The data after the step; after index 0 it is the sample.
        x0: What the denoiser took the data for.
    """

    index: int
    x: Float[Tensor, "b *shape"]
    x0: Float[Tensor, "b *shape"]


@dataclass(frozen=True, kw_only=True)
class Ancestral:
    """Draws x_{t-1} ~ p(x_{t-1} | x_t), index after index [H20 Alg. 2, ND21 Sec. 4].

    Attributes:
        clip: Hold the predicted x0 to [-1, 1], the range of pixel data.
    """

    clip: bool = True

    def __call__(
        self, denoiser: Denoiser, x_T: Float[Tensor, "b *shape"], cond: Cond, noise: Callable[[int], Tensor]
    ) -> Iterator[SamplerState]:
        """The states from `x_T` on; `noise(k)` is called for the k-th step, except for the last."""
        x = x_T
        for k, (index, t) in enumerate(_descending(denoiser, x_T)):
            state = self._step(denoiser, x, index, t, cond, noise(k) if index else None)
            x = state.x
            yield state

    @torch.no_grad()
    def _step(
        self,
        denoiser: Denoiser,
        x_t: Float[Tensor, "b *shape"],
        index: int,
        t: Int[Tensor, "b"],
        cond: Cond,
        noise: Float[Tensor, "b *shape"] | None,
    ) -> SamplerState:
        prediction = denoiser(x_t, t, cond)
        x0 = prediction.x0.clamp(-1, 1) if self.clip else prediction.x0
        p = reverse_step(denoiser.schedule, x_t, t, replace(prediction, x0=x0), clip=False)
        x = p.mean if noise is None else p.mean + torch.exp(0.5 * p.log_variance) * noise
        return SamplerState(index, x, x0)


@dataclass(frozen=True, kw_only=True)
class Ddim:
    """The non-Markovian family with the same marginals [S20 Eq. 12]; a learned variance has no part in it.

    Attributes:
        eta: 0 is deterministic, 1 has the variance beta_tilde [S20 Eq. 16].
        clip: Hold the predicted x0 to [-1, 1] and derive eps again.

    Raises:
        ConfigError: eta is not within 0 to 1.
    """

    eta: float = 0.0
    clip: bool = True

    def __post_init__(self):
        if not 0 <= self.eta <= 1:
            raise ConfigError(
                f"ddim, eta={self.eta}: it must lie within 0 to 1",
                "use 0 for the deterministic sampler, 1 for the noisiest",
            )

    def __call__(
        self, denoiser: Denoiser, x_T: Float[Tensor, "b *shape"], cond: Cond, noise: Callable[[int], Tensor]
    ) -> Iterator[SamplerState]:
        """The states from `x_T` on; `noise(k)` is called for the k-th step, but not where it weighs 0."""
        x = x_T
        for k, (index, t) in enumerate(_descending(denoiser, x_T)):
            state = self._step(denoiser, x, index, t, cond, noise(k) if index and self.eta else None)
            x = state.x
            yield state

    @torch.no_grad()
    def _step(
        self,
        denoiser: Denoiser,
        x_t: Float[Tensor, "b *shape"],
        index: int,
        t: Int[Tensor, "b"],
        cond: Cond,
        noise: Float[Tensor, "b *shape"] | None,
    ) -> SamplerState:
        schedule = denoiser.schedule
        prediction = _predict(denoiser, x_t, t, cond, self.clip)
        variance = self.eta**2 * float(schedule.beta_tilde[index])
        x = _at_level(float(schedule.alpha_bar_prev[index]), prediction, variance)
        x = x if noise is None else x + math.sqrt(variance) * noise
        return SamplerState(index, x, prediction.x0)


Sampler = Ancestral | Ddim


def invert_ddim(
    denoiser: Denoiser, x0: Float[Tensor, "b *shape"], cond: Cond, clip: bool = True
) -> Iterator[SamplerState]:
    """Data to the noise that `Ddim(eta=0)` makes it from: the states at index 0, 1, ... [S20 Sec. 4.3].

    At each index the data so far stands in for x_t; the step after the last index leads to pure noise.
    """
    steps, x = _steps(denoiser, x0), x0
    for index in range(denoiser.schedule.timesteps):
        state = _inversion_step(denoiser, x, index, steps[index].expand(len(x)), cond, clip)
        x = state.x
        yield state


@torch.no_grad()
def _inversion_step(
    denoiser: Denoiser,
    x_t: Float[Tensor, "b *shape"],
    index: int,
    t: Int[Tensor, "b"],
    cond: Cond,
    clip: bool,
) -> SamplerState:
    prediction = _predict(denoiser, x_t, t, cond, clip)
    return SamplerState(index, _at_level(float(denoiser.schedule.alpha_bar_next[index]), prediction), prediction.x0)


def _predict(
    denoiser: Denoiser, x_t: Float[Tensor, "b *shape"], t: Int[Tensor, "b"], cond: Cond, clip: bool
) -> Prediction:
    prediction = denoiser(x_t, t, cond)
    return clipped(denoiser.schedule, x_t, t, prediction) if clip else prediction


def _at_level(alpha_bar: float, prediction: Prediction, fresh_variance: float = 0.0) -> Float[Tensor, "b *shape"]:
    """The prediction at another noise level, but for `fresh_variance`, which is left for new noise."""
    # Near the data's end the two variances may be equal but for rounding.
    direction = math.sqrt(max(1 - alpha_bar - fresh_variance, 0.0))
    return math.sqrt(alpha_bar) * prediction.x0 + direction * prediction.eps


def _steps(denoiser: Denoiser, like: Float[Tensor, "b *shape"]) -> Int[Tensor, "n"]:
    return torch.arange(denoiser.schedule.timesteps, device=like.device)


def _descending(denoiser: Denoiser, like: Float[Tensor, "b *shape"]) -> Iterator[tuple[int, Int[Tensor, "b"]]]:
    steps = _steps(denoiser, like)
    for index in reversed(range(len(steps))):
        yield index, steps[index].expand(len(like))

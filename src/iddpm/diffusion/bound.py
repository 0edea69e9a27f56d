"""The variational bound on -log p(x0), term by term, in bits per dimension [ND21 Eq. 4-7].

total = prior + sum over t >= 1 of KL(q(x_{t-1} | x_t, x0) || p) + decoder term at index 0.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iddpm.diffusion.denoiser import Cond, Denoiser
from iddpm.diffusion.prediction import clipped
from iddpm.diffusion.process import Gaussian, q_posterior, q_sample, reverse_step
from iddpm.diffusion.schedule import NoiseSchedule

__all__ = [
    "Bound",
    "BoundStep",
    "Decoder",
    "bound",
    "bound_steps",
    "bound_term",
    "continuous_log_likelihood",
    "discretized_log_likelihood",
    "mean_flat",
    "normal_kl",
    "prior_term",
]

Decoder = Literal["discretized", "continuous"]
"""What the last step's Gaussian is held against: the 256 bins of 8-bit pictures, or a density (latents)."""

BIN_HALF_WIDTH = 1 / 255
EDGE = 0.999
LEAST_PROBABILITY = 1e-12


def mean_flat(x: Float[Tensor, "b *shape"]) -> Float[Tensor, "b"]:
    """Each example's mean."""
    return x.flatten(1).mean(1)


def normal_kl(q: Gaussian, p: Gaussian) -> Float[Tensor, "b *shape"]:
    """Divergence KL(q || p) of each element, in nats."""
    log_ratio = q.log_variance - p.log_variance
    distance = (q.mean - p.mean) ** 2 * torch.exp(-p.log_variance)
    return 0.5 * (torch.expm1(log_ratio) - log_ratio + distance)


def discretized_log_likelihood(x0: Float[Tensor, "b *shape"], p: Gaussian) -> Float[Tensor, "b *shape"]:
    """Log probability of each element's bin, in nats, for data on the grid k / 127.5 - 1 [H20 Eq. 13].

    Bins reach 1/255 to both sides; the first and the last take the tails, so that the 256 add up to 1. The
    normal CDF is the tanh approximation of the published numbers, and no probability is below their 1e-12.
    """
    inverse_std = torch.exp(-0.5 * p.log_variance)
    centred = x0 - p.mean
    up_to_upper_edge = _normal_cdf((centred + BIN_HALF_WIDTH) * inverse_std)
    up_to_lower_edge = _normal_cdf((centred - BIN_HALF_WIDTH) * inverse_std)
    inside = up_to_upper_edge - up_to_lower_edge
    probability = torch.where(x0 > EDGE, 1 - up_to_lower_edge, inside)
    probability = torch.where(x0 < -EDGE, up_to_upper_edge, probability)
    return probability.clamp(min=LEAST_PROBABILITY).log()


def _normal_cdf(z: Float[Tensor, "b *shape"]) -> Float[Tensor, "b *shape"]:
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


def continuous_log_likelihood(x0: Float[Tensor, "b *shape"], p: Gaussian) -> Float[Tensor, "b *shape"]:
    """Log density of each element, in nats: for latents and other data that lie on no grid."""
    distance = (x0 - p.mean) ** 2 * torch.exp(-p.log_variance)
    return -0.5 * (math.log(2 * math.pi) + p.log_variance + distance)


def bound_term(
    schedule: NoiseSchedule,
    x0: Float[Tensor, "b *shape"],
    x_t: Float[Tensor, "b *shape"],
    t: Int[Tensor, "b"],
    p: Gaussian,
    decoder: Decoder,
) -> Float[Tensor, "b"]:
    """The term at index t of a reverse step p: L_t, or L_0 at index 0; bits per dimension [ND21 Eq. 5-6]."""
    kl = _kl_term(schedule, x0, x_t, t, p)
    return torch.where(t == 0, _decoder_term(x0, p, decoder), kl)


def _kl_term(
    schedule: NoiseSchedule,
    x0: Float[Tensor, "b *shape"],
    x_t: Float[Tensor, "b *shape"],
    t: Int[Tensor, "b"],
    p: Gaussian,
) -> Float[Tensor, "b"]:
    return mean_flat(normal_kl(q_posterior(schedule, x0, x_t, t), p)) / math.log(2)


def _decoder_term(x0: Float[Tensor, "b *shape"], p: Gaussian, decoder: Decoder) -> Float[Tensor, "b"]:
    log_likelihood = discretized_log_likelihood if decoder == "discretized" else continuous_log_likelihood
    return -mean_flat(log_likelihood(x0, p)) / math.log(2)


def prior_term(schedule: NoiseSchedule, x0: Float[Tensor, "b *shape"]) -> Float[Tensor, "b"]:
    """KL(q(x_T | x0) || N(0, I)), in bits per dimension: no network has a part in it [ND21 Eq. 7]."""
    last = torch.full(x0.shape[:1], schedule.timesteps - 1, device=x0.device)
    mean = schedule.at("sqrt_alpha_bar", last, x0) * x0
    q = Gaussian(mean, schedule.at("log_one_minus_alpha_bar", last, x0))
    standard = Gaussian(torch.zeros_like(mean), torch.zeros_like(q.log_variance))
    return mean_flat(normal_kl(q, standard)) / math.log(2)


@dataclass(frozen=True)
class BoundStep:
    """One term of the bound: `term` in bits per dimension, and the mean squared error of eps, at `index`."""

    index: int
    term: Float[Tensor, "b"]
    mse: Float[Tensor, "b"]


@dataclass(frozen=True)
class Bound:
    """The whole bound in bits per dimension, one row per example, largest index first along n.

    Attributes:
        prior: The term that holds at the end of the forward process.
        terms: One term for each index of the chain; the last column is the decoder's.
        mse: Mean squared error of eps at each index (no unit of information).
    """

    prior: Float[Tensor, "b"]
    terms: Float[Tensor, "b n"]
    mse: Float[Tensor, "b n"]

    @property
    def total(self) -> Float[Tensor, "b"]:
        """The bound."""
        return self.prior + self.terms.sum(1)


def bound(
    denoiser: Denoiser,
    x0: Float[Tensor, "b *shape"],
    cond: Cond,
    noise: Callable[[int], Tensor],
    decoder: Decoder = "discretized",
    clip: bool = True,
) -> Bound:
    """The bound of each example, one forward for each index of the chain.

    Args:
        denoiser: Its predictions carry a log variance.
        x0: The data, in model space.
        cond: What the predictions are conditioned on.
        noise: Standard normal noise like `x0`, for the k-th term; term k = 0 is at the largest index.
        decoder: What the last step is held against.
        clip: Hold the predicted x0 to [-1, 1].
    """
    steps = list(bound_steps(denoiser, x0, cond, noise, decoder, clip))
    return Bound(
        prior=prior_term(denoiser.schedule, x0),
        terms=torch.stack([step.term for step in steps], dim=1),
        mse=torch.stack([step.mse for step in steps], dim=1),
    )


def bound_steps(
    denoiser: Denoiser,
    x0: Float[Tensor, "b *shape"],
    cond: Cond,
    noise: Callable[[int], Tensor],
    decoder: Decoder = "discretized",
    clip: bool = True,
) -> Iterator[BoundStep]:
    """The terms of `bound` as they are computed, largest index first, each with its own draw of x_t."""
    steps = torch.arange(denoiser.schedule.timesteps, device=x0.device)
    for k, index in enumerate(reversed(range(denoiser.schedule.timesteps))):
        yield _bound_step(denoiser, x0, index, steps[index].expand(len(x0)), cond, noise(k), decoder, clip)


@torch.no_grad()
def _bound_step(
    denoiser: Denoiser,
    x0: Float[Tensor, "b *shape"],
    index: int,
    t: Int[Tensor, "b"],
    cond: Cond,
    noise: Float[Tensor, "b *shape"],
    decoder: Decoder,
    clip: bool,
) -> BoundStep:
    schedule = denoiser.schedule
    x_t = q_sample(schedule, x0, t, noise)
    prediction = denoiser(x_t, t, cond)
    prediction = clipped(schedule, x_t, t, prediction) if clip else prediction
    p = reverse_step(schedule, x_t, t, prediction, clip=False)
    term = _kl_term(schedule, x0, x_t, t, p) if index else _decoder_term(x0, p, decoder)
    return BoundStep(index, term, mean_flat((prediction.eps - noise) ** 2))

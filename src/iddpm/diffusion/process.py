"""The forward process q, and one step of the reverse process."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from iddpm.diffusion.prediction import Prediction
from iddpm.diffusion.schedule import NoiseSchedule

__all__ = ["Gaussian", "q_posterior", "q_sample", "reverse_step"]


@dataclass(frozen=True)
class Gaussian:
    """A normal distribution, independent over elements; `log_variance` is a natural logarithm."""

    mean: Float[Tensor, "b *shape"]
    log_variance: Float[Tensor, "b *#shape"]


def q_sample(
    schedule: NoiseSchedule,
    x0: Float[Tensor, "b *shape"],
    t: Int[Tensor, "b"],
    noise: Float[Tensor, "b *shape"],
) -> Float[Tensor, "b *shape"]:
    """x_t ~ q(x_t | x0), from standard normal noise [ND21 Eq. 9]."""
    return schedule.at("sqrt_alpha_bar", t, x0) * x0 + schedule.at("sqrt_one_minus_alpha_bar", t, x0) * noise


def q_posterior(
    schedule: NoiseSchedule,
    x0: Float[Tensor, "b *shape"],
    x_t: Float[Tensor, "b *shape"],
    t: Int[Tensor, "b"],
) -> Gaussian:
    """q(x_{t-1} | x_t, x0); at index 0 its variance, which is 0, is that of index 1 [ND21 Eq. 10-12]."""
    return Gaussian(_posterior_mean(schedule, x0, x_t, t), schedule.at("beta_tilde_log_clipped", t, x_t))


def reverse_step(
    schedule: NoiseSchedule,
    x_t: Float[Tensor, "b *shape"],
    t: Int[Tensor, "b"],
    prediction: Prediction,
    clip: bool,
) -> Gaussian:
    """p(x_{t-1} | x_t): the posterior of the predicted x0, with the predicted variance [ND21 Eq. 2].

    Args:
        schedule: The chain in use.
        x_t: The noisy data.
        t: Index into the chain in use.
        prediction: What the denoiser says of x_t; its `log_variance` is present.
        clip: Hold the predicted x0 to [-1, 1], the range of pixel data.
    """
    assert prediction.log_variance is not None, "a reverse step needs a variance"
    x0 = prediction.x0.clamp(-1, 1) if clip else prediction.x0
    return Gaussian(_posterior_mean(schedule, x0, x_t, t), prediction.log_variance)


def _posterior_mean(
    schedule: NoiseSchedule,
    x0: Float[Tensor, "b *shape"],
    x_t: Float[Tensor, "b *shape"],
    t: Int[Tensor, "b"],
) -> Float[Tensor, "b *shape"]:
    return schedule.at("posterior_mean_coef1", t, x_t) * x0 + schedule.at("posterior_mean_coef2", t, x_t) * x_t

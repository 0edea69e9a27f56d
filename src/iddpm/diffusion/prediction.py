"""From a network's output to a prediction: x0, eps and the log variance, always consistent with one another.

At index t, x_t = sqrt(alpha_bar) x0 + sqrt(1 - alpha_bar) eps holds for every Prediction made here.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iddpm.diffusion.schedule import NoiseSchedule

__all__ = [
    "Prediction",
    "Target",
    "Variance",
    "clipped",
    "eps_from_x0",
    "learned_range",
    "target_value",
    "to_prediction",
    "v_from",
    "x0_from_eps",
]

Target = Literal["eps", "x0", "v"]
"""What the network's output stands for; v = sqrt(alpha_bar) eps - sqrt(1 - alpha_bar) x0."""

Variance = Literal["learned_range", "fixed_small", "fixed_large"]
"""The reverse step's variance: between beta_tilde and beta as the network says, beta_tilde, or beta."""


@dataclass(frozen=True)
class Prediction:
    """What is believed of the data and of the noise in x_t.

    Attributes:
        x0: The data, in model space.
        eps: The noise, of unit variance.
        log_variance: Natural logarithm of the reverse step's variance; None where the denoiser has none.
    """

    x0: Float[Tensor, "b *shape"]
    eps: Float[Tensor, "b *shape"]
    log_variance: Float[Tensor, "b *#shape"] | None


def x0_from_eps(
    schedule: NoiseSchedule,
    x_t: Float[Tensor, "b *shape"],
    t: Int[Tensor, "b"],
    eps: Float[Tensor, "b *shape"],
) -> Float[Tensor, "b *shape"]:
    """The data that eps implies [ND21 Eq. 9, solved for x0]."""
    noise_part = schedule.at("sqrt_one_minus_alpha_bar", t, x_t) * eps
    return (x_t - noise_part) / schedule.at("sqrt_alpha_bar", t, x_t)


def eps_from_x0(
    schedule: NoiseSchedule,
    x_t: Float[Tensor, "b *shape"],
    t: Int[Tensor, "b"],
    x0: Float[Tensor, "b *shape"],
) -> Float[Tensor, "b *shape"]:
    """The noise that x0 implies [ND21 Eq. 9, solved for eps]."""
    signal_part = schedule.at("sqrt_alpha_bar", t, x_t) * x0
    return (x_t - signal_part) / schedule.at("sqrt_one_minus_alpha_bar", t, x_t)


def v_from(
    schedule: NoiseSchedule,
    t: Int[Tensor, "b"],
    x0: Float[Tensor, "b *shape"],
    eps: Float[Tensor, "b *shape"],
) -> Float[Tensor, "b *shape"]:
    """The velocity. (x_t, v) is (x0, eps) turned by an angle: nothing is lost at either end of the chain."""
    return schedule.at("sqrt_alpha_bar", t, x0) * eps - schedule.at("sqrt_one_minus_alpha_bar", t, x0) * x0


def target_value(
    schedule: NoiseSchedule,
    t: Int[Tensor, "b"],
    x0: Float[Tensor, "b *shape"],
    eps: Float[Tensor, "b *shape"],
    target: Target,
) -> Float[Tensor, "b *shape"]:
    """What a network with this target should have said, or did say, given x0 and eps."""
    match target:
        case "eps":
            return eps
        case "x0":
            return x0
        case "v":
            return v_from(schedule, t, x0, eps)


def to_prediction(
    schedule: NoiseSchedule,
    x_t: Float[Tensor, "b *shape"],
    t: Int[Tensor, "b"],
    output: Float[Tensor, "b *out"],
    target: Target,
    variance: Variance,
) -> Prediction:
    """Read a network's output.

    Args:
        schedule: The chain in use; variances come from its own beta, respaced or not.
        x_t: The noisy data.
        t: Index into the chain in use.
        output: The target's channels and, where the variance is learned, as many for it, in dimension 1.
        target: What the first channels stand for.
        variance: Where the log variance comes from.
    """
    match variance:
        case "learned_range":
            output, v = output.chunk(2, dim=1)
            log_variance = learned_range(schedule, t, v)
        case "fixed_small":
            log_variance = schedule.at("beta_tilde_log_clipped", t, x_t)
        case "fixed_large":
            log_variance = schedule.at("log_beta_clipped", t, x_t)
    assert output.shape == x_t.shape, f"a network with {variance} variance put out the wrong channels"
    x0, eps = _x0_and_eps(schedule, x_t, t, output, target)
    return Prediction(x0, eps, log_variance)


def _x0_and_eps(
    schedule: NoiseSchedule,
    x_t: Float[Tensor, "b *shape"],
    t: Int[Tensor, "b"],
    value: Float[Tensor, "b *shape"],
    target: Target,
) -> tuple[Float[Tensor, "b *shape"], Float[Tensor, "b *shape"]]:
    match target:
        case "eps":
            return x0_from_eps(schedule, x_t, t, value), value
        case "x0":
            return value, eps_from_x0(schedule, x_t, t, value)
        case "v":
            signal = schedule.at("sqrt_alpha_bar", t, x_t)
            noise = schedule.at("sqrt_one_minus_alpha_bar", t, x_t)
            return signal * x_t - noise * value, noise * x_t + signal * value


def learned_range(
    schedule: NoiseSchedule, t: Int[Tensor, "b"], v: Float[Tensor, "b *shape"]
) -> Float[Tensor, "b *shape"]:
    """Log variance between log beta_tilde (v = -1) and log beta (v = 1); v is not clamped [ND21 Eq. 15]."""
    lower = schedule.at("beta_tilde_log_clipped", t, v)
    upper = schedule.at("log_beta", t, v)
    return torch.lerp(lower, upper, (v + 1) / 2)


def clipped(
    schedule: NoiseSchedule, x_t: Float[Tensor, "b *shape"], t: Int[Tensor, "b"], prediction: Prediction
) -> Prediction:
    """The prediction with x0 held to [-1, 1] and eps derived again, so that the two still fit x_t."""
    x0 = prediction.x0.clamp(-1, 1)
    return Prediction(x0, eps_from_x0(schedule, x_t, t, x0), prediction.log_variance)

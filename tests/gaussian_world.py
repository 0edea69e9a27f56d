"""The Gaussian world: data N(mu, s0^2) in every dimension, where the best denoiser is known exactly.

Given x_t, x0 is normal, so its mean, the reverse step's variance, the whole bound (the entropy, with the best
variance), the marginals of any chain and the flow that DDIM follows all have closed forms: oracles independent of
the code under test. The formulas here start from alpha_bar alone.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from iddpm.diffusion.prediction import Prediction
from iddpm.diffusion.schedule import NoiseSchedule

__all__ = ["GaussianWorld", "WorldDenoiser", "column"]


def column(values, like):
    """One float64 value for each example, shaped to multiply `like`."""
    return torch.as_tensor(values, dtype=torch.float64).reshape(-1, *[1] * (like.ndim - 1))


@dataclass(frozen=True)
class GaussianWorld:
    mu: float = 0.3
    s0: float = 0.7

    @property
    def entropy_bits_per_dim(self):
        return 0.5 * math.log2(2 * math.pi * math.e * self.s0**2)

    def variance_of_x(self, alpha_bar):
        """Variance of x_t, of mean sqrt(alpha_bar) mu."""
        return alpha_bar * self.s0**2 + 1 - alpha_bar

    def variance_of_x0(self, alpha_bar):
        """Variance of x0 given x_t."""
        return self.s0**2 * (1 - alpha_bar) / self.variance_of_x(alpha_bar)

    def best_x0(self, alpha_bar, x_t):
        """Mean of x0 given x_t."""
        gain = alpha_bar**0.5 * self.s0**2 / self.variance_of_x(alpha_bar)
        return self.mu + gain * (x_t - alpha_bar**0.5 * self.mu)

    def best_variance(self, alpha_bar):
        """Variance of x_{t-1} given x_t at each index, by the rule for joint normals."""
        prev = np.append(1.0, alpha_bar[:-1])
        ratio = alpha_bar / prev
        return self.variance_of_x(prev) * (1 - ratio) / self.variance_of_x(alpha_bar)

    def flow(self, alpha_bar, x, to=1.0):
        """Where the probability flow takes x from the level `alpha_bar` to the level `to`."""
        scale = (self.variance_of_x(to) / self.variance_of_x(alpha_bar)) ** 0.5
        return to**0.5 * self.mu + scale * (x - alpha_bar**0.5 * self.mu)

    def denoiser(self, schedule, variance="best"):
        """The best x0, with the best variance or one of the two fixed ones; beta_tilde borrows its first value."""
        alpha_bar = schedule.alpha_bar
        prev = np.append(1.0, alpha_bar[:-1])
        beta = 1 - alpha_bar / prev
        beta_tilde = beta * (1 - prev) / (1 - alpha_bar)
        beta_tilde[0] = beta_tilde[1] if len(alpha_bar) > 1 else beta[0]
        table = {"best": self.best_variance(alpha_bar), "beta": beta, "beta_tilde": beta_tilde}[variance]
        return WorldDenoiser(self, schedule, np.log(table))

    def four_corners(self, shape=()):
        """x0 and noise, one standard deviation to each side: equal weights, and exact means of quadratics."""
        x0 = self.mu + self.s0 * torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
        noise = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
        return x0.expand(*shape, 4), noise.expand(*shape, 4)


@dataclass(frozen=True)
class WorldDenoiser:
    world: GaussianWorld
    schedule: NoiseSchedule
    log_variance: np.ndarray
    target: str = "eps"

    def __call__(self, x_t, t, cond):
        alpha_bar = column(self.schedule.alpha_bar[t], x_t)
        x0 = self.world.best_x0(alpha_bar, x_t)
        eps = (x_t - alpha_bar.sqrt() * x0) / (1 - alpha_bar).sqrt()
        return Prediction(x0, eps, column(self.log_variance[t], x_t))

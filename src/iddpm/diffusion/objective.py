"""What a denoiser is trained to minimise: L_simple, L_vlb and L_hybrid, each with exactly one forward.

Each objective is called as `(denoiser, x0, t, noise, cond)`. Its parts are detached and mean the same in
every run: `mse` is the error of what the network puts out, `bound` the bound in bits per dimension as this t
estimates it (the one-step term times the length of the chain).
"""

from dataclasses import dataclass, replace
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from iddpm.diffusion.bound import Decoder, bound_term, mean_flat
from iddpm.diffusion.denoiser import Cond, TrainableDenoiser
from iddpm.diffusion.prediction import Prediction, Target, target_value
from iddpm.diffusion.process import q_sample, reverse_step
from iddpm.diffusion.schedule import NoiseSchedule
from iddpm.runtime.errors import ConfigError

__all__ = ["Hybrid", "Objective", "Simple", "Terms", "Vlb", "min_snr_weight"]


@dataclass(frozen=True)
class Terms:
    """What an objective says of each example.

    Attributes:
        loss: To be minimised in the mean.
        parts: What the loss is made of, detached.
        t: The index that each example was noised to, where there is one.
        weight: What each example counts in the mean, where t was not drawn uniformly; None: 1.
    """

    loss: Float[Tensor, "b"]
    parts: dict[str, Float[Tensor, "b"]]
    t: Int[Tensor, "b"] | None = None
    weight: Float[Tensor, "b"] | None = None

    def weighted(self, values: Float[Tensor, "*names b"]) -> Float[Tensor, "*names b"]:
        """Values whose mean estimates the mean over uniform t."""
        return values if self.weight is None else values * self.weight


@dataclass(frozen=True, kw_only=True)
class Simple:
    """L_simple: the mean squared error of the network's target [H20 Eq. 14], min-SNR weighted at will [H23].

    A learned variance gets no gradient from it.

    Attributes:
        min_snr_gamma: An error of x0 weighs as much as its signal-to-noise ratio, but never more than this;
            None: every error of the target weighs 1.
    """

    min_snr_gamma: float | None = None

    def __post_init__(self):
        if self.min_snr_gamma is not None and not self.min_snr_gamma > 0:
            what = f"min_snr_gamma={self.min_snr_gamma}: it must be above 0"
            raise ConfigError(what, "the paper uses 5; leave it out for no weights")

    def __call__(
        self,
        denoiser: TrainableDenoiser,
        x0: Float[Tensor, "b *shape"],
        t: Int[Tensor, "b"],
        noise: Float[Tensor, "b *shape"],
        cond: Cond,
    ) -> Terms:
        """The loss of each example."""
        _, prediction = _predict(denoiser, x0, t, noise, cond)
        mse = _mse(denoiser, prediction, x0, t, noise)
        loss = mse
        if self.min_snr_gamma is not None:
            snr = denoiser.schedule.at("snr", t, mse)
            loss = min_snr_weight(snr, self.min_snr_gamma, denoiser.target) * mse
        return Terms(loss, {"mse": mse.detach()}, t)


@dataclass(frozen=True, kw_only=True)
class Hybrid:
    """L_hybrid: L_simple trains the mean, a small share of the bound trains the variance alone [ND21 Eq. 16].

    The bound's mean is detached, so that the variance is learned without disturbing what L_simple learns.

    Attributes:
        bound_weight: "scaled": the one-step term times T/1000, that is 0.001 L_vlb; "unscaled": times 1.
        decoder: What the bound's last step is held against.
    """

    bound_weight: Literal["scaled", "unscaled"] = "scaled"
    decoder: Decoder = "discretized"

    def __call__(
        self,
        denoiser: TrainableDenoiser,
        x0: Float[Tensor, "b *shape"],
        t: Int[Tensor, "b"],
        noise: Float[Tensor, "b *shape"],
        cond: Cond,
    ) -> Terms:
        """The loss of each example."""
        schedule = denoiser.schedule
        x_t, prediction = _predict(denoiser, x0, t, noise, cond)
        mse = _mse(denoiser, prediction, x0, t, noise)
        p = reverse_step(schedule, x_t, t, _mean_detached(prediction), clip=False)
        term = bound_term(schedule, x0, x_t, t, p, self.decoder)
        weight = schedule.timesteps / 1000 if self.bound_weight == "scaled" else 1.0
        return Terms(mse + weight * term, _parts(schedule, mse, term), t)


@dataclass(frozen=True, kw_only=True)
class Vlb:
    """L_vlb: the bound itself, estimated from one index [ND21 Eq. 4]; it wants `SecondMoment` timesteps.

    Attributes:
        decoder: What the last step is held against.
    """

    decoder: Decoder = "discretized"

    def __call__(
        self,
        denoiser: TrainableDenoiser,
        x0: Float[Tensor, "b *shape"],
        t: Int[Tensor, "b"],
        noise: Float[Tensor, "b *shape"],
        cond: Cond,
    ) -> Terms:
        """The loss of each example, in bits per dimension."""
        schedule = denoiser.schedule
        x_t, prediction = _predict(denoiser, x0, t, noise, cond)
        p = reverse_step(schedule, x_t, t, prediction, clip=False)
        term = bound_term(schedule, x0, x_t, t, p, self.decoder)
        mse = _mse(denoiser, _mean_detached(prediction), x0, t, noise)
        return Terms(schedule.timesteps * term, _parts(schedule, mse, term), t)


Objective = Simple | Hybrid | Vlb


def min_snr_weight(snr: Float[Tensor, "b"], gamma: float, target: Target) -> Float[Tensor, "b"]:
    """What the squared error of `target` weighs, so that the error of x0 weighs min(snr, gamma) [H23]."""
    match target:
        case "x0":
            return snr.clamp(max=gamma)
        case "eps":
            return (gamma / snr).clamp(max=1)
        case "v":
            return snr.clamp(max=gamma) / (snr + 1)


def _predict(
    denoiser: TrainableDenoiser,
    x0: Float[Tensor, "b *shape"],
    t: Int[Tensor, "b"],
    noise: Float[Tensor, "b *shape"],
    cond: Cond,
) -> tuple[Float[Tensor, "b *shape"], Prediction]:
    x_t = q_sample(denoiser.schedule, x0, t, noise)
    return x_t, denoiser(x_t, t, cond)


def _mse(
    denoiser: TrainableDenoiser,
    prediction: Prediction,
    x0: Float[Tensor, "b *shape"],
    t: Int[Tensor, "b"],
    noise: Float[Tensor, "b *shape"],
) -> Float[Tensor, "b"]:
    said = target_value(denoiser.schedule, t, prediction.x0, prediction.eps, denoiser.target)
    true = target_value(denoiser.schedule, t, x0, noise, denoiser.target)
    return mean_flat((said - true) ** 2)


def _mean_detached(prediction: Prediction) -> Prediction:
    return replace(prediction, x0=prediction.x0.detach(), eps=prediction.eps.detach())


def _parts(schedule: NoiseSchedule, mse: Float[Tensor, "b"], term: Float[Tensor, "b"]) -> dict[str, Float[Tensor, "b"]]:
    return {"mse": mse.detach(), "bound": term.detach() * schedule.timesteps}

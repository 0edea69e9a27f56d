"""The one waist: (x_t, t, cond) -> Prediction. Objectives, samplers and the bound see only this."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iddpm.diffusion.prediction import Prediction, Target, Variance, to_prediction
from iddpm.diffusion.schedule import NoiseSchedule
from iddpm.runtime.errors import ConfigError

__all__ = ["Cond", "Denoiser", "Guided", "NetDenoiser", "TrainableDenoiser"]


@dataclass(frozen=True)
class Cond:
    """What a prediction is conditioned on, one row per example; None where the network takes no such input.

    Attributes:
        label: Row of the network's label table.
        low_res: The small picture that an upsampler enlarges, in model space.
        noise_level: How much noise was added to `low_res`.
    """

    label: Int[Tensor, "b"] | None = None
    low_res: Float[Tensor, "b c h w"] | None = None
    noise_level: Float[Tensor, "b"] | None = None


@runtime_checkable
class Denoiser(Protocol):
    """Anything that predicts, at index t of the chain `schedule`, the data and the noise in x_t."""

    @property
    def schedule(self) -> NoiseSchedule:
        """The chain that t indexes."""
        ...

    def __call__(self, x_t: Tensor, t: Tensor, cond: Cond) -> Prediction:
        """The prediction at x_t."""
        ...


@runtime_checkable
class TrainableDenoiser(Denoiser, Protocol):
    """A denoiser that also says what its network puts out: the space in which L_simple measures its error."""

    @property
    def target(self) -> Target:
        """What the network's output stands for."""
        ...


@dataclass(frozen=True)
class NetDenoiser:
    """A network as a denoiser.

    The network is called as `net(x_t, time, label=..., low_res=..., noise_level=...)`; `time` is the
    schedule's `model_time`, in float32 or better, since bfloat16 cannot tell neighbouring steps apart.
    """

    net: Callable[..., Any]
    schedule: NoiseSchedule
    target: Target
    variance: Variance

    def __call__(self, x_t: Float[Tensor, "b *shape"], t: Int[Tensor, "b"], cond: Cond) -> Prediction:
        """One forward of the network, read as a prediction in the dtype of `x_t`."""
        time_dtype = torch.promote_types(x_t.dtype, torch.float32)
        time = self.schedule.table("model_time", x_t.device, time_dtype)[t]
        output = self.net(x_t, time, label=cond.label, low_res=cond.low_res, noise_level=cond.noise_level)
        return to_prediction(self.schedule, x_t, t, output.to(x_t.dtype), self.target, self.variance)

    def respace(self, keep: Sequence[int]) -> "NetDenoiser":
        """The same network on the chain that visits only `keep`; it is still told the original time."""
        return replace(self, schedule=self.schedule.respace(keep))


@dataclass(frozen=True)
class Guided:
    """Classifier-free guidance: the prediction pushed away from the unconditional one [HS22 Eq. 6].

    eps = eps_null + weight (eps_label - eps_null): weight 1 is the conditional model, larger ones trade
    diversity for fidelity. (HS22 count from there: their w is weight - 1.) The variance is the conditional
    model's.

    Attributes:
        denoiser: A class-conditional denoiser trained with its labels dropped at times.
        weight: Guidance weight.
        null_label: The row of the label table that stands for "no label".
    """

    denoiser: Denoiser
    weight: float
    null_label: int

    @property
    def schedule(self) -> NoiseSchedule:
        """The chain of the guided denoiser."""
        return self.denoiser.schedule

    def __call__(self, x_t: Float[Tensor, "b *shape"], t: Int[Tensor, "b"], cond: Cond) -> Prediction:
        """Both predictions in one forward of twice the batch; a plain forward where the weight is 1.

        Raises:
            ConfigError: `cond` has no label to guide towards.
        """
        if cond.label is None:
            raise ConfigError("guidance: no label to guide towards", "give a label, or leave guidance out")
        if self.weight == 1:
            return self.denoiser(x_t, t, cond)
        null = torch.full_like(cond.label, self.null_label)
        twice = Cond(torch.cat([cond.label, null]), _twice(cond.low_res), _twice(cond.noise_level))
        both = self.denoiser(torch.cat([x_t, x_t]), torch.cat([t, t]), twice)
        # The weights add up to 1, so x0 and eps, mixed alike, still fit x_t.
        return Prediction(
            x0=_mixed(both.x0, self.weight),
            eps=_mixed(both.eps, self.weight),
            log_variance=None if both.log_variance is None else both.log_variance[: len(x_t)],
        )


def _twice(part: Tensor | None) -> Tensor | None:
    return None if part is None else torch.cat([part, part])


def _mixed(both: Float[Tensor, "twice *shape"], weight: float) -> Float[Tensor, "b *shape"]:
    labelled, null = both.chunk(2)
    return torch.lerp(null, labelled, weight)

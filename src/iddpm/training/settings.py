"""What the trainer can be told, and the learning rate as a function of the step."""

import math
from dataclasses import dataclass
from typing import Literal

from iddpm.runtime.errors import ConfigError
from iddpm.runtime.precision import Precision

__all__ = [
    "Adam",
    "AdamW",
    "ConstantRate",
    "CosineRate",
    "InverseRootRate",
    "Optimizer",
    "RateSchedule",
    "TrainConfig",
    "learning_rate",
]


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam [KB15], as the paper uses it."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay [LH19]; with a decay of 0 it is Adam."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01


Optimizer = Adam | AdamW


@dataclass(frozen=True, kw_only=True)
class ConstantRate:
    """Linear warm-up over `warmup_steps`, then constant."""

    warmup_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class CosineRate:
    """Linear warm-up, then half a cosine down to `final` times the rate, which is reached as training ends."""

    warmup_steps: int = 0
    final: float = 0.0


@dataclass(frozen=True, kw_only=True)
class InverseRootRate:
    """Linear warm-up, then falling as one over the root of the step: half the rate after four times the warm-up."""

    warmup_steps: int = 10_000

    def __post_init__(self) -> None:
        if self.warmup_steps < 1:
            raise ConfigError(
                f"train.lr-schedule.warmup-steps is {self.warmup_steps}; allowed: 1 or more",
                "set --train.lr-schedule.warmup-steps",
            )


RateSchedule = ConstantRate | CosineRate | InverseRootRate


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train. `step` counts optimizer steps; batch sizes count images."""

    steps: int
    """Optimizer steps in all."""
    batch_size: int = 128
    """Images a step, over all processes and micro-batches."""
    micro_batch_size: int | None = None
    """Images a forward and backward pass; None: the whole batch. Smaller needs less memory, and gives the same step."""
    lr: float = 1e-4
    """Learning rate, as used: nothing scales it."""
    lr_schedule: RateSchedule = ConstantRate()
    grad_clip: float | None = None
    """Largest gradient norm; None: no clipping (the norm is logged all the same)."""
    ema: tuple[float, ...] = (0.9999,)
    """Rates of the averaged weights. Commands use the first unless told otherwise."""
    ema_warmup: bool = False
    """Use min(rate, (1 + step) / (10 + step)), so that an early average is not mostly the initial weights."""
    precision: Precision = "auto"
    """float32, bf16 (autocast; weights stay float32), or auto: bf16 where this device computes it fast."""
    channels_last: Literal["auto", "yes", "no"] = "auto"
    """Memory layout of the network; auto: yes on CPUs (sampling 4 to 26% faster there, training alike) and CUDA devices."""
    seed: int = 0
    log_every: int = 50
    """Steps between two entries in the journal."""
    checkpoint_every: int = 10_000
    """Steps between two checkpoints; one is always written at the end."""
    keep_checkpoints: int = 3
    """Newest checkpoints that are kept."""
    keep_every: int | None = None
    """Checkpoints of every multiple of this step are kept for good; None: of none."""
    preview_every: int | None = None
    """Steps between two previews (a grid of samples); None: none."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "log_every", "checkpoint_every", "keep_checkpoints"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        for name in ("micro_batch_size", "preview_every", "keep_every"):
            value = getattr(self, name)
            _require(value is None or value >= 1, name, value, "1 or more, or None")
        _require(self.lr > 0 and math.isfinite(self.lr), "lr", self.lr, "a number above 0")
        _require(self.grad_clip is None or self.grad_clip > 0, "grad_clip", self.grad_clip, "a number above 0")
        _require(0 <= self.seed < 2**63, "seed", self.seed, "0 to 2^63 - 1")
        _require(
            len(self.ema) > 0 and len(set(self.ema)) == len(self.ema),
            "ema",
            self.ema,
            "one or more different rates",
        )
        _require(all(0 <= rate < 1 for rate in self.ema), "ema", self.ema, "rates from 0 to below 1")


def learning_rate(train: TrainConfig, step: int) -> float:
    """The rate used for the step that takes `step` to `step + 1`; a pure function of the step."""
    schedule = train.lr_schedule
    warm = min(1.0, (step + 1) / max(schedule.warmup_steps, 1))
    match schedule:
        case ConstantRate():
            return train.lr * warm
        case CosineRate(final=final):
            span = max(train.steps - schedule.warmup_steps, 1)
            done = min(max(step - schedule.warmup_steps, 0) / span, 1.0)
            return train.lr * warm * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * done)))
        case InverseRootRate(warmup_steps=warmup):
            return train.lr * min(warm, math.sqrt(warmup / (step + 1)))


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise ConfigError(f"train.{name} is {value}; allowed: {allowed}", f"set --train.{name.replace('_', '-')}")

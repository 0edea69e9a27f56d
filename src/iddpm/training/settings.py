"""What the trainer can be told, and the learning rate as a function of the step."""

import math
from dataclasses import dataclass
from typing import Literal

from iddpm.runtime.errors import ConfigError
from iddpm.runtime.memory import ActivationCheckpointing
from iddpm.runtime.precision import Precision
from iddpm.runtime.world import Parallel

__all__ = [
    "WIDEST",
    "Adam",
    "AdamW",
    "ConstantRate",
    "CosineRate",
    "FaultPolicy",
    "InverseRootRate",
    "Optimizer",
    "RateSchedule",
    "TrainConfig",
    "learning_rate",
]


def _require(
    holds: object, name: str, value: object, allowed: str, tree: str = "train", fix: str | None = None
) -> None:
    if not holds:
        flag = (fix or name).replace("_", "-")
        raise ConfigError(f"{tree}.{name} is {value}; allowed: {allowed}", f"set --{tree}.{flag}")


WIDEST = 0.28
"""Largest relative width of a power-function average; 0.2887 is that of the plain mean of all weights since the start."""


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam [KB15], as the paper uses it."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _check_adam(self)


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay [LH19]; with a decay of 0 it is Adam."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _check_adam(self)
        _require(
            self.weight_decay >= 0 and math.isfinite(self.weight_decay),
            "weight_decay",
            self.weight_decay,
            "0 or more",
            tree="optimizer",
        )


Optimizer = Adam | AdamW


def _check_adam(spec: Optimizer) -> None:
    for name in ("beta1", "beta2"):
        _require(0 <= getattr(spec, name) < 1, name, getattr(spec, name), "0 to below 1", tree="optimizer")
    _require(spec.eps > 0 and math.isfinite(spec.eps), "eps", spec.eps, "a number above 0", tree="optimizer")


@dataclass(frozen=True, kw_only=True)
class ConstantRate:
    """Linear warm-up over `warmup_steps`, then constant."""

    warmup_steps: int = 0

    def __post_init__(self) -> None:
        _require(self.warmup_steps >= 0, "lr_schedule.warmup_steps", self.warmup_steps, "0 or more")


@dataclass(frozen=True, kw_only=True)
class CosineRate:
    """Linear warm-up, then half a cosine down to `final` times the rate, which is reached as training ends."""

    warmup_steps: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        _require(self.warmup_steps >= 0, "lr_schedule.warmup_steps", self.warmup_steps, "0 or more")
        _require(0 <= self.final <= 1, "lr_schedule.final", self.final, "0 to 1")


@dataclass(frozen=True, kw_only=True)
class InverseRootRate:
    """Linear warm-up, then falling as one over the root of the step: half the rate after four times the warm-up."""

    warmup_steps: int = 10_000

    def __post_init__(self) -> None:
        _require(self.warmup_steps >= 1, "lr_schedule.warmup_steps", self.warmup_steps, "1 or more")


RateSchedule = ConstantRate | CosineRate | InverseRootRate


@dataclass(frozen=True, kw_only=True)
class FaultPolicy:
    """What happens when a loss or a gradient is not finite, and when a process hangs.

    A step that is not finite is always skipped and counted: no weight, average or checkpoint sees it.
    """

    patience: int = 10
    """Steps skipped in a row after which the run goes back to its last checkpoint."""
    rollbacks: int = 3
    """Times a run may go back before it stops; 0: it stops at the first."""
    lr_factor: float = 0.5
    """What the learning rate is multiplied by each time the run goes back; 1: it stays."""
    hang_seconds: float = 600.0
    """Of several processes: how long one may stand still before it is named and the job ends, to be started again."""

    def __post_init__(self) -> None:
        _require(self.patience >= 1, "faults.patience", self.patience, "1 or more")
        _require(self.rollbacks >= 0, "faults.rollbacks", self.rollbacks, "0 or more")
        _require(0 < self.lr_factor <= 1, "faults.lr_factor", self.lr_factor, "above 0, at most 1")
        _require(self.hang_seconds > 0, "faults.hang_seconds", self.hang_seconds, "a number above 0")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train. `step` counts optimizer steps; batch sizes count images."""

    steps: int
    """Optimizer steps in all."""
    batch_size: int = 128
    """Images a step, over all processes and micro-batches."""
    micro_batch_size: int | Literal["auto"] | None = None
    """Images a forward and backward pass; None: the whole batch; auto: as many as memory holds, found by a short trial.
    Smaller needs less memory, and gives the same step."""
    activation_checkpointing: ActivationCheckpointing = "none"
    """What is computed again in the backward pass instead of being kept: none; norms (cheap, about half the memory of
    maps); blocks (a fifth more time, the least memory). The step is the same."""
    lr: float = 1e-4
    """Learning rate, as used: nothing scales it."""
    lr_schedule: RateSchedule = ConstantRate()
    grad_clip: float | None = None
    """Largest gradient norm; None: no clipping (the norm is logged all the same)."""
    ema: tuple[float, ...] = (0.9999,)
    """Rates of the averaged weights. Commands use the first unless told otherwise."""
    ema_warmup: bool = False
    """Use min(rate, (1 + step) / (10 + step)), so that an early average is not mostly the initial weights."""
    ema_widths: tuple[float, ...] = ()
    """Relative widths of power-function averages kept beside them, e.g. 0.05 0.1: from snapshots of two of them averages of
    other widths can be made after training (--weights power-W)."""
    snapshot_every: int | None = None
    """Steps between two snapshots of the power-function averages; None: as checkpoints."""
    precision: Precision = "auto"
    """float32, tf32, bf16, fp16 (the network's forward and backward pass; weights, averages and losses stay float32), or
    auto: bf16 where this device computes it fast, else float32."""
    parallel: Parallel = "ddp"
    """How weights lie over several processes: ddp: whole on each; fsdp: split over all; hsdp: split over the processes of
    each machine. Checkpoints are the same."""
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
    keep_best: int | None = None
    """Checkpoints of the lowest held-out bits per dim that are kept beside them; None: none. Wants evaluate_every."""
    preview_every: int | None = None
    """Steps between two previews (a grid of samples); None: none."""
    evaluate_every: int | None = None
    """Steps between two measurements of bits per dim on held-out pictures; None: none."""
    evaluate_num: int = 64
    """Held-out pictures measured each time; fewer where fewer are held out."""
    evaluate_steps: int = 50
    """Steps of the chain whose bound is measured, evenly spaced; at most T. Fewer are faster and give a looser bound."""
    gradient_noise_scale: bool = False
    """Journal the batch size at which noise and signal of the gradient are equal [MKAT18], in images. Splits a batch in
    two micro-batches where it is not split already."""
    faults: FaultPolicy = FaultPolicy()
    """What happens when a loss or a gradient is not finite, or a process hangs."""

    def __post_init__(self) -> None:
        for name in (
            "steps",
            "batch_size",
            "log_every",
            "checkpoint_every",
            "keep_checkpoints",
            "evaluate_num",
            "evaluate_steps",
        ):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        for name in ("preview_every", "keep_every", "keep_best", "evaluate_every", "snapshot_every"):
            value = getattr(self, name)
            _require(value is None or value >= 1, name, value, "1 or more, or None")
        micro = self.micro_batch_size
        _require(micro in (None, "auto") or micro >= 1, "micro_batch_size", micro, "1 or more, auto, or None")
        _require(
            self.keep_best is None or (self.evaluate_every and self.checkpoint_every % self.evaluate_every == 0),
            "keep_best",
            self.keep_best,
            "None, unless every checkpoint is measured (checkpoint_every is a multiple of evaluate_every)",
            fix="evaluate_every",
        )
        _require(
            not self.gradient_noise_scale or self.batch_size >= 2,
            "gradient_noise_scale",
            True,
            "False where a batch is one image",
        )
        _require(
            all(0 < width <= WIDEST for width in self.ema_widths) and _differ(self.ema_widths),
            "ema_widths",
            self.ema_widths,
            f"widths above 0, at most {WIDEST}, different in six digits",
        )
        _require(
            self.snapshot_every is None or self.ema_widths,
            "snapshot_every",
            self.snapshot_every,
            "None, unless ema_widths are given",
        )
        _require(self.lr > 0 and math.isfinite(self.lr), "lr", self.lr, "a number above 0")
        _require(self.grad_clip is None or self.grad_clip > 0, "grad_clip", self.grad_clip, "a number above 0")
        _require(0 <= self.seed < 2**63, "seed", self.seed, "0 to 2^63 - 1")
        _require(len(self.ema) > 0 and _differ(self.ema), "ema", self.ema, "one or more rates, different in six digits")
        _require(all(0 <= rate < 1 for rate in self.ema), "ema", self.ema, "rates from 0 to below 1")


def _differ(values: tuple[float, ...]) -> bool:
    return len({f"{value:g}" for value in values}) == len(values)  # as they are named in checkpoints


def learning_rate(train: TrainConfig, step: int) -> float:
    """The rate for the step that takes `step` to `step + 1`; a pure function of the step, until a run goes back."""
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

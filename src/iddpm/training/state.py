"""All that a training run consists of at a step, and its way to the disk and back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from iddpm.artifacts.checkpoint import Checkpoint, load_state, load_tensors
from iddpm.runtime.errors import RunError
from iddpm.runtime.precision import resolve_precision
from iddpm.runtime.seeds import Stream, derived_seed
from iddpm.training.ema import Ema
from iddpm.training.guard import Guard
from iddpm.training.optimizer import build_optimizer, load_optimizer_tensors, optimizer_tensors
from iddpm.training.settings import Optimizer, TrainConfig
from iddpm.training.spent import Spent
from iddpm.training.task import Task

__all__ = ["TrainState", "load_checkpoint", "new_state", "state_scalars", "state_tensors"]


@dataclass
class TrainState:
    """A run between two steps.

    Attributes:
        step: Steps done.
        rollbacks: Times the run has gone back to a checkpoint because steps had to be skipped.
        lr_factor: What the learning rate is multiplied by since; 1 until then.
        back_at: The step it went back to last.
    """

    task: Task
    optimizer: torch.optim.Optimizer
    ema: Ema
    guard: Guard
    spent: Spent = field(default_factory=Spent)
    step: int = 0
    rollbacks: int = 0
    lr_factor: float = 1.0
    back_at: int | None = None

    def draw_seed(self, seed: int) -> int:
        """The seed of t, noise and dropout: a run that has gone back does not meet the same luck again."""
        return seed if self.rollbacks == 0 else derived_seed(seed, Stream.ROLLBACK, self.rollbacks)


def new_state(task: Task, optimizer: Optimizer, train: TrainConfig) -> TrainState:
    """The state before the first step."""
    device = next(task.module.parameters()).device
    scaled = resolve_precision(train.precision, device) == "fp16"
    return TrainState(
        task=task,
        optimizer=build_optimizer(optimizer, task.module, train.lr),
        ema=Ema(task.module, train.ema, train.ema_warmup, train.ema_widths),
        guard=Guard(device, train.faults.patience, scaled),
    )


def state_tensors(state: TrainState) -> dict[str, Mapping[str, Tensor]]:
    """The tensors of a checkpoint, by group. They are the live ones, not copies."""
    return {
        "model": state.task.module.state_dict(),
        "optimizer": optimizer_tensors(state.optimizer, state.task.module),
        **{name: state.ema.state_dict(name) for name in state.ema.names},
        "task": state.task.state_dict(),
    }


def state_scalars(state: TrainState) -> dict[str, Any]:
    """The rest of a checkpoint, as JSON."""
    return {
        "step": state.step,
        "rollbacks": state.rollbacks,
        "lr_factor": state.lr_factor,
        "back_at": state.back_at,
        "guard": state.guard.state_dict(),
        "spent": state.spent.to_json(),
    }


def load_checkpoint(state: TrainState, checkpoint: Checkpoint) -> None:
    """Put everything of a checkpoint into a state.

    Raises:
        RunError: The checkpoint is of another network, or was written by a version that kept less.
    """
    scalars = load_state(checkpoint)
    missing = {"step", "rollbacks", "lr_factor", "back_at", "guard", "spent"} - scalars.keys()
    if missing:
        raise RunError(
            f"{checkpoint.path}: its state lacks {', '.join(sorted(missing))}", "go on with the version that wrote it"
        )
    try:
        state.task.module.load_state_dict(load_tensors(checkpoint, "model"))
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"{checkpoint.path} does not fit this network: {reason}", "start a new run directory") from error
    for name in state.ema.names:
        state.ema.load_state_dict(name, load_tensors(checkpoint, name))
    load_optimizer_tensors(state.optimizer, state.task.module, load_tensors(checkpoint, "optimizer"))
    state.task.load_state_dict(load_tensors(checkpoint, "task"))
    state.step, state.rollbacks, state.lr_factor = scalars["step"], scalars["rollbacks"], scalars["lr_factor"]
    state.back_at = scalars["back_at"]
    state.guard.load_state_dict(scalars["guard"])
    state.spent.load(scalars["spent"])

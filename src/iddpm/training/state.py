"""All that a training run consists of at a step, and its way to the disk and back."""

import shutil
from dataclasses import dataclass
from typing import Any

import torch

from iddpm.artifacts.checkpoint import Checkpoint, list_checkpoints, load_state, load_tensors, save_checkpoint
from iddpm.artifacts.run_dir import RunDir
from iddpm.runtime.errors import RunError
from iddpm.training.ema import Ema, ema_name
from iddpm.training.optimizer import build_optimizer, load_optimizer_tensors, optimizer_tensors
from iddpm.training.settings import Optimizer, TrainConfig
from iddpm.training.task import Task

__all__ = ["TrainState", "load_checkpoint", "new_state", "save_state"]


@dataclass
class TrainState:
    """A run between two steps. `elapsed_seconds` sums over all sessions."""

    task: Task
    optimizer: torch.optim.Optimizer
    ema: Ema
    step: int = 0
    elapsed_seconds: float = 0.0


def new_state(task: Task, optimizer: Optimizer, train: TrainConfig) -> TrainState:
    """The state before the first step."""
    return TrainState(
        task=task,
        optimizer=build_optimizer(optimizer, task.module, train.lr),
        ema=Ema(task.module, train.ema, train.ema_warmup),
    )


def save_state(state: TrainState, run: RunDir, train: TrainConfig, config: dict[str, Any]) -> Checkpoint:
    """Write a checkpoint with everything in it, then remove those beyond `keep_checkpoints`, but for every `keep_every`th step."""
    groups = {
        "model": state.task.module.state_dict(),
        "optimizer": optimizer_tensors(state.optimizer, state.task.module),
    }
    groups |= {ema_name(rate): state.ema.state_dict(rate) for rate in train.ema}
    groups["task"] = state.task.state_dict()
    scalars = {"step": state.step, "elapsed_seconds": state.elapsed_seconds}
    saved = save_checkpoint(run.checkpoints, state.step, groups, scalars, config)
    # A newer one is a damaged one that was passed over on resume: it must not push out what is good.
    upto = [checkpoint for checkpoint in list_checkpoints(run.checkpoints) if checkpoint.step <= state.step]
    for old in upto[: -train.keep_checkpoints]:
        if train.keep_every is None or old.step % train.keep_every:
            shutil.rmtree(old.path, ignore_errors=True)
    return saved


def load_checkpoint(state: TrainState, checkpoint: Checkpoint, train: TrainConfig) -> None:
    """Put everything of a checkpoint into a new state.

    Raises:
        RunError: The checkpoint is of another network.
    """
    try:
        state.task.module.load_state_dict(load_tensors(checkpoint, "model"))
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"{checkpoint.path} does not fit this network: {reason}", "start a new run directory") from error
    for rate in train.ema:
        state.ema.load_state_dict(rate, load_tensors(checkpoint, ema_name(rate)))
    load_optimizer_tensors(state.optimizer, state.task.module, load_tensors(checkpoint, "optimizer"))
    scalars = load_state(checkpoint)
    state.step, state.elapsed_seconds = scalars["step"], scalars["elapsed_seconds"]
    state.task.load_state_dict(load_tensors(checkpoint, "task"))

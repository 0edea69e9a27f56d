"""All that a training run consists of at a step, and its way to the disk and back."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from iddpm.artifacts.checkpoint import Checkpoint, load_state, load_tensors
from iddpm.runtime.errors import RunError
from iddpm.runtime.precision import resolve_precision
from iddpm.runtime.seeds import Stream, derived_seed
from iddpm.runtime.world import World
from iddpm.training.distribution import Distribution, Replicated
from iddpm.training.ema import Ema
from iddpm.training.guard import Guard
from iddpm.training.optimizer import build_optimizer, load_optimizer_tensors, optimizer_tensors
from iddpm.training.settings import Optimizer, TrainConfig
from iddpm.training.spent import Spent
from iddpm.training.task import Task

__all__ = [
    "TrainState",
    "load_checkpoint",
    "new_state",
    "state_scalars",
    "state_tensors",
    "whole_tensors",
    "written_here",
]


@dataclass
class TrainState:
    """A run between two steps.

    Attributes:
        distribution: Where the weights of the task's module lie.
        step: Steps done.
        rollbacks: Times the run has gone back to a checkpoint because steps had to be skipped.
        lr_factor: What the learning rate is multiplied by since; 1 until then.
        back_at: The step it went back to last.
    """

    task: Task
    distribution: Distribution
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


def new_state(
    task: Task, optimizer: Optimizer, train: TrainConfig, distribution: Distribution | None = None
) -> TrainState:
    """The state before the first step; of one process where nothing is said of the distribution."""
    distribution = distribution or Replicated(task.module)
    device = next(task.module.parameters()).device
    scaled = resolve_precision(train.precision, device) == "fp16"
    return TrainState(
        task=task,
        distribution=distribution,
        optimizer=build_optimizer(optimizer, distribution.weights, train.lr),
        ema=Ema(distribution.weights, train.ema, train.ema_warmup, train.ema_widths),
        guard=Guard(device, train.faults.patience, scaled),
    )


def state_tensors(state: TrainState) -> dict[str, Mapping[str, Tensor]]:
    """The tensors of a checkpoint, by group: this process's parts. They are the live ones, not copies."""
    weights = state.distribution.weights
    return {
        "model": {name: p.detach() for name, p in weights.named_parameters()} | dict(weights.named_buffers()),
        "optimizer": optimizer_tensors(state.optimizer, weights),
        **{name: state.ema.state_dict(name) for name in state.ema.names},
        "task": state.task.state_dict(),
    }


def whole_tensors(state: TrainState, names: Sequence[str], wanted: Container[str]) -> dict[str, dict[str, Tensor]]:
    """Groups of `state_tensors` with whole tensors; those that are not wanted here are gathered for the others alone.

    Every process calls this at the same moment with the same names.
    """
    parts, module = state_tensors(state), {name for name, _ in state.distribution.weights.named_parameters()}
    groups: dict[str, dict[str, Tensor]] = {name: {} for name in names if name in wanted}
    for group in names:
        for key, part in parts[group].items():
            name = key if key in module else key.rpartition("/")[0]
            lies_so = name in module and part.ndim > 0
            whole = state.distribution.whole(name, part) if lies_so else part
            if group in groups:
                # What was gathered for the disk need not fill the device.
                groups[group][key] = whole if whole is part else whole.cpu()
    return groups


def written_here(state: TrainState, names: Sequence[str], world: World) -> dict[str, dict[str, Tensor]]:
    """The groups that this process writes of a checkpoint: about as much in each."""
    tensors = state_tensors(state)
    load, mine = [0] * world.size, set[str]()
    for name in sorted(names, key=lambda name: -len(tensors[name])):
        rank = load.index(min(load))
        load[rank] += len(tensors[name])
        if rank == world.rank:
            mine.add(name)
    return whole_tensors(state, names, mine)


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
    weights = state.distribution.weights
    _load_model(state, load_tensors(checkpoint, "model"), checkpoint)
    for name in state.ema.names:
        state.ema.load_state_dict(name, _parts(state, load_tensors(checkpoint, name)))
    load_optimizer_tensors(state.optimizer, weights, _parts(state, load_tensors(checkpoint, "optimizer")))
    state.task.load_state_dict(load_tensors(checkpoint, "task"))
    state.step, state.rollbacks, state.lr_factor = scalars["step"], scalars["rollbacks"], scalars["lr_factor"]
    state.back_at = scalars["back_at"]
    state.guard.load_state_dict(scalars["guard"])
    state.spent.load(scalars["spent"])


@torch.no_grad()
def _load_model(state: TrainState, tensors: Mapping[str, Tensor], checkpoint: Checkpoint) -> None:
    module = state.task.module
    shapes = {name: tensor.shape for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    wrong = [name for name in {**shapes, **tensors} if name not in tensors or shapes.get(name) != tensors[name].shape]
    if wrong:
        reason = f"{wrong[0]} is {_size(tensors, wrong[0])} there, and {_size(shapes, wrong[0])} here"
        raise RunError(f"{checkpoint.path} does not fit this network: {reason}", "start a new run directory")
    parts = _parts(state, tensors)
    for name, own in (*state.distribution.weights.named_parameters(), *module.named_buffers()):
        own.copy_(parts[name])


def _size(found: Mapping[str, Any], name: str) -> str:
    if name not in found:
        return "missing"
    return "x".join(map(str, getattr(found[name], "shape", found[name]))) or "one number"


def _parts(state: TrainState, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """This process's part of each tensor that lies as a parameter does; of any other, all of it."""
    part, names = state.distribution.part, {name for name, _ in state.distribution.weights.named_parameters()}

    def own(key: str, tensor: Tensor) -> Tensor:
        name = key if key in names else key.rpartition("/")[0]
        return part(name, tensor) if name in names and tensor.ndim else tensor

    return {key: own(key, tensor) for key, tensor in tensors.items()}

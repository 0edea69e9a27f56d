"""`--micro-batch auto`: as many images at a time as memory holds, found by a short trial."""

import contextlib

import torch

from iddpm.artifacts.run_dir import RunDir
from iddpm.cost.memory import fitting_micro_batch, free_bytes
from iddpm.data.loader import Batches
from iddpm.experiment.config import RunConfig
from iddpm.runtime.machine import describe_device
from iddpm.runtime.precision import arithmetic, resolve_precision
from iddpm.runtime.seeds import Draws
from iddpm.runtime.telling import Listener
from iddpm.runtime.world import World
from iddpm.training.distribution import Replicated
from iddpm.training.state import TrainState, state_tensors

__all__ = ["fits", "micro_batch"]


def micro_batch(
    config: RunConfig, state: TrainState, batches: Batches, world: World, run: RunDir, listener: Listener
) -> tuple[int | None, bool]:
    """The micro-batch that the config asks for; where it asks for "auto", the one found before on such a device, else one
    that fits now; and whether it was found now.

    Raises:
        ConfigError: Not even one image fits.
    """
    asked = config.train.micro_batch_size
    if asked != "auto":
        return asked, False
    known = world.channel.first(lambda: _found_before(run, fits(config, world)))
    if known is not None:
        return known, False
    listener.say("finding out how many images fit into memory at a time ...")
    fit = fitting_micro_batch(
        lambda count: _pass(config, state, batches, world, count),
        len(range(config.train.batch_size)[world.rows(config.train.batch_size)]),
        _free(world),
        world.device,
        reserve_bytes=_still_to_come(config, state, world.device),
    )
    listener.say(
        f"micro-batch: {fit.micro_batch} of {config.train.batch_size} images; a pass needs about "
        f"{fit.peak_bytes / 2**30:.2f} GiB of {fit.free_bytes / 2**30:.2f} GiB free"
    )
    return min(world.channel.gather(fit.micro_batch)), True


def _free(world: World) -> int:
    """This process's part of what is free: those of a machine share its memory, but have a GPU each."""
    return free_bytes(world.device) // (world.size_of_machine if world.device.type == "cpu" else 1)


def fits(config: RunConfig, world: World) -> str:
    """What decides how many images fit, but for what else is in memory."""
    precision = resolve_precision(config.train.precision, world.device)
    several = "" if world.size == 1 else f", {world.size} processes"
    return f"{describe_device(world.device)}, {precision}, {config.train.activation_checkpointing}{several}"


def _found_before(run: RunDir, conditions: str) -> int | None:
    """What the run came to last under these conditions: the same again resumes to the very bits."""
    found = [e for e in run.events() if e["event"] == "micro_batch" and e.get("fits") == conditions]
    return found[-1]["micro_batch_size"] if found else None


def _pass(config: RunConfig, state: TrainState, batches: Batches, world: World, count: int) -> None:
    """A forward and a backward pass of so many images, which leaves nothing behind."""
    batch = batches.at(0, 0, count).to(world.device)
    spread = state.distribution
    alone = spread.alone() if isinstance(spread, Replicated) else contextlib.nullcontext()
    try:
        with arithmetic(config.train.precision, world.device), alone:
            terms = state.task(batch, Draws(config.train.seed, 0, batch.place))
            terms.weighted(terms.loss).sum().backward()
    finally:
        state.optimizer.zero_grad(set_to_none=True)


def _still_to_come(config: RunConfig, state: TrainState, device: torch.device) -> int:
    """Bytes that training will need beside a pass.

    They are the optimizer's moments, the gradients of earlier micro-batches, a network for each hook that has one, and on a
    CPU the copy that is being saved.
    """
    weights = sum(p.numel() * p.element_size() for p in state.task.module.parameters())
    hooks = sum(every is not None for every in (config.train.preview_every, config.train.evaluate_every))
    moments = 0 if state.optimizer.state else 2 * weights
    to_come = moments + (1 + hooks) * weights
    if device.type != "cpu":
        return to_come
    held = sum(t.numel() * t.element_size() for group in state_tensors(state).values() for t in group.values())
    return to_come + held + moments

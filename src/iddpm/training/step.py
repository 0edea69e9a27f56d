"""One optimizer step: draws, forward and backward by micro-batches, update, averages."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from iddpm.data.loader import Batch
from iddpm.diffusion.objective import Terms
from iddpm.runtime.seeds import Draws, Stream, derived_seed
from iddpm.runtime.world import World
from iddpm.training.meter import PhaseClock
from iddpm.training.settings import TrainConfig, learning_rate
from iddpm.training.state import TrainState

__all__ = ["train_step"]


def train_step(
    state: TrainState, batch: Batch, config: TrainConfig, world: World, clock: PhaseClock
) -> tuple[list[Terms], Tensor]:
    """Take one step in place.

    The result does not depend on the micro-batch size but for rounding: draws go by the example's index in the
    global batch, and each micro-batch adds its share of one mean.

    Returns:
        The terms of each micro-batch, and the gradient's norm before clipping.
    """
    draws = Draws(config.seed, state.step, batch.place)
    terms = []
    for number, rows in enumerate(_micro_batches(len(batch), config.micro_batch_size)):
        # Only dropout uses torch's own generator (DESIGN section 3).
        torch.manual_seed(derived_seed(config.seed, Stream.DROPOUT, state.step, world.rank, number))
        with clock.phase("forward"):
            micro = state.task(batch[rows], draws[rows])
        with clock.phase("backward"):
            (micro.weighted(micro.loss).sum() / len(batch)).backward()
        terms.append(micro)
    with clock.phase("optimizer"):
        norm = _update(state, config)
    with clock.phase("ema"):
        state.ema.update(state.step)
    state.task.after_step(terms)
    state.step += 1
    return terms, norm


def _micro_batches(size: int, micro: int | None) -> Iterator[slice]:
    micro = micro or size
    return (slice(start, min(start + micro, size)) for start in range(0, size, micro))


def _update(state: TrainState, config: TrainConfig) -> Tensor:
    parameters = [p for p in state.task.module.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if config.grad_clip is not None:
        nn.utils.clip_grads_with_norm_(parameters, config.grad_clip, norm)
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate(config, state.step)
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    return norm

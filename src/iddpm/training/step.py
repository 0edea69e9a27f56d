"""One optimizer step: draws, forward and backward by micro-batches, update, averages."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from iddpm.data.loader import Batch
from iddpm.diffusion.objective import Terms
from iddpm.runtime.seeds import Draws, Stream, derived_seed
from iddpm.runtime.world import World
from iddpm.training.clock import PhaseClock
from iddpm.training.exchange import exchanged
from iddpm.training.optimizer import take_step
from iddpm.training.settings import TrainConfig, learning_rate
from iddpm.training.state import TrainState

__all__ = ["StepResult", "micro_batches", "train_step"]


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step leaves to be read, on the device.

    Attributes:
        terms: Of each micro-batch; of several processes: of the global batch, in order.
        grad_norm: Of the mean gradient, before clipping.
        skipped: 1 where the step was skipped, its loss or gradient not being finite; else 0.
        asked: What each process asked of all (see `train_step`), a row a process.
        first_norm: Norm of the first micro-batch's own mean gradient (of several processes: the root of their mean square),
            where the noise scale is asked for.
        first_size: Images in such a micro-batch.
    """

    terms: Sequence[Terms]
    grad_norm: Float[Tensor, ""]
    skipped: Float[Tensor, ""]
    asked: Float[Tensor, "processes asks"]
    first_norm: Float[Tensor, ""] | None = None
    first_size: int = 0


def train_step(
    state: TrainState,
    batch: Batch,
    config: TrainConfig,
    world: World,
    clock: PhaseClock,
    micro_batch_size: int | None = None,
    asks: Sequence[float] = (),
) -> StepResult:
    """Take one step in place.

    The result does not depend on the number of processes and the micro-batch size but for rounding: draws go by the
    example's index in the global batch, and each micro-batch adds its share of one mean. A step whose loss or gradient is
    not finite changes no weight and no moment.

    Args:
        state: What is trained.
        batch: The step's images; of several processes: this one's.
        config: How.
        world: Which process this is.
        clock: Takes the seconds by phase.
        micro_batch_size: Images a forward and backward pass; None: all.
        asks: Numbers that all processes are to know.
    """
    rows = micro_batches(len(batch), micro_batch_size, config.gradient_noise_scale)
    own, first_norm = _accumulate(state, batch, config, world, clock, rows)
    with clock.phase("exchange"):
        numbers = torch.tensor(list(asks)).to(own[0].loss.device, non_blocking=True)
        if first_norm is not None:
            numbers = torch.cat([numbers, first_norm.square()[None]])
        terms, asked = exchanged(own, config.batch_size, numbers, world)
    with clock.phase("optimizer"):
        norm, skipped = _update(state, config, _mean_loss(terms))
    with clock.phase("ema"):
        state.ema.update(state.step)
    state.task.after_step(terms)
    state.step += 1
    state.spent.add_images(config.batch_size)
    return StepResult(
        terms=terms,
        grad_norm=norm,
        skipped=skipped,
        asked=asked[:, : len(asks)],
        first_norm=None if first_norm is None else asked[:, -1].mean().sqrt(),
        first_size=len(own[0].loss),
    )


def micro_batches(size: int, micro: int | None, at_least_two: bool = False) -> list[slice]:
    """The rows of each micro-batch."""
    micro = min(micro or size, -(-size // 2) if at_least_two else size)
    return [slice(start, min(start + micro, size)) for start in range(0, size, micro)]


def _accumulate(
    state: TrainState, batch: Batch, config: TrainConfig, world: World, clock: PhaseClock, parts: Sequence[slice]
) -> tuple[list[Terms], Tensor | None]:
    """The gradient of the global batch's mean loss, times the loss scale where there is one."""
    seed, scale, spread = state.draw_seed(config.seed), state.guard.loss_scale, state.distribution
    draws = Draws(seed, state.step, batch.place)
    terms, first_norm = [], None
    for number, rows in enumerate(parts):
        # Only dropout uses torch's own generator (DESIGN section 3).
        torch.manual_seed(derived_seed(seed, Stream.DROPOUT, state.step, world.rank, number))
        with spread.accumulating() if number < len(parts) - 1 else contextlib.nullcontext():
            with clock.phase("forward"):
                micro = state.task(batch[rows], draws[rows])
            with clock.phase("backward"):
                share = micro.weighted(micro.loss).sum() * (spread.loss_factor / config.batch_size)
                (share if scale is None else share * scale).backward()
        terms.append(micro)
        if number == 0 and config.gradient_noise_scale:
            own_share = spread.loss_factor * len(micro.loss) / config.batch_size
            first_norm = _unscaled(spread.norm(spread.gradients()), scale) / own_share
    return terms, first_norm


def _update(state: TrainState, config: TrainConfig, loss: Tensor) -> tuple[Tensor, Tensor]:
    scale = state.guard.loss_scale
    norm = _unscaled(state.distribution.norm(state.distribution.gradients()), scale)
    divisor = scale
    if config.grad_clip is not None:
        excess = (norm / config.grad_clip).clamp(min=1.0)
        divisor = excess if scale is None else scale * excess
    skipped = state.guard.judge(loss, norm)
    take_step(state.optimizer, learning_rate(config, state.step) * state.lr_factor, divisor, skipped)
    return norm, skipped


def _unscaled(norm: Tensor, scale: Tensor | None) -> Tensor:
    return norm if scale is None else norm / scale


def _mean_loss(terms: Sequence[Terms]) -> Tensor:
    losses = torch.cat([micro.loss.detach() for micro in terms])
    return losses.mean()

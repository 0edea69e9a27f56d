"""Pictures from a denoiser: any number, in batches of one fixed size, each a function of (seed, index) alone.

Batches do not depend on one another, so that they are shared out over all processes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from iddpm.data.codec import PixelCodec
from iddpm.diffusion.denoiser import Cond, Denoiser
from iddpm.diffusion.samplers import Sampler
from iddpm.runtime.seeds import Draws, Stream
from iddpm.runtime.sharing import Tally, share
from iddpm.runtime.telling import SILENT, Listener
from iddpm.runtime.world import World

__all__ = ["Order", "default_batch_size", "draw_batches", "generate"]


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to make: `num` pictures of `shape` (channels, height, width), picture i from (seed, first + i).

    `labels` and `low_res` have a row for each picture, or are None for a network that takes none. Batches are padded
    to `batch_size`, so that the last one runs through the same kernels as the others.
    """

    num: int
    shape: tuple[int, int, int]
    seed: int
    batch_size: int
    first: int = 0
    labels: Int[Tensor, "n"] | None = None
    low_res: UInt8[Tensor, "n c h w"] | None = None

    @property
    def batches(self) -> int:
        """How many there are; they are numbered from 0."""
        return -(-self.num // self.batch_size)

    def rows(self, number: int) -> slice:
        """The pictures of a batch."""
        start = number * self.batch_size
        return slice(start, min(start + self.batch_size, self.num))


def default_batch_size(device: torch.device, side: int) -> int:
    """Pictures at once: enough to fill the device, few enough to fit it; a function of its kind and of the side."""
    at_32 = 256 if device.type == "cuda" else 16
    return max(1, min(at_32, at_32 * 32 * 32 // (side * side)))


def generate(
    denoiser: Denoiser, sampler: Sampler, order: Order, world: World, listener: Listener = SILENT
) -> UInt8[np.ndarray, "n h w c"]:
    """Sample an order in memory, over all processes; each of them has all of it then.

    Args:
        denoiser: On the chain that is to be walked; its network in evaluation mode.
        sampler: How to walk it.
        order: What to make.
        world: Where to compute.
        listener: Told the network evaluations done, of all.
    """
    channels, height, width = order.shape
    images = torch.zeros((order.num, height, width, channels), dtype=torch.uint8)

    def keep(number: int, batch: UInt8[np.ndarray, "b h w c"]) -> None:
        images[order.rows(number)] = torch.from_numpy(batch)

    draw_batches(denoiser, sampler, order, range(order.batches), world, keep, listener)
    return world.sum(images).numpy()


def draw_batches(
    denoiser: Denoiser,
    sampler: Sampler,
    order: Order,
    numbers: Sequence[int],
    world: World,
    keep: Callable[[int, UInt8[np.ndarray, "b h w c"]], object],
    listener: Listener = SILENT,
) -> None:
    """Sample some batches of an order, each in the process that is free; return in all of them once all are kept.

    Args:
        denoiser: As `generate`; `sampler`, `order`, `world` and `listener` likewise.
        sampler: How to walk its chain.
        order: What to make.
        numbers: The batches; the others of the order count as done.
        world: Where to compute.
        keep: Given the number and the pictures of each batch that was drawn in this process.
        listener: Told the network evaluations done, of all.

    Raises:
        IddpmError: What `keep` raised in one process, in all.
    """
    steps, all_batches = denoiser.schedule.timesteps, order.batches
    detail = f"steps of {all_batches} batches" + (f", {world.size} processes" if world.size > 1 else "")
    done = (all_batches - len(numbers)) * steps
    tally = Tally(world, listener, "sampling", all_batches * steps, done, detail)

    def draw(number: int) -> None:
        keep(number, _batch(denoiser, sampler, order, number, world.device, lambda: tally.add(1)))

    share(world, numbers, draw)
    tally.finish()


@torch.inference_mode()
def _batch(
    denoiser: Denoiser, sampler: Sampler, order: Order, number: int, device: torch.device, told: Callable[[], object]
) -> UInt8[np.ndarray, "b h w c"]:
    """One batch of an order, without the pictures that only fill it up."""
    rows = order.rows(number)
    index = torch.arange(rows.start, rows.start + order.batch_size)
    x = _walk(denoiser, sampler, order, index, device, told)
    return PixelCodec().decode(x).permute(0, 2, 3, 1).cpu().numpy()[: rows.stop - rows.start]


def _walk(
    denoiser: Denoiser,
    sampler: Sampler,
    order: Order,
    index: Int[Tensor, "b"],
    device: torch.device,
    told: Callable[[], object],
) -> Float[Tensor, "b c h w"]:
    """From noise to a batch of pictures in model space; `told` of each step done."""
    rows = index.clamp(max=order.num - 1)
    index = (index + order.first).to(device)
    cond = Cond(
        label=None if order.labels is None else order.labels[rows].to(device),
        low_res=None if order.low_res is None else PixelCodec().encode(order.low_res[rows].to(device)),
    )
    x = Draws(order.seed, 0, index).normal(Stream.SAMPLE_START, *order.shape)
    for state in sampler(denoiser, x, cond, _step_noise(order, index)):
        x = state.x
        told()
    return x


def _step_noise(order: Order, index: Int[Tensor, "b"]) -> Callable[[int], Tensor]:
    return lambda step: Draws(order.seed, step, index).normal(Stream.SAMPLE_NOISE, *order.shape)

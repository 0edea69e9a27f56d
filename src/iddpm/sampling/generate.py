"""Pictures from a denoiser: any number, in batches of one fixed size, each a function of (seed, index) alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from iddpm.data.codec import PixelCodec
from iddpm.diffusion.denoiser import Cond, Denoiser
from iddpm.diffusion.samplers import Sampler
from iddpm.runtime.seeds import Draws, Stream
from iddpm.runtime.telling import SILENT, Listener

__all__ = ["Order", "default_batch_size", "generate"]


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


def default_batch_size(device: torch.device, side: int) -> int:
    """Pictures at once: enough to fill the device, few enough to fit it; a function of its kind and of the side."""
    at_32 = 256 if device.type == "cuda" else 16
    return max(1, min(at_32, at_32 * 32 * 32 // (side * side)))


@torch.inference_mode()
def generate(
    denoiser: Denoiser, sampler: Sampler, order: Order, device: torch.device, listener: Listener = SILENT
) -> UInt8[np.ndarray, "n h w c"]:
    """Sample an order.

    Args:
        denoiser: On the chain that is to be walked; its network in evaluation mode.
        sampler: How to walk it.
        order: What to make.
        device: Where to compute.
        listener: Told the network evaluations done, of all.
    """
    pictures = []
    steps = denoiser.schedule.timesteps
    batches = -(-order.num // order.batch_size)

    def tell(number: int, done: int) -> None:
        all_done = number * steps + done
        listener.progress("sampling", all_done, batches * steps, f"steps, {number} of {batches} batches done")

    for number, index in enumerate(_batches(order)):
        x = _walk(denoiser, sampler, order, index, device, partial(tell, number))
        pictures.append(PixelCodec().decode(x).permute(0, 2, 3, 1).cpu().numpy())
    return np.concatenate(pictures)[: order.num]


def _batches(order: Order) -> Iterator[Int[Tensor, "b"]]:
    for start in range(0, order.num, order.batch_size):
        yield torch.arange(start, start + order.batch_size)


def _walk(
    denoiser: Denoiser,
    sampler: Sampler,
    order: Order,
    index: Int[Tensor, "b"],
    device: torch.device,
    told: Callable[[int], None],
) -> Float[Tensor, "b c h w"]:
    """From noise to a batch of pictures in model space; `told` of each step done."""
    rows = index.clamp(max=order.num - 1)
    index = (index + order.first).to(device)
    cond = Cond(
        label=None if order.labels is None else order.labels[rows].to(device),
        low_res=None if order.low_res is None else PixelCodec().encode(order.low_res[rows].to(device)),
    )
    x = Draws(order.seed, 0, index).normal(Stream.SAMPLE_START, *order.shape)
    for done, state in enumerate(sampler(denoiser, x, cond, _step_noise(order, index)), start=1):
        x = state.x
        told(done)
    return x


def _step_noise(order: Order, index: Int[Tensor, "b"]) -> Callable[[int], Tensor]:
    return lambda step: Draws(order.seed, step, index).normal(Stream.SAMPLE_NOISE, *order.shape)

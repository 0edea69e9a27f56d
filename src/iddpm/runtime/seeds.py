"""Counter-based randomness: a value is a function of (seed, stream, step, example index) and of nothing else.

Philox4x32-10 [SMDS11] computed with integer tensor operations, so that the same call gives the same bits on every
device, in any batch, in any order and with any number of processes.
"""

import math
from dataclasses import dataclass
from enum import IntEnum, unique

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["Draws", "Stream", "derived_seed", "permutation", "philox"]

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


@unique
class Stream(IntEnum):
    """What a draw is for; two streams never share a value. The numbers are part of the run format: never reuse one."""

    ORDER = 0
    TIMESTEP = 1
    NOISE = 2
    FLIP = 3
    CROP = 4
    LABEL = 5
    LABEL_DROP = 6
    SAMPLE_START = 7
    SAMPLE_NOISE = 8
    BOUND = 9
    DROPOUT = 10
    INIT = 11
    LOW_RES_NOISE = 12
    ROLLBACK = 13


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """Philox4x32-10 on int64 tensors that hold 32-bit words [SMDS11].

    Args:
        counter: Four words, broadcastable against one another.
        key: Two words.

    Returns:
        Four words, each in [0, 2^32), of the broadcast shape.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # The product of two 32-bit words wraps to a negative int64; the shift is arithmetic, so the mask is needed.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = ((p1 >> 32) & _MASK) ^ c1 ^ k0
        c2 = ((p0 >> 32) & _MASK) ^ c3 ^ k1
        c1, c3 = p1 & _MASK, p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def _words(seed: int, stream: int, step: int, index: Tensor, per_index: int) -> Tensor:
    """Int64 [b, >= per_index] of 32-bit words. Counter: element block, step, index low, stream and index high."""
    blocks = torch.arange(-(-per_index // 4), device=index.device)[None, :]
    low, high = (index & _MASK)[:, None], ((index >> 32) & 0xFFFF)[:, None]
    counter = (blocks, torch.full_like(low, step & _MASK), low, high | (stream << 16))
    # A step needs more than 32 bits only after 4e9 of them; its high word is folded into the key.
    key = (seed & _MASK, ((seed >> 32) ^ (step >> 32)) & _MASK)
    return torch.stack(torch.broadcast_tensors(*philox(counter, key)), dim=-1).flatten(1)


@dataclass(frozen=True)
class Draws:
    """The random numbers of one step: one row an example, whatever batch or process the example is in."""

    seed: int
    step: int
    index: Int[Tensor, "b"]

    def __getitem__(self, rows: slice) -> "Draws":
        """The draws of some of the examples."""
        return Draws(self.seed, self.step, self.index[rows])

    def uniform(self, stream: Stream, *shape: int) -> Float[Tensor, "b *shape"]:
        """Uniform in the open interval (0, 1), float64 (on a device without float64: float32)."""
        count = math.prod(shape)
        words = _words(self.seed, stream, self.step, self.index, count)[:, :count]
        wide = torch.float32 if self.index.device.type == "mps" else torch.float64
        return ((words.to(wide) + 0.5) * 2.0**-32).reshape(len(self.index), *shape)

    def normal(self, stream: Stream, *shape: int) -> Float[Tensor, "b *shape"]:
        """Standard normal, float32, by the Box-Muller transform of pairs of words."""
        count = math.prod(shape)
        words = _words(self.seed, stream, self.step, self.index, count + count % 2)
        half = (count + 1) // 2
        # 24 bits are exact in float32; the radius takes a word in (0, 1] so that its logarithm is finite.
        radius = words[:, :half].float().add_(1.0).mul_(2.0**-32).log_().mul_(-2.0).sqrt_()
        angle = words[:, half : 2 * half].float().mul_(2.0**-32 * 2 * math.pi)
        pairs = torch.cat((radius * angle.cos(), radius * angle.sin()), dim=1)
        return pairs[:, :count].reshape(len(self.index), *shape)


def derived_seed(seed: int, stream: Stream, *numbers: int) -> int:
    """A 63-bit seed for code that takes only a seed (a generator, dropout), from a seed and some numbers."""
    return int(np.random.SeedSequence([seed, int(stream), *numbers]).generate_state(1, np.uint64)[0] >> 1)


def permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    """The order of an epoch: int64[size], a function of (seed, epoch)."""
    bits = np.random.Philox(np.random.SeedSequence([seed, int(Stream.ORDER), epoch]))
    return np.random.Generator(bits).permutation(size)

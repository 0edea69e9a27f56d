"""The sinusoidal embedding of a time value."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["time_embedding"]

LONGEST_PERIOD = 10000.0


def time_embedding(time: Float[Tensor, "b"], channels: int) -> Float[Tensor, "b channels"]:
    """concat(cos, sin) of time x 10000 ** (-i / half), i = 0 .. half - 1 and half = channels / 2.

    In float32 whatever the net's type: the published weights were trained on these roundings.
    """
    half = channels // 2
    index = torch.arange(half, dtype=torch.float32, device=time.device)
    frequencies = torch.exp(-math.log(LONGEST_PERIOD) * index / half)
    angles = time.float()[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1)

"""The sinusoidal embedding of a time value, and the type in which what is made of it must not be computed."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["autocast_type", "time_embedding"]

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


def autocast_type(device: torch.device) -> torch.dtype | None:
    """The half type that autocast runs products in there now; None: it is off.

    bfloat16 has 8 bits: a net in it all through is told nearly the same of neighbouring times.
    """
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return None

"""The only conversions between uint8 pictures and model space."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

__all__ = ["Codec", "PixelCodec"]


@runtime_checkable
class Codec(Protocol):
    """Two-way conversion between uint8 pictures and the space that the model works in."""

    def encode(self, images: UInt8[Tensor, "b c h w"]) -> Float[Tensor, "b _ _ _"]:
        """Pictures to model space, float32."""
        ...

    def decode(self, x0: Float[Tensor, "b _ _ _"]) -> UInt8[Tensor, "b c h w"]:
        """Model space to pictures."""
        ...


@dataclass(frozen=True)
class PixelCodec:
    """Pixel levels 0..255 spread evenly over [-1, 1]: neighbouring levels lie 2/255 apart [H20 Sec. 3.3]."""

    def encode(self, images: UInt8[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Level k becomes k / 127.5 - 1, float32, on the device of the pictures."""
        return images.to(torch.float32).div_(127.5).sub_(1.0)

    def decode(self, x0: Float[Tensor, "b c h w"]) -> UInt8[Tensor, "b c h w"]:
        """The nearest level, clamped to 0..255; exact inverse of `encode` on all 256 levels."""
        levels = x0.to(torch.float32).add(1.0).mul_(127.5)
        return levels.round_().clamp_(0, 255).to(torch.uint8)

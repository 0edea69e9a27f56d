"""Which part of a picture a network is shown: the centre square, a square drawn anew each time, or all of it.

The first and the last are settled when the store is prepared. A random crop is drawn from a store of larger
pictures, by the original's rule (guided-diffusion, `random_crop_arr`): the picture is brought to a side drawn from
`size / max_scale` to `size / min_scale`, each whole number alike, and a square of `size` is cut anywhere from it.

Resampling is exact arithmetic, so that a picture does not depend on its batch or machine: weights are multiples of
2^-14 and pixels whole numbers, whose sums float32 holds without rounding.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float, Int64, UInt8

from iddpm.runtime.errors import ConfigError
from iddpm.runtime.seeds import Draws, Stream

__all__ = ["CentreCrop", "Crop", "RandomCrop", "WholePicture", "Windows", "draw_windows", "resized", "stored_size"]

UNIT = 1 << 14


@dataclass(frozen=True, kw_only=True)
class CentreCrop:
    """The centre square of any picture, brought to the size."""


@dataclass(frozen=True, kw_only=True)
class RandomCrop:
    """A square at random from the picture's centre square, drawn anew each time it is shown."""

    min_scale: float = 0.8
    """Side of the smallest square, as a share of the picture's shorter side."""
    max_scale: float = 1.0
    """Side of the largest."""

    def __post_init__(self) -> None:
        if not 0 < self.min_scale <= self.max_scale <= 1:
            raise ConfigError(
                f"random crops of scale {self.min_scale} to {self.max_scale}; allowed: 0 < min-scale <= max-scale <= 1",
                "set --data.crop.min-scale and --data.crop.max-scale",
            )


@dataclass(frozen=True, kw_only=True)
class WholePicture:
    """Square pictures whole, brought to the size; others are left out."""


Crop = CentreCrop | RandomCrop | WholePicture


@dataclass(frozen=True, eq=False)
class Windows:
    """The square that is cut from each picture: the side the picture is brought to, and the square's corner there."""

    side: Int64[np.ndarray, "b"]
    top: Int64[np.ndarray, "b"]
    left: Int64[np.ndarray, "b"]


def stored_size(crop: Crop, size: int) -> int:
    """Side of the pictures in the store that crops of `size` are cut from."""
    return math.ceil(size / crop.min_scale) if isinstance(crop, RandomCrop) else size


def draw_windows(crop: RandomCrop, size: int, draws: Draws) -> Windows:
    """Draw a window for each example of `draws`."""
    least, most = math.ceil(size / crop.max_scale), stored_size(crop, size)
    shares = draws.uniform(Stream.CROP, 3).cpu().numpy()
    side = least + (shares[:, 0] * (most - least + 1)).astype(np.int64)
    top, left = ((shares[:, axis] * (side - size + 1)).astype(np.int64) for axis in (1, 2))
    return Windows(side, top, left)


def resized(
    images: UInt8[np.ndarray, "b c h w"], size: int, windows: Windows | None = None
) -> UInt8[np.ndarray, "b c s s"]:
    """Square pictures brought to `size` with a bicubic filter, or the window of each.

    Args:
        images: The pictures.
        size: Side of the result.
        windows: What to cut from each; None: all of it.
    """
    count, _, height, _ = images.shape
    if windows is None:
        if height == size:
            return images
        windows = Windows(np.full(count, size), np.zeros(count, np.int64), np.zeros(count, np.int64))
    across, down = (
        np.stack([_weights(height, int(side))[at : at + size] for side, at in zip(windows.side, corner, strict=True)])
        for corner in (windows.left, windows.top)
    )
    half_way = _levels(images.astype(np.float32) @ across[:, None].transpose(0, 1, 3, 2))
    return _levels(down[:, None] @ half_way.astype(np.float32))


def _levels(sums: Float[np.ndarray, "b c h w"]) -> UInt8[np.ndarray, "b c h w"]:
    return np.floor(sums + 0.5).clip(0, 255).astype(np.uint8)


@lru_cache(maxsize=1024)
def _weights(old: int, new: int) -> Float[np.ndarray, "new old"]:
    """What each of `old` pixels in a line adds to each of `new`: Keys' bicubic (a = -1/2), widened where that shrinks."""
    scale = old / new
    wide = max(scale, 1.0)
    centres = (np.arange(new) + 0.5) * scale
    distance = np.abs(np.arange(old) + 0.5 - centres[:, None]) / wide
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    weights = np.where(distance < 1, near, np.where(distance < 2, far, 0.0))
    whole = np.round(weights / weights.sum(1, keepdims=True) * UNIT)
    whole[np.arange(new), whole.argmax(1)] += UNIT - whole.sum(1)
    return (whole / UNIT).astype(np.float32)

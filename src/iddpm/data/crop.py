"""Which part of a picture a network is shown: the centre square, a square drawn anew each time, or all of it.

The first and the last are settled when the store is prepared. A random crop is drawn from a store of larger
pictures, by the original's rule (guided-diffusion, `random_crop_arr`) applied to the centre square: that is brought to
a side drawn from `size / max_scale` to `size / min_scale`, each whole number alike, and a square of `size` is cut
anywhere from it. At its own side the stored picture is not resampled again.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Int64, UInt8
from PIL import Image

from iddpm.data.frame import pixels_of
from iddpm.runtime.cores import usable_cores
from iddpm.runtime.errors import ConfigError
from iddpm.runtime.seeds import Draws, Stream

__all__ = ["CentreCrop", "Crop", "RandomCrop", "WholePicture", "Windows", "draw_windows", "resized", "stored_size"]

WORTH_THREADS = 1 << 18  # bytes of pixels; fewer are cut before threads have their work


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

    Each picture by itself, so that none depends on its batch; by threads, since resampling releases the interpreter lock.

    Args:
        images: The pictures.
        size: Side of the result.
        windows: What to cut from each; None: all of it.
    """
    count, channels, height, _ = images.shape
    if windows is None:
        if height == size:
            return images
        windows = Windows(np.full(count, size), np.zeros(count, np.int64), np.zeros(count, np.int64))
    out = np.empty((count, channels, size, size), np.uint8)
    corners = list(zip(windows.side.tolist(), windows.top.tolist(), windows.left.tolist(), strict=True))

    def fill(row: int) -> None:
        out[row] = _cut(images[row], size, *corners[row])

    if images.nbytes < WORTH_THREADS:
        for row in range(count):
            fill(row)
    else:
        list(_pool().map(fill, range(count)))
    return out


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(usable_cores(), thread_name_prefix="cropping")


def _cut(image: UInt8[np.ndarray, "c h w"], size: int, side: int, top: int, left: int) -> UInt8[np.ndarray, "c s s"]:
    """The window of one picture; across first, then down (see `iddpm.data.frame.square`)."""
    height = image.shape[1]
    if side == height:
        return image[:, top : top + size, left : left + size]
    scale = height / side
    picture = Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))
    across = (left * scale, 0, min((left + size) * scale, height), height)
    picture = picture.resize((size, height), Image.Resampling.BICUBIC, box=across)
    down = (0, top * scale, size, min((top + size) * scale, height))
    return pixels_of(picture.resize((size, size), Image.Resampling.BICUBIC, box=down))

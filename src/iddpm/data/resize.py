"""Any picture file to a square of 8-bit channels.

The rule is the original's (improved-diffusion, `image_datasets.py`): while the shorter side is at least twice
the size, halve both sides with a BOX filter; then BICUBIC until the shorter side is the size; then the centre
square.
"""

from io import BufferedReader, BytesIO

import numpy as np
from jaxtyping import UInt8
from PIL import Image

__all__ = ["RULE", "UnusablePictureError", "decode", "pixels_of", "square", "to_channels"]

RULE = "shorter side to the size (BOX halvings, then BICUBIC), then the centre square"

_ORIENTATION_TAG = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class UnusablePictureError(Exception):
    """One picture cannot be used; the message says why. The rest of the source can."""


def decode(file: BufferedReader | BytesIO, channels: int) -> Image.Image:
    """Decode a whole picture file (the first frame), upright, in mode L (one channel) or RGB (three).

    Raises:
        UnusablePictureError: The file is damaged, is not a picture, or its mode has no fixed range.
    """
    try:
        with Image.open(file) as image:
            image.load()
            return to_channels(_upright(image), channels)
    except UnusablePictureError:
        raise
    except Image.UnidentifiedImageError as error:
        raise UnusablePictureError("not a picture, or damaged at its start") from error
    except Exception as error:  # decoders of damaged files raise nearly anything: struct, zlib, Key, Index, Memory...
        raise UnusablePictureError(str(error) or type(error).__name__) from error


def to_channels(image: Image.Image, channels: int) -> Image.Image:
    """Bring any mode to L or RGB; what is transparent becomes white; 16 bits become 8, rounded.

    Raises:
        UnusablePictureError: A mode without a fixed range (32-bit floats).
    """
    if image.mode == "F":
        raise UnusablePictureError("32-bit float pixels have no fixed range")
    if image.mode.startswith("I"):
        levels = np.asarray(image).astype(np.float64) / 257.0
        image = Image.fromarray(levels.round().clip(0, 255).astype(np.uint8))
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("L" if channels == 1 else "RGB")


def square(image: Image.Image, size: int) -> Image.Image:
    """Resize and crop a picture to size x size by the rule of this module."""
    while min(image.size) >= 2 * size:
        image = image.resize((image.width // 2, image.height // 2), Image.Resampling.BOX)
    scale = size / min(image.size)
    width, height = round(image.width * scale), round(image.height * scale)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (width - size) // 2, (height - size) // 2
    return image.crop((left, top, left + size, top + size))


def pixels_of(image: Image.Image) -> UInt8[np.ndarray, "c h w"]:
    """The pixels of a picture in mode L or RGB, channels first."""
    array = np.asarray(image)
    return np.ascontiguousarray(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))


def _upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation. A damaged tag counts as none: the picture itself is whole."""
    try:
        turn = _TURNS.get(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # the EXIF parser raises nearly anything on damaged tags
        turn = None
    return image if turn is None else image.transpose(turn)

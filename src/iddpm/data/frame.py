"""Any picture brought to a frame: so many pixels a side, so many channels, 8 bits each.

The rule is the original's (improved-diffusion, `image_datasets.py`): while the shorter side is at least twice
the size, halve both sides with a BOX filter; then BICUBIC until the shorter side is the size; then the centre
square. Colours are taken as they are stored: an embedded colour profile is not applied.
"""

import errno
import hashlib
import math
from dataclasses import dataclass
from io import BufferedReader, BytesIO

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageColor

from iddpm.data.modes import brought, is_grey
from iddpm.data.split import digest, new_digest
from iddpm.runtime.errors import ConfigError, DataError

__all__ = [
    "RULE",
    "Frame",
    "Picture",
    "UnsuitablePictureError",
    "UnusablePictureError",
    "decode",
    "from_array",
    "from_file",
    "pixels_of",
    "square",
    "to_channels",
]

RULE = "shorter side to the size (BOX halvings, then BICUBIC), then the centre square"
WHOLE = "square pictures whole, to the size (BOX halvings, then BICUBIC); others are left out"
LONGEST = 1 << 16  # pixels; a long line of a picture is cut before it is enlarged beyond this
MOST_SIDE = 1 << 20  # pixels; each row costs memory, however few pixels it has

# Those of the file names that are taken. Others could start programs: Pillow hands EPS to Ghostscript.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM", "TIFF")
_SIXTEEN_BITS = ("PNG", "PPM")  # what Pillow, or an older one, may open as 32-bit integers
_REACH = 8  # pixels; more than BICUBIC looks at beside a pixel
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
_ON_ITS_SIDE = frozenset(_TURNS[tag] for tag in (5, 6, 7, 8))


class UnusablePictureError(Exception):
    """One picture cannot be used: it is damaged. The message says how. The rest of the source can."""


class UnsuitablePictureError(UnusablePictureError):
    """One picture is whole, and not of a kind that is used here."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What every picture is brought to.

    Attributes:
        size: Side of the square, in pixels.
        channels: 1 (grey) or 3 (RGB).
        background: Colour that shows through transparent pixels: a name or #rrggbb.
        whole: Take square pictures alone, uncropped, instead of the centre square of any.
        fast_jpeg: Have the JPEG decoder itself halve large pictures, up to three times, in place of the BOX filter: much
            faster; its averages differ slightly from the rule's.

    Raises:
        ConfigError: One of them is not allowed.
    """

    size: int
    channels: int = 3
    background: str = "white"
    whole: bool = False
    fast_jpeg: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"size {self.size}", "allowed: 1 or more pixels")
        if self.channels not in (1, 3):
            raise ConfigError(f"channels {self.channels}", "allowed: 1 (grey), 3 (RGB)")
        try:
            opaque = len(ImageColor.getrgb(self.background)) == 3
        except ValueError:
            opaque = False
        if not opaque:
            raise ConfigError(f"background {self.background!r}", "allowed: a colour's name, or #rrggbb")

    @property
    def background_hex(self) -> str:
        """The background as #rrggbb."""
        return "#{:02x}{:02x}{:02x}".format(*ImageColor.getrgb(self.background))

    @property
    def rule(self) -> str:
        """What is done to a picture, in words."""
        return (WHOLE if self.whole else RULE) + ("; JPEGs halved by their decoder" if self.fast_jpeg else "")


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture in its frame, and the sides that it had before. `origin` stands for what the source has of it."""

    pixels: UInt8[np.ndarray, "c h w"]
    width: int
    height: int
    origin: bytes


def from_file(file: BufferedReader | BytesIO, frame: Frame) -> Picture:
    """Decode an encoded picture and bring it to a frame.

    Raises:
        UnusablePictureError: As for `decode`; not square where the frame takes whole pictures.
        DataError: The system could not read it, whatever it holds.
    """
    origin = hashlib.file_digest(file, new_digest).digest()
    file.seek(0)
    return _framed(*_decoded(file, frame), frame, origin)


def from_array(array: UInt8[np.ndarray, "h w"] | UInt8[np.ndarray, "h w c"], frame: Frame) -> Picture:
    """Bring raw pixels (grey, RGB or RGBA) to a frame.

    Raises:
        UnusablePictureError: Not square where the frame takes whole pictures.
    """
    grey = array.ndim == 3 and array.shape[2] == 1
    pixels = np.ascontiguousarray(array[..., 0] if grey else array)
    image = Image.fromarray(pixels)
    return _framed(to_channels(image, frame.channels, frame.background), image.size, frame, digest(pixels.data))


def decode(file: BufferedReader | BytesIO, channels: int, background: str = "white") -> Image.Image:
    """Decode a whole picture file (the first frame), upright, in mode L (one channel) or RGB (three).

    Raises:
        UnusablePictureError: The file is damaged or is not a picture.
        UnsuitablePictureError: Its mode has no fixed range, or it is too large.
        DataError: The system could not read it, whatever it holds.
    """
    frame = Frame(size=1, channels=channels, background=background)
    return to_channels(_decoded(file, frame)[0], channels)


def _decoded(file: BufferedReader | BytesIO, frame: Frame) -> tuple[Image.Image, tuple[int, int]]:
    """The picture in the frame's channels, or in one where it is grey; the sides that it had in the file, upright."""
    try:
        with Image.open(file, formats=_FORMATS) as image:
            width, height = image.size
            if max(width, height) > MOST_SIDE:
                raise UnsuitablePictureError(f"too large: {width}x{height} pixels, at most {MOST_SIDE} a side")
            if frame.fast_jpeg and image.format == "JPEG":
                image.draft(image.mode, (frame.size, frame.size))
            image.load()
            turn = _turn(image)
            whole = to_channels(image, 1 if is_grey(image) else frame.channels, frame.background)
    except UnusablePictureError:
        raise
    except Image.UnidentifiedImageError as error:
        raise UnusablePictureError("not a picture, or damaged at its start") from error
    except Image.DecompressionBombError as error:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise UnsuitablePictureError(f"too large: more than {most} pixels") from error
    except Exception as error:  # decoders of damaged files raise nearly anything: struct, zlib, Key, Index...
        if _is_the_systems(error):
            raise _unreadable(file, error) from error
        raise UnusablePictureError(str(error) or type(error).__name__) from error
    if turn is None:
        return whole, (width, height)
    return whole.transpose(turn), (height, width) if turn in _ON_ITS_SIDE else (width, height)


def _is_the_systems(error: Exception) -> bool:
    """Whether the system failed, not the picture. A damaged offset makes the system refuse to go there: EINVAL."""
    refused = isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)
    return refused or isinstance(error, MemoryError)


def _unreadable(file: BufferedReader | BytesIO, error: Exception) -> DataError:
    name = getattr(file, "name", None)
    reason = error.strerror if isinstance(error, OSError) else "not enough memory"
    return DataError(
        f"{name if isinstance(name, str) else 'a picture'} cannot be read: {reason}",
        "put that right: the same command goes on from there",
    )


def to_channels(image: Image.Image, channels: int, background: str = "white") -> Image.Image:
    """Bring any mode to L or RGB; the background shows through what is transparent; 16 bits become 8, rounded.

    Raises:
        UnsuitablePictureError: A mode without a fixed range (32-bit floats or integers).
    """
    if image.mode == "F":
        raise UnsuitablePictureError("32-bit float pixels have no fixed range")
    if image.mode == "I" and image.format not in _SIXTEEN_BITS:
        raise UnsuitablePictureError("32-bit integer pixels have no fixed range")
    return brought(image, "L" if channels == 1 else "RGB", background)


def square(image: Image.Image, size: int) -> Image.Image:
    """Resize and crop a picture to size x size by the rule of this module."""
    while min(image.size) >= 2 * size:
        image = _halved(image)
    scale = size / min(image.size)
    width, height = round(image.width * scale), round(image.height * scale)
    left, top = (width - size) // 2, (height - size) // 2
    if max(width, height) > LONGEST:
        across, down = image.width / width, image.height / height
        return _enlarged(image, size, (left * across, top * down, (left + size) * across, (top + size) * down))
    # Across first, as the original's Pillow did whatever the shape; cutting the ends off in between changes no pixel.
    image = image.resize((width, image.height), Image.Resampling.BICUBIC).crop((left, 0, left + size, image.height))
    return image.resize((size, height), Image.Resampling.BICUBIC).crop((0, top, size, top + size))


def _enlarged(image: Image.Image, size: int, box: tuple[float, float, float, float]) -> Image.Image:
    """The part in `box` of a long line, alone; its pixels may differ by a level from the rule's."""
    left, top = (max(0, math.floor(edge) - _REACH) for edge in box[:2])
    right = min(image.width, math.ceil(box[2]) + _REACH)
    bottom = min(image.height, math.ceil(box[3]) + _REACH)
    # Pillow rounds the box to 32-bit floats, which is too coarse far out in a long line: so it is cut first.
    near = image.crop((left, top, right, bottom))
    part = (box[0] - left, box[1] - top, min(box[2] - left, near.width), min(box[3] - top, near.height))
    near = near.resize((size, near.height), Image.Resampling.BICUBIC, box=(part[0], 0, part[2], near.height))
    return near.resize((size, size), Image.Resampling.BICUBIC, box=(0, part[1], size, part[3]))


def _halved(image: Image.Image) -> Image.Image:
    """Both sides halved, rounded down, with a BOX filter: across, then down. `reduce` does an even side much faster."""
    width, height = image.width // 2, image.height // 2
    even = image.width % 2 == 0
    image = image.reduce((2, 1)) if even else image.resize((width, image.height), Image.Resampling.BOX)
    even = image.height % 2 == 0
    return image.reduce((1, 2)) if even else image.resize((width, height), Image.Resampling.BOX)


def pixels_of(image: Image.Image) -> UInt8[np.ndarray, "c h w"]:
    """The pixels of a picture in mode L or RGB, channels first."""
    array = np.asarray(image)
    return np.ascontiguousarray(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))


def _framed(image: Image.Image, sides: tuple[int, int], frame: Frame, origin: bytes) -> Picture:
    if frame.whole and sides[0] != sides[1]:
        raise UnsuitablePictureError(f"not square: {sides[0]}x{sides[1]}")
    return Picture(pixels_of(to_channels(square(image, frame.size), frame.channels)), *sides, origin)


def _turn(image: Image.Image) -> Image.Transpose | None:
    """What makes a picture stand upright. A damaged EXIF tag counts as none: the picture itself is whole."""
    try:
        return _TURNS.get(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception as error:  # the EXIF parser raises nearly anything on damaged tags
        if _is_the_systems(error):
            raise
        return None

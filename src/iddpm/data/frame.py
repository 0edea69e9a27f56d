"""Any picture brought to a frame: so many pixels a side, so many channels, 8 bits each.

The rule is the original's (improved-diffusion, `image_datasets.py`): while the shorter side is at least twice
the size, halve both sides with a BOX filter; then BICUBIC until the shorter side is the size; then the centre
square. Colours are taken as they are stored: an embedded colour profile is not applied.
"""

from dataclasses import dataclass
from io import BufferedReader, BytesIO

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageCms, ImageColor

from iddpm.runtime.errors import ConfigError

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
        fast_jpeg: Decode a JPEG at a half, quarter or eighth of its size where twice the frame's is left: several
            times faster for large photographs; the averages it takes differ slightly from the rule's.

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
        return (WHOLE if self.whole else RULE) + ("; large JPEGs decoded at a fraction" if self.fast_jpeg else "")


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture in its frame, and the sides that it had before."""

    pixels: UInt8[np.ndarray, "c h w"]
    width: int
    height: int


def from_file(file: BufferedReader | BytesIO, frame: Frame) -> Picture:
    """Decode an encoded picture and bring it to a frame.

    Raises:
        UnusablePictureError: As for `decode`; not square where the frame takes whole pictures.
    """
    return _framed(*_decoded(file, frame), frame)


def from_array(array: UInt8[np.ndarray, "h w"] | UInt8[np.ndarray, "h w c"], frame: Frame) -> Picture:
    """Bring raw pixels (grey, RGB or RGBA) to a frame.

    Raises:
        UnusablePictureError: Not square where the frame takes whole pictures.
    """
    grey = array.ndim == 3 and array.shape[2] == 1
    image = Image.fromarray(np.ascontiguousarray(array[..., 0] if grey else array))
    return _framed(to_channels(image, frame.channels, frame.background), image.size, frame)


def decode(file: BufferedReader | BytesIO, channels: int, background: str = "white") -> Image.Image:
    """Decode a whole picture file (the first frame), upright, in mode L (one channel) or RGB (three).

    Raises:
        UnusablePictureError: The file is damaged or is not a picture.
        UnsuitablePictureError: Its mode has no fixed range.
    """
    return _decoded(file, Frame(size=1, channels=channels, background=background))[0]


def _decoded(file: BufferedReader | BytesIO, frame: Frame) -> tuple[Image.Image, tuple[int, int]]:
    """The picture in the frame's channels, and the sides that it had in the file, upright."""
    try:
        with Image.open(file) as image:
            width, height = image.size
            if frame.fast_jpeg and image.format == "JPEG":
                image.draft(image.mode, (2 * frame.size, 2 * frame.size))
            image.load()
            turn = _turn(image)
            whole = to_channels(image if turn is None else image.transpose(turn), frame.channels, frame.background)
            return whole, (height, width) if turn in _ON_ITS_SIDE else (width, height)
    except UnusablePictureError:
        raise
    except Image.UnidentifiedImageError as error:
        raise UnusablePictureError("not a picture, or damaged at its start") from error
    except Exception as error:  # decoders of damaged files raise nearly anything: struct, zlib, Key, Index, Memory...
        raise UnusablePictureError(str(error) or type(error).__name__) from error


def to_channels(image: Image.Image, channels: int, background: str = "white") -> Image.Image:
    """Bring any mode to L or RGB; the background shows through what is transparent; 16 bits become 8, rounded.

    Raises:
        UnsuitablePictureError: A mode without a fixed range (32-bit floats).
    """
    if image.mode == "F":
        raise UnsuitablePictureError("32-bit float pixels have no fixed range")
    if image.mode.startswith("I"):
        levels = np.asarray(image).astype(np.float64) / 257.0
        image = Image.fromarray(levels.round().clip(0, 255).astype(np.uint8))
    elif image.mode == "LAB":
        lab, rgb = (ImageCms.createProfile(space) for space in ("LAB", "sRGB"))
        image = ImageCms.profileToProfile(image, lab, rgb, outputMode="RGB") or image
    elif image.has_transparency_data:
        image = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, background), image)
    return image.convert("L" if channels == 1 else "RGB")


def square(image: Image.Image, size: int) -> Image.Image:
    """Resize and crop a picture to size x size by the rule of this module."""
    while min(image.size) >= 2 * size:
        image = _halved(image)
    scale = size / min(image.size)
    width, height = round(image.width * scale), round(image.height * scale)
    left, top = (width - size) // 2, (height - size) // 2
    # Across first, as the original's Pillow did whatever the shape; cutting the ends off in between changes no pixel.
    across = image.width / width if width > LONGEST else None
    image = _stretched(image, (width, image.height), (left, 0, left + size, image.height), across)
    down = image.height / height if height > LONGEST else None
    return _stretched(image, (size, height), (0, top, size, top + size), down)


def _stretched(
    image: Image.Image, sides: tuple[int, int], box: tuple[int, int, int, int], scale: float | None
) -> Image.Image:
    """The part in `box` of a picture that is stretched along one axis to `sides`.

    With a scale, that of the axis, only the part is made; its pixels may differ by a level.
    """
    if scale is None:
        return image.resize(sides, Image.Resampling.BICUBIC).crop(box)
    across, down = (scale, 1) if sides[0] != image.width else (1, scale)
    part = (box[0] * across, box[1] * down, min(box[2] * across, image.width), min(box[3] * down, image.height))
    return image.resize((box[2] - box[0], box[3] - box[1]), Image.Resampling.BICUBIC, box=part)


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


def _framed(image: Image.Image, sides: tuple[int, int], frame: Frame) -> Picture:
    if frame.whole and sides[0] != sides[1]:
        raise UnsuitablePictureError(f"not square: {sides[0]}x{sides[1]}")
    return Picture(pixels_of(square(image, frame.size)), *sides)


def _turn(image: Image.Image) -> Image.Transpose | None:
    """What makes a picture stand upright. A damaged EXIF tag counts as none: the picture itself is whole."""
    try:
        return _TURNS.get(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # the EXIF parser raises nearly anything on damaged tags
        return None

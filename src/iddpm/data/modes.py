"""Any mode of a picture brought to grey or RGB, 8 bits each, some rows at a time."""

import numpy as np
from PIL import Image, ImageCms

__all__ = ["brought", "is_grey"]

BAND = 1 << 20  # pixels at a time: the copies on the way stay small beside the picture
# 16 bits as 8, rounded; 257 is odd, so that no level lies in the middle of two.
_EIGHT_BITS = ((np.arange(1 << 16) + 128) // 257).astype(np.uint8)


def is_grey(image: Image.Image) -> bool:
    """Whether grey says all that a picture holds: no colours, nothing transparent."""
    return (image.mode in ("1", "L") or image.mode.startswith("I")) and not image.has_transparency_data


def brought(image: Image.Image, mode: str, background: str) -> Image.Image:
    """A picture in mode L or RGB, on a background where it is transparent.

    Args:
        image: The picture. Whole numbers of more than 8 bits are taken as 16.
        mode: "L" or "RGB".
        background: The colour that shows through.

    Returns:
        A new picture, or the given one where that is what was asked for.
    """
    if image.mode == mode and not image.has_transparency_data:
        return image
    rows = max(1, BAND // image.width)
    if image.height <= rows:
        return _converted(image, mode, background)
    whole = Image.new(mode, image.size)
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height)))
        whole.paste(_converted(band, mode, background), (0, top))
    return whole


def _converted(image: Image.Image, mode: str, background: str) -> Image.Image:
    if image.mode.startswith("I"):
        image = _in_8_bits(image, background)
    elif image.mode == "LAB":
        lab, rgb = (ImageCms.createProfile(space) for space in ("LAB", "sRGB"))
        image = ImageCms.profileToProfile(image, lab, rgb, outputMode="RGB") or image
    elif image.has_transparency_data:
        image = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, background), image)
    return image.convert(mode)


def _in_8_bits(image: Image.Image, background: str) -> Image.Image:
    """16 bits as 8. A PNG may name a level that is transparent: one of the 16 bits, so that it is looked for in these."""
    levels = np.asarray(image)
    grey = Image.fromarray(np.take(_EIGHT_BITS, levels, mode="clip"))
    if not image.has_transparency_data:
        return grey
    under = Image.new("RGB", image.size, background)
    under.paste(grey.convert("RGB"), mask=Image.fromarray(levels != image.info["transparency"]))
    return under

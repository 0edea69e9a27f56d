import io

import numpy as np
import pytest
from PIL import Image

from iddpm.data.frame import UnusablePictureError, decode, pixels_of, square, to_channels

RED, BLUE = (255, 0, 0), (0, 0, 255)


def original_rule(image: Image.Image, size: int) -> np.ndarray:
    """What improved-diffusion's `ImageDataset.__getitem__` does to an RGB picture."""
    while min(*image.size) >= 2 * size:
        image = image.resize(tuple(x // 2 for x in image.size), resample=Image.Resampling.BOX)
    scale = size / min(*image.size)
    image = image.resize(tuple(round(x * scale) for x in image.size), resample=Image.Resampling.BICUBIC)
    array = np.array(image)
    top, left = (array.shape[0] - size) // 2, (array.shape[1] - size) // 2
    return array[top : top + size, left : left + size]


@pytest.mark.parametrize("sides", [(97, 64), (31, 200), (32, 32), (5, 9), (1, 1)])
def test_resizing_is_the_originals(sides):
    levels = np.random.default_rng(0).integers(0, 256, (sides[1], sides[0], 3), dtype=np.uint8)
    image = Image.fromarray(levels)
    assert np.array_equal(np.asarray(square(image, 32)), original_rule(image, 32))


def test_wide_picture_keeps_its_centre():
    image = Image.new("RGB", (48, 24), "green")
    image.paste("black", (0, 0, 12, 24))
    image.paste("white", (36, 0, 48, 24))
    assert square(image, 24).getcolors() == [(24 * 24, (0, 128, 0))]


def half_red_half_blue() -> Image.Image:
    image = Image.new("RGB", (40, 20), RED)
    image.paste(BLUE, (20, 0, 40, 20))
    return image


def saved(image: Image.Image, form: str, **options) -> io.BytesIO:
    file = io.BytesIO()
    image.save(file, form, **options)
    file.seek(0)
    return file


def is_red(pixel) -> bool:
    return pixel[0] > 200 and pixel[2] < 60


@pytest.mark.parametrize("form", ["JPEG", "TIFF", "PNG"])
@pytest.mark.parametrize(
    ("orientation", "sides", "red_at"),
    [
        (1, (40, 20), (2, 10)),
        (3, (40, 20), (37, 10)),
        (6, (20, 40), (10, 2)),
        (8, (20, 40), (10, 37)),
    ],
)
def test_dat_03_exif_orientation_is_applied(form, orientation, sides, red_at):
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = decode(saved(half_red_half_blue(), form, exif=exif), 3)
    assert image.size == sides
    assert is_red(image.getpixel(red_at))


def test_transparent_becomes_white():
    for mode, clear in (("RGBA", (9, 9, 9, 0)), ("LA", (9, 0))):
        image = to_channels(Image.new(mode, (2, 2), clear), 3)
        assert image.getpixel((0, 0)) == (255, 255, 255)
    palette = Image.new("P", (2, 2), 0)
    palette.putpalette([9, 9, 9])
    palette.info["transparency"] = 0
    assert to_channels(palette, 1).getpixel((0, 0)) == 255


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.new("1", (2, 2), 1), (255, 255, 255)),
        (Image.new("L", (2, 2), 77), (77, 77, 77)),
        (Image.new("CMYK", (2, 2), (0, 255, 255, 0)), (255, 0, 0)),
        (Image.fromarray(np.full((2, 2), 65535, np.uint16)), (255, 255, 255)),
        (Image.fromarray(np.full((2, 2), 25700, np.uint16)), (100, 100, 100)),
        (Image.fromarray(np.full((2, 2), 25700, np.int32)), (100, 100, 100)),
    ],
)
def test_modes_become_rgb(image, expected):
    assert to_channels(image, 3).getpixel((1, 1)) == expected


def test_channels_come_first():
    assert pixels_of(Image.new("L", (5, 4), 3)).shape == (1, 4, 5)
    assert pixels_of(half_red_half_blue())[:, 0, 0].tolist() == [255, 0, 0]


def test_unusable_pictures_say_why():
    whole = saved(half_red_half_blue(), "JPEG").getvalue()
    with pytest.raises(UnusablePictureError, match=r"(?i)truncated"):
        decode(io.BytesIO(whole[: len(whole) // 2]), 3)
    with pytest.raises(UnusablePictureError, match="not a picture"):
        decode(io.BytesIO(b"hello"), 3)
    with pytest.raises(UnusablePictureError, match="no fixed range"):
        decode(saved(Image.new("F", (2, 2), 0.5), "TIFF"), 3)


def test_damaged_exif_is_no_damage():
    exif = b"Exif\x00\x00" + b"\xff" * 30
    assert decode(saved(half_red_half_blue(), "JPEG", exif=exif), 3).size == (40, 20)

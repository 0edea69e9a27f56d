import errno
import io
import os

import numpy as np
import pytest
from PIL import Image

from iddpm.data import frame, modes
from iddpm.data.frame import (
    Frame,
    UnsuitablePictureError,
    UnusablePictureError,
    decode,
    from_array,
    from_file,
    pixels_of,
    square,
    to_channels,
)
from iddpm.data.shards import decoded
from iddpm.runtime.errors import ConfigError, DataError
from peak_memory import at_most

RED, BLUE = (255, 0, 0), (0, 0, 255)


def across_then_down(image: Image.Image, width: int, height: int, resample: Image.Resampling) -> Image.Image:
    """The order of passes of the Pillow that the original ran on; today's chooses it by the shape."""
    return image.resize((width, image.height), resample=resample).resize((width, height), resample=resample)


def original_rule(image: Image.Image, size: int) -> np.ndarray:
    """What improved-diffusion's `ImageDataset.__getitem__` does to an RGB picture."""
    while min(*image.size) >= 2 * size:
        image = across_then_down(image, image.width // 2, image.height // 2, Image.Resampling.BOX)
    scale = size / min(*image.size)
    image = across_then_down(image, round(image.width * scale), round(image.height * scale), Image.Resampling.BICUBIC)
    array = np.array(image)
    top, left = (array.shape[0] - size) // 2, (array.shape[1] - size) // 2
    return array[top : top + size, left : left + size]


@pytest.mark.parametrize("size", [7, 32])
@pytest.mark.parametrize(
    "sides", [(97, 64), (31, 200), (32, 32), (5, 9), (1, 1), (128, 64), (129, 131), (375, 500), (60, 500), (400, 30)]
)
@pytest.mark.parametrize("grey", [False, True])
def test_resizing_is_the_originals(sides, size, grey):
    levels = np.random.default_rng(0).integers(0, 256, (sides[1], sides[0], 3), dtype=np.uint8)
    image = Image.fromarray(levels[..., 0] if grey else levels)
    assert np.array_equal(np.asarray(square(image, size)), original_rule(image, size))


@pytest.mark.parametrize("sides", [(1, 90_000), (90_000, 1), (1, 600_000), (2, 600_000), (600_000, 3)])
def test_a_long_line_is_cut_before_it_is_enlarged(sides):
    image = Image.new("RGB", sides, (10, 20, 30))
    with at_most(50):  # the whole of it enlarged would take gigabytes, across alone hundreds of megabytes
        assert square(image, 256).getcolors() == [(256 * 256, (10, 20, 30))]


@pytest.mark.parametrize("sides", [(30, 4000), (4000, 30), (63, 2001), (1, 700), (700, 2), (32, 900)])
def test_a_long_line_that_is_cut_first_differs_by_a_level_at_most(sides, monkeypatch):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (sides[1], sides[0], 3), dtype=np.uint8))
    whole = np.asarray(square(image, 32)).astype(int)
    monkeypatch.setattr(frame, "LONGEST", 100)
    assert abs(np.asarray(square(image, 32)) - whole).max() <= 1


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


class Faulty(io.BytesIO):
    """A file that is whole, on a disk that fails after its first kilobyte."""

    def __init__(self, content: bytes, error: Exception):
        super().__init__(content)
        self.error = error

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() > 1000:
            raise self.error
        return super().read(1000 if size is None or size < 0 else min(size, 1000))


def noise() -> bytes:
    levels = np.random.default_rng(0).integers(0, 256, (60, 60, 3), dtype=np.uint8)
    return saved(Image.fromarray(levels), "PNG").getvalue()


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ENOMEM, errno.ESTALE])
def test_what_the_system_cannot_read_is_no_damaged_picture(number):
    reason = os.strerror(number)
    with pytest.raises(DataError, match=f"^a picture cannot be read: {reason}\n.*the same command goes on from there$"):
        from_file(Faulty(noise(), OSError(number, reason)), Frame(size=8))


def test_a_picture_that_there_is_no_memory_for_is_no_damaged_one():
    file = Faulty(noise(), MemoryError())
    file.name = "photos/a.png"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(DataError, match=r"^photos/a.png cannot be read: not enough memory\n"):
        from_file(file, Frame(size=8))


@pytest.mark.parametrize("error", [OSError("image file is truncated"), OSError(errno.EINVAL, "Invalid argument")])
def test_what_a_decoder_refuses_is_a_damaged_picture(error):
    with pytest.raises(UnusablePictureError, match=r"truncated|Invalid argument"):
        from_file(Faulty(noise(), error), Frame(size=8))


def test_a_fault_of_the_system_in_exif_is_not_taken_for_no_exif(monkeypatch):
    def fails(_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Image.Image, "getexif", fails)
    with pytest.raises(DataError, match="Input/output error"):
        decode(saved(Image.new("L", (4, 4)), "TIFF"), 1)


def test_another_format_under_the_name_of_a_picture_is_not_opened():
    eps = saved(half_red_half_blue(), "EPS")  # Pillow would start Ghostscript
    with pytest.raises(UnusablePictureError, match="not a picture"):
        decode(eps, 3)


def test_a_store_holds_nothing_but_webp():
    webp = saved(half_red_half_blue(), "WEBP", lossless=True).getvalue()
    assert decoded(webp, 3).shape == (3, 20, 40)
    with pytest.raises(DataError, match="damaged"):
        decoded(saved(half_red_half_blue(), "PNG").getvalue(), 3)


def test_pictures_that_are_too_large_are_left_out(monkeypatch):
    content = saved(half_red_half_blue(), "PNG").getvalue()
    with monkeypatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 300)
        with pytest.raises(UnsuitablePictureError, match="too large: more than 600 pixels"):
            decode(io.BytesIO(content), 3)
    monkeypatch.setattr(frame, "MOST_SIDE", 39)
    with pytest.raises(UnsuitablePictureError, match="too large: 40x20 pixels, at most 39 a side"):
        decode(io.BytesIO(content), 3)


def test_32_bit_integers_have_no_range():
    with pytest.raises(UnsuitablePictureError, match="32-bit integer pixels have no fixed range"):
        decode(saved(Image.fromarray(np.full((2, 2), 200, np.int32)), "TIFF"), 3)


@pytest.mark.parametrize("form", ["PNG", "TIFF", "PPM"])  # Pillow opens the last as 32-bit integers
def test_16_bits_become_8_rounded(form):
    levels = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    image = decode(saved(Image.fromarray(levels), form), 1)
    assert np.array_equal(np.asarray(image), (levels / 257).round())


def test_a_transparent_level_of_16_bits_shows_the_background():
    levels = np.array([[25700, 25701], [0, 65535]], np.uint16)
    file = saved(Image.fromarray(levels), "PNG", transparency=25700)
    image = decode(file, 3, "#204060")
    assert image.getpixel((0, 0)) == (0x20, 0x40, 0x60)
    assert [image.getpixel(at) for at in ((1, 0), (0, 1), (1, 1))] == [(level,) * 3 for level in (100, 0, 255)]
    file.seek(0)
    assert decode(file, 1, "white").getpixel((0, 0)) == 255


@pytest.mark.parametrize("mode", ["1", "L", "P", "PA", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I;16"])
@pytest.mark.parametrize("clear", [None, 7])
def test_rows_are_brought_to_the_channels_a_few_at_a_time(mode, clear, monkeypatch):
    levels = np.random.default_rng(0).integers(0, 256, (11, 6, 4), dtype=np.uint8)
    image = Image.fromarray(levels).convert("P" if mode == "PA" else "L" if mode == "I;16" else "RGB").convert(mode)
    if clear is not None and mode in ("1", "L", "P", "I;16"):
        image.info["transparency"] = clear
    whole = to_channels(image, 3, "#204060")
    monkeypatch.setattr(modes, "BAND", 13)
    assert np.array_equal(np.asarray(to_channels(image, 3, "#204060")), np.asarray(whole))


@pytest.mark.parametrize("sides", [(97, 64), (31, 200), (129, 131), (5, 9)])
@pytest.mark.parametrize("bits", [1, 8, 16])
def test_grey_pictures_are_resized_as_if_they_had_colours(sides, bits):
    levels = np.random.default_rng(0).integers(0, 1 << bits, (sides[1], sides[0])).astype(np.uint16)
    image = Image.fromarray(levels if bits == 16 else levels.astype(np.uint8) * (255 if bits == 1 else 1))
    expected = original_rule(to_channels(image, 3), 16).transpose(2, 0, 1)
    file = saved(image.convert("1") if bits == 1 else image, "PNG")
    assert np.array_equal(from_file(file, Frame(size=16)).pixels, expected)


@pytest.mark.parametrize(
    ("mode", "side", "mebibytes"),
    [("I;16", 3000, 60), ("1", 6000, 110), ("RGBA", 5000, 250)],
)
def test_a_large_picture_takes_little_more_than_it_is_decoded_to(mode, side, mebibytes):
    file = saved(Image.new(mode, (side, side)), "PNG", compress_level=1)
    with at_most(mebibytes):
        assert from_file(file, Frame(size=64)).pixels.shape == (3, 64, 64)


def test_damaged_exif_is_no_damage():
    exif = b"Exif\x00\x00" + b"\xff" * 30
    assert decode(saved(half_red_half_blue(), "JPEG", exif=exif), 3).size == (40, 20)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "mode",
    [
        "1",
        "L",
        "P",
        "RGB",
        "RGBA",
        "RGBX",
        "CMYK",
        "YCbCr",
        "LAB",
        "HSV",
        "LA",
        "La",
        "PA",
        "RGBa",
        "I;16",
        "I;16B",
    ],
)
def test_any_mode_is_brought_to_the_channels(mode, channels):
    image = Image.new(mode, (3, 2))
    assert to_channels(image, channels).mode == {1: "L", 3: "RGB"}[channels]


def test_the_first_frame_of_an_animation_is_taken():
    frames = [Image.new("RGB", (6, 6), colour) for colour in (RED, BLUE, "green")]
    for form in ("GIF", "WEBP", "PNG", "TIFF"):
        lossless = {"lossless": True} if form == "WEBP" else {}
        file = saved(frames[0], form, save_all=True, append_images=frames[1:], **lossless)
        assert decode(file, 3).getpixel((2, 2)) == RED


def test_the_background_shows_through():
    array = np.zeros((4, 4, 4), np.uint8)
    array[0, 0] = (1, 2, 3, 255)
    picture = from_array(array, Frame(size=4, background="#204060"))
    assert picture.pixels[:, 3, 3].tolist() == [0x20, 0x40, 0x60]
    assert picture.pixels[:, 0, 0].tolist() == [1, 2, 3]
    assert from_array(array, Frame(size=4, channels=1, background="black")).pixels[0, 3, 3] == 0


@pytest.mark.parametrize("background", ["whitish", "#12", "#11223344", ""])
def test_a_colour_that_is_none_is_refused(background):
    with pytest.raises(ConfigError, match="allowed: a colour's name, or #rrggbb"):
        Frame(size=4, background=background)


def test_whole_pictures_are_square_ones():
    frame = Frame(size=4, whole=True)
    assert from_array(np.full((9, 9, 3), 7, np.uint8), frame).pixels.shape == (3, 4, 4)
    with pytest.raises(UnsuitablePictureError, match="not square: 9x8"):
        from_array(np.zeros((8, 9), np.uint8), frame)
    exif = Image.Exif()
    exif[0x0112] = 6
    with pytest.raises(UnsuitablePictureError, match="not square: 20x40"):
        from_file(saved(half_red_half_blue(), "JPEG", exif=exif), frame)


def test_fast_jpegs_are_nearly_the_rules_and_keep_their_sides():
    across, down = np.meshgrid(np.linspace(0, 255, 300), np.linspace(0, 255, 200))
    image = Image.fromarray(np.stack([across, down, 255 - across], 2).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    file = saved(image, "JPEG", quality=95, exif=exif)
    exact, fast = (from_file(io.BytesIO(file.getvalue()), Frame(size=24, fast_jpeg=each)) for each in (False, True))
    assert (fast.width, fast.height) == (exact.width, exact.height) == (200, 300)
    difference = abs(exact.pixels.astype(int) - fast.pixels)
    assert 0 < difference.max() <= 16
    assert difference.mean() < 3
    png = saved(image, "PNG").getvalue()
    exact, fast = (from_file(io.BytesIO(png), Frame(size=24, fast_jpeg=each)) for each in (False, True))
    assert np.array_equal(exact.pixels, fast.pixels)

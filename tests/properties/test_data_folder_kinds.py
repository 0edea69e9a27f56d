"""Folders made by hypothesis: names in any script, odd modes, sides from 1x1 to 4000x30, damage."""

import io
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from iddpm.data.frame import decode, pixels_of, square, to_channels
from iddpm.data.listing import natural_key
from iddpm.data.preparing import prepare

MODES = {
    "1": (".png", ".bmp", ".TIFF"),
    "L": (".png", ".JPG", ".webp", ".gif"),
    "LA": (".png",),
    "P": (".PNG", ".gif"),
    "RGB": (".jpeg", ".Bmp", ".WebP", ".ppm"),
    "RGBA": (".png", ".webp", ".tif"),
    "CMYK": (".jpg", ".tiff"),
    "I;16": (".png", ".tiff"),
}
letters = st.characters(exclude_characters="/\0.", exclude_categories=("Cs", "Cc"))
names = st.text(letters, min_size=1, max_size=12)
sides = st.tuples(st.integers(1, 60), st.integers(1, 60)) | st.sampled_from([(1, 1), (4000, 30), (30, 4000), (1, 300)])


@st.composite
def pictures(draw) -> tuple[str, bytes]:
    """A suffix that may carry a mode, and a file in it."""
    mode = draw(st.sampled_from(sorted(MODES)))
    suffix = draw(st.sampled_from(MODES[mode]))
    width, height = draw(sides)
    levels = np.random.default_rng(width * height).integers(0, 256, (height, width, 4), dtype=np.uint8)
    if mode == "I;16":
        image = Image.fromarray(levels[..., 0].astype(np.uint16) * 257)
    else:
        image = Image.fromarray(levels).convert("RGB").convert(mode) if mode != "RGBA" else Image.fromarray(levels)
    file = io.BytesIO()
    image.save(file, Image.registered_extensions()[suffix.lower()])
    return suffix, file.getvalue()


files = st.dictionaries(
    names, st.tuples(pictures(), st.sampled_from(["whole"] * 4 + ["cut", "empty"])), min_size=1, max_size=6
)


def write(folder: Path, made) -> list[str]:
    """Write the files; the names of those that are whole."""
    whole = []
    for name, ((suffix, content), state) in made.items():
        kept = {"whole": content, "cut": content[: min(8, len(content) // 2)], "empty": b""}[state]
        (folder / (name + suffix)).write_bytes(kept)
        whole += [name + suffix] if state == "whole" else []
    return whole


@settings(max_examples=25)
@given(made=files, channels=st.sampled_from([1, 3]), size=st.sampled_from([1, 8, 17]))
def test_whole_pictures_are_used_and_damaged_ones_named(made, channels, size):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "pictures"
        folder.mkdir()
        whole = write(folder, {"sure": ((".png", PIXEL), "whole")} | made)
        told = prepare(folder, size, Path(place) / "store", channels=channels, workers=1)
        assert told.store.images.shape == (len(whole), channels, size, size)
        provenance = told.store.provenance
        assert (provenance.used, provenance.ignored.count) == (len(whole), 0)
        assert provenance.found == provenance.used + provenance.damaged.count
        assert not {each.name for each in provenance.damaged.listed} & set(whole)


@given(made=pictures(), channels=st.sampled_from([1, 3]), size=st.integers(1, 40))
def test_any_picture_becomes_a_square(made, channels, size):
    image = decode(io.BytesIO(made[1]), channels)
    assert pixels_of(square(image, size)).shape == (channels, size, size)


@given(
    colour=st.tuples(*[st.integers(0, 255)] * 3),
    width=st.integers(1, 90),
    height=st.integers(1, 90),
    size=st.integers(1, 40),
)
def test_one_colour_stays_that_colour(colour, width, height, size):
    pixels = pixels_of(square(to_channels(Image.new("RGB", (width, height), colour), 3), size))
    assert (pixels == np.array(colour).reshape(3, 1, 1)).all()


@given(numbers=st.lists(st.integers(0, 10**6), min_size=1, max_size=20), word=names)
def test_numbers_sort_by_value(numbers, word):
    texts = [f"{word}_{number}" for number in numbers]
    assert [int(text.rpartition("_")[2]) for text in sorted(texts, key=natural_key)] == sorted(numbers)


def _pixel() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (1, 1)).save(file, "PNG")
    return file.getvalue()


PIXEL = _pixel()

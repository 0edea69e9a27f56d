"""Folders and archives made by hypothesis: names in any script, odd modes, sides from 1x1 to 4000x30, damage."""

import io
import tarfile
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from iddpm.data.frame import Frame, decode, from_file, pixels_of, square, to_channels
from iddpm.data.listing import natural_key
from iddpm.data.opening import open_source
from iddpm.data.preparing import prepare
from iddpm.runtime.errors import DataError
from peak_memory import at_most

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


dotted = st.builds("{}{}".format, st.sampled_from([""] * 6 + ["."]), names)
paths = st.builds(
    lambda above, name, suffix: ((*above, name), suffix),
    st.lists(dotted | st.sampled_from(["train", "val", "Test", "__MACOSX", "2", "10"]), max_size=3),
    dotted | st.integers(0, 30).map(str),
    st.sampled_from([""] * 6 + [".md"]),
)
trees = st.dictionaries(
    paths, st.tuples(pictures(), st.sampled_from(["whole"] * 4 + ["cut", "empty"])), min_size=1, max_size=8
)


def files_of(made, top: str) -> dict[str, bytes]:
    """The files of a tree by their paths, with one whole picture in any case."""
    whole = {f"{top}train/sure/0.png": PIXEL}
    for (parts, other), ((suffix, content), state) in made.items():
        kept = {"whole": content, "cut": content[: min(8, len(content) // 2)], "empty": b""}[state]
        whole[top + "/".join(parts) + (other or suffix)] = kept
    return whole


def in_every_kind(place: Path, made: list[tuple[str, bytes]]) -> list[Path]:
    """The same files as a folder, a zip and two tars."""
    kinds = [place / "folder", place / "a.zip", place / "a.tar", place / "a.tar.gz"]
    for name, content in made:
        (kinds[0] / name).parent.mkdir(parents=True, exist_ok=True)
        (kinds[0] / name).write_bytes(content)
    with zipfile.ZipFile(kinds[1], "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in made:
            archive.writestr(name, content)
    for path, mode in ((kinds[2], "w"), (kinds[3], "w:gz")):
        with tarfile.open(path, mode) as archive:
            for name, content in made:
                header = tarfile.TarInfo("./" + name)
                header.size = len(content)
                archive.addfile(header, io.BytesIO(content))
    return kinds


def listed(kind: Path, labels: str):
    """What a source offers, as far as it does not depend on what holds it."""
    listing = open_source(kind, labels=labels).listing
    held_out = None if listing.held_out is None else listing.held_out.tolist()
    numbers = None if listing.labels is None else listing.labels.tolist()
    return list(listing.names), listing.classes, numbers, held_out, listing.ignored, listing.notes, listing.split_rule


def stored(kind: Path, labels: str):
    """What is prepared from a source, or why nothing is."""
    try:
        store = prepare(kind, 8, f"{kind}-store", workers=1, labels=labels).store
    except DataError as error:
        return str(error).replace(str(kind), "SOURCE")
    told = store.provenance
    assert told.found == told.used + told.ignored.count + told.damaged.count
    return store.content_hash, told.found, told.ignored, told.damaged, told.duplicates, told.notes


@settings(max_examples=12)
@given(
    made=trees,
    top=st.sampled_from(["", "pictures/"]),
    shuffled=st.randoms(use_true_random=False),
    labels=st.sampled_from(["auto", "none"]),
)
def test_a_tree_is_the_same_source_whatever_holds_it_and_in_whatever_order_it_was_made(made, top, shuffled, labels):
    files = list(files_of(made, top).items())
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        kinds = in_every_kind(Path(one), files)
        shuffled.shuffle(files)
        kinds += in_every_kind(Path(two), files)
        expected = listed(kinds[0], labels)
        assert [listed(kind, labels) for kind in kinds] == [expected] * len(kinds)
        assert len(expected[0]) + expected[4].count <= len(files)
        assert stored(kinds[0], labels) == stored(kinds[5], labels) == stored(kinds[6], labels)


@settings(max_examples=25)
@given(made=files, channels=st.sampled_from([1, 3]), size=st.sampled_from([1, 8, 17]))
def test_whole_pictures_are_used_and_damaged_ones_named(made, channels, size):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "pictures"
        folder.mkdir()
        whole = write(folder, {"sure": ((".png", PIXEL), "whole")} | made)
        told = prepare(folder, size, Path(place) / "store", channels=channels, workers=1)
        assert told.store.read(slice(None)).shape == (len(whole), channels, size, size)
        provenance = told.store.provenance
        assert (provenance.used, provenance.ignored.count) == (len(whole), 0)
        assert provenance.found == provenance.used + provenance.damaged.count
        assert not {each.name for each in provenance.damaged.listed} & set(whole)


@settings(max_examples=60)
@given(made=pictures(), channels=st.sampled_from([1, 3]), size=st.integers(1, 256))
def test_any_picture_becomes_a_square_in_little_memory(made, channels, size):
    with at_most(80):  # the longest line that is enlarged whole, at this size: 64 MiB
        image = decode(io.BytesIO(made[1]), channels)
        assert pixels_of(square(image, size)).shape == (channels, size, size)


@settings(max_examples=20)
@given(
    short=st.integers(1, 3),
    long=st.integers(10_000, 700_000),
    on_its_side=st.booleans(),
    mode=st.sampled_from(["1", "L", "RGB", "I;16"]),
    size=st.integers(200, 256),
)
def test_a_line_of_any_length_becomes_a_square_in_little_memory(short, long, on_its_side, mode, size):
    file = io.BytesIO()
    Image.new(mode, (long, short) if on_its_side else (short, long)).save(file, "PNG")
    with at_most(120):
        assert (from_file(file, Frame(size=size)).pixels == 0).all()


@given(
    colour=st.tuples(*[st.integers(0, 255)] * 3),
    width=st.integers(1, 90),
    height=st.integers(1, 90),
    size=st.integers(1, 256),
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

import io
import json
import sys
from importlib.resources import files

import numpy as np
import pytest
import resvg_py
from PIL import Image

from iddpm.data.frame import Frame
from iddpm.data.opening import open_source
from iddpm.data.sources.built_in.avatars import STYLES, all_styles, avatars
from iddpm.data.sources.built_in.digits import digits
from iddpm.data.store import content_hash
from iddpm.runtime.errors import ConfigError, DataError


def test_avatars_take_turns_and_keep_their_seeds_apart():
    listing = avatars("avatars", STYLES, 20).listing
    assert len(listing.names) == 210
    assert listing.names[0] == "critters/train-0"
    assert listing.names[11] == "cutouts/train-1"
    assert listing.names[200] == "critters/held-out-0"
    assert len(set(listing.names)) == 210
    assert listing.labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert np.flatnonzero(listing.held_out).tolist() == list(range(200, 210))
    assert "CC0" in listing.attribution


@pytest.mark.parametrize("size", [16, 32])
def test_avatars_draw_different_pictures_of_the_size(size):
    source = avatars("avatars", STYLES, 2)
    drawn = [source.read(index, Frame(size=size)) for index in range(30)]
    assert all(picture.pixels.shape == (3, size, size) for picture in drawn)
    assert all(picture.pixels.std() > 5 for picture in drawn)
    assert len({picture.pixels.tobytes() for picture in drawn}) == 30
    assert np.array_equal(source.read(3, Frame(size=size)).pixels, drawn[3].pixels)


def test_definitions_draw_the_same_with_and_without_the_check():
    from dicebear import Avatar, Style
    from dicebear.validator import StyleValidator

    definition = json.loads(files("dicebear_styles").joinpath("thumbs.json").read_text(encoding="utf-8"))
    svg = str(Avatar(Style(definition), {"seed": "train-1"}))
    png = bytes(resvg_py.svg_to_bytes(svg_string=svg, width=32, height=32, skip_system_fonts=True))
    expected = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(avatars("avatars", ("thumbs",), 2).read(1, Frame(size=32)).pixels, expected)
    with pytest.raises(Exception, match="valid"):
        StyleValidator.validate({})


def test_transparent_background_becomes_white():
    picture = avatars("avatars", ("pixel-art",), 1).read(0, Frame(size=32))
    assert picture.pixels[:, 0, 0].tolist() == [255, 255, 255]


def test_all_styles_are_free_and_draw_no_letters():
    styles = all_styles()
    assert set(STYLES) < set(styles)
    assert not {"initials", "initial-face", "adventurer", "bottts", "icons"} & set(styles)
    assert len(styles) >= 30


def test_count_is_checked():
    with pytest.raises(ConfigError, match="count 0"):
        open_source("avatars", count=0)
    with pytest.raises(ConfigError, match="as many pictures as it has"):
        open_source("digits", count=5)


def test_digits_spread_over_all_levels():
    source = digits()
    assert len(source.listing.names) == 1797
    assert source.listing.classes == tuple("0123456789")
    first = source.read(0, Frame(size=8, channels=1))
    assert first.pixels.shape == (1, 8, 8)
    assert first.pixels[0, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]  # 0 0 5 13 9 1 0 0 of 16
    assert max(source.read(index, Frame(size=8, channels=1)).pixels.max() for index in range(20)) == 255
    assert source.read(0, Frame(size=8)).pixels.shape == (3, 8, 8)


def test_labels_can_be_left_out():
    listing = open_source("digits", labels="none").listing
    assert listing.labels is None
    assert listing.classes == ()
    assert listing.fingerprint != open_source("digits").listing.fingerprint


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match="needs scikit-learn"):
        digits()


def test_content_hash_tells_its_parts_apart():
    digests = np.array([b"a" * 16, b"b" * 16], dtype="S16")
    held_out, labels = np.array([1]), np.array([0, 1])
    hashes = {
        content_hash((3, 8), digests, labels, ("x", "y"), held_out),
        content_hash((1, 8), digests, labels, ("x", "y"), held_out),
        content_hash((3, 8), digests[::-1], labels, ("x", "y"), held_out),
        content_hash((3, 8), digests, labels, ("x", "z"), held_out),
        content_hash((3, 8), digests, None, (), held_out),
        content_hash((3, 8), digests, labels, ("x", "y"), np.array([0])),
    }
    assert len(hashes) == 6

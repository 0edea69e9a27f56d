"""Grids of pictures: every pixel where it belongs."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from iddpm.report.pictures import class_rows, contact_sheet, data_uri, grid, sheet
from iddpm.runtime.errors import DataError


def flat_pictures(n: int, height: int, width: int, channels: int) -> np.ndarray:
    """Picture i is of the one value 10 + 20 i."""
    values = (10 + 20 * np.arange(n, dtype=np.uint8)).reshape(n, 1, 1, 1)
    return np.broadcast_to(values, (n, height, width, channels)).copy()


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
@pytest.mark.parametrize(("n", "columns", "scale", "pad"), [(5, 3, 1, 2), (4, 2, 3, 0), (1, 4, 2, 1), (7, 1, 1, 5)])
def test_grid_has_the_size_that_its_docstring_states(n, columns, scale, pad, channels, mode):
    picture = grid(flat_pictures(n, 4, 6, channels), columns, scale=scale, pad=pad)
    rows = -(-n // columns)
    assert picture.size == (columns * (6 * scale + pad) + pad, rows * (4 * scale + pad) + pad)
    assert picture.mode == mode


def test_each_pixel_is_a_whole_block_at_its_place():
    images = np.random.default_rng(0).integers(0, 255, (5, 3, 2, 3), dtype=np.uint8)
    pixels = np.asarray(grid(images, 2, scale=4, pad=3))
    for position, image in enumerate(images):
        top, left = 3 + (position // 2) * (3 * 4 + 3), 3 + (position % 2) * (2 * 4 + 3)
        block = pixels[top : top + 12, left : left + 8]
        assert np.array_equal(block, image.repeat(4, axis=0).repeat(4, axis=1))


def test_space_between_is_the_background_and_empty_places_stay_empty():
    pixels = np.asarray(grid(flat_pictures(3, 2, 2, 1), 2, pad=1))
    expected = np.full((7, 7), 255)
    expected[1:3, 1:3], expected[1:3, 4:6], expected[4:6, 1:3] = 10, 30, 50
    assert np.array_equal(pixels, expected)


def test_no_background_is_transparent_and_pictures_are_opaque():
    pixels = np.asarray(grid(flat_pictures(1, 2, 2, 3), 1, pad=1, background=None))
    assert pixels.shape == (4, 4, 4)
    assert (pixels[1:3, 1:3, 3] == 255).all()
    assert pixels[:, :, 3].sum() == 4 * 255


def test_row_labels_widen_only_at_the_left_and_captions_deepen_each_row():
    images = flat_pictures(4, 20, 20, 3)
    bare, labelled = grid(images, 2), grid(images, 2, row_labels=["planets", "a much longer name than fits"])
    captioned = grid(images, 2, captions=["a", "b", "c", "d"])
    extra = labelled.width - bare.width
    assert 40 < extra < 200
    assert np.array_equal(np.asarray(labelled)[:, extra:], np.asarray(bare))
    assert np.asarray(labelled)[:, :extra].min() < 120
    assert captioned.width == bare.width
    assert captioned.height == bare.height + 2 * 18


def test_class_rows_take_the_first_of_each_class_and_mark_what_is_missing():
    labels = np.array([2, 0, 2, 2, 0])
    assert class_rows(labels, [0, 1, 2], 3).tolist() == [[1, 4, -1], [-1, -1, -1], [0, 2, 3]]


def test_contact_sheet_has_one_row_for_each_class_that_occurs():
    images, labels = flat_pictures(5, 4, 4, 3), np.array([2, 0, 2, 2, 0])
    picture = contact_sheet(images, labels, ["moods", "planets", "stack"], per_class=2, scale=2, pad=1)
    pixels = np.asarray(picture)
    left = picture.width - (2 * 9 + 1)
    assert picture.height == 2 * 9 + 1
    assert [int(pixels[1, left + 1, 0]), int(pixels[1, left + 10, 0])] == [30, 90]
    assert [int(pixels[10, left + 1, 0]), int(pixels[10, left + 10, 0])] == [10, 50]


def test_a_label_without_a_name_is_shown_by_its_number():
    images, labels = flat_pictures(2, 4, 4, 1), np.array([0, 7])
    named = contact_sheet(images, labels, ["moods", *["x"] * 6, "class 7"], per_class=1)
    assert np.array_equal(np.asarray(contact_sheet(images, labels, ["moods"], per_class=1)), np.asarray(named))


def test_sheet_follows_its_index():
    pixels = np.asarray(sheet(flat_pictures(3, 1, 1, 1), np.array([[2, -1], [-1, 0]]), pad=0))
    assert pixels.tolist() == [[50, 255], [255, 10]]


@pytest.mark.parametrize("images", [np.zeros((2, 4, 4, 2), np.uint8), np.zeros((0, 4, 4, 3), np.uint8)])
def test_what_cannot_be_shown_is_refused(images):
    with pytest.raises(DataError):
        grid(images, 2)


def test_data_uri_holds_the_very_picture():
    picture = grid(flat_pictures(3, 5, 4, 3), 3)
    head, _, body = data_uri(picture).partition(",")
    assert head == "data:image/png;base64"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(body)))), np.asarray(picture))

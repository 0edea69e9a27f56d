"""Random crops: the original's rule, each picture by itself, and a stream of their own for every step and place."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from iddpm.data.crop import CentreCrop, RandomCrop, WholePicture, Windows, draw_windows, resized, stored_size
from iddpm.data.loader import Batches
from iddpm.data.preparing import prepare
from iddpm.evaluation.pictures import InOrder
from iddpm.runtime.errors import ConfigError, DataError
from iddpm.runtime.seeds import Draws

NOISE = np.random.default_rng(0).integers(0, 256, (6, 3, 40, 40), dtype=np.uint8)


@given(st.integers(1, 60), st.floats(0.05, 1), st.floats(0.05, 1))
def test_sides_and_corners_stay_in_range(size, one, other):
    crop = RandomCrop(min_scale=min(one, other), max_scale=max(one, other))
    windows = draw_windows(crop, size, Draws(0, 0, torch.arange(64)))
    assert windows.side.min() >= size / crop.max_scale - 1e-9
    assert windows.side.max() <= stored_size(crop, size)
    for corner in (windows.top, windows.left):
        assert corner.min() >= 0
        assert (corner + size <= windows.side).all()


def test_every_side_and_corner_comes_up_alike():
    windows = draw_windows(RandomCrop(min_scale=0.8), 8, Draws(3, 1, torch.arange(30_000)))
    counts = np.bincount(windows.side)[8:]
    assert len(counts) == 3
    assert abs(counts / 10_000 - 1).max() < 0.05
    tops = np.bincount(windows.top[windows.side == 10])
    assert abs(tops / tops.mean() - 1).max() < 0.06
    at_ten = windows.side == 10
    assert abs(np.corrcoef(windows.top[at_ten], windows.left[at_ten])[0, 1]) < 0.05


@pytest.mark.parametrize("size", [13, 20, 32, 39])
def test_resampling_is_pillows_to_a_level(size):
    ours = resized(NOISE, size).astype(int)
    for image, expected in zip(ours, NOISE, strict=True):
        theirs = np.asarray(Image.fromarray(expected.transpose(1, 2, 0)).resize((size, size), Image.Resampling.BICUBIC))
        assert abs(image - theirs.transpose(2, 0, 1)).max() <= 1


def test_a_window_is_that_part_of_the_picture_brought_to_the_side():
    windows = Windows(np.array([40, 33, 40, 36, 32, 32]), np.array([0, 1, 8, 2, 0, 0]), np.array([8, 0, 3, 4, 0, 0]))
    cut = resized(NOISE, 32, windows)
    for row, (side, top, left) in enumerate(zip(windows.side, windows.top, windows.left, strict=True)):
        whole = resized(NOISE[row : row + 1], int(side))[0].astype(int)
        assert abs(cut[row] - whole[:, top : top + 32, left : left + 32]).max() <= 1
    assert np.array_equal(cut[2], NOISE[2, :, 8:, 3:35])  # at its own side nothing is resampled


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_a_picture_does_not_depend_on_its_batch(monkeypatch, limit):
    monkeypatch.setattr("iddpm.data.crop.WORTH_THREADS", limit)
    whole = resized(NOISE, 29)
    assert all(np.array_equal(whole[row : row + 1], resized(NOISE[row : row + 1], 29)) for row in range(6))


def test_flat_colours_and_extremes_stay():
    for level in (0, 1, 128, 254, 255):
        assert (resized(np.full((1, 1, 40, 40), level, np.uint8), 27) == level).all()


def test_scales_are_checked():
    for low, high in ((0.0, 1.0), (0.9, 0.8), (0.5, 1.2), (-1.0, 1.0)):
        with pytest.raises(ConfigError, match="random crops of scale"):
            RandomCrop(min_scale=low, max_scale=high)


def test_what_the_store_must_hold():
    assert stored_size(RandomCrop(), 64) == 80
    assert stored_size(CentreCrop(), 64) == stored_size(WholePicture(), 64) == 64


@pytest.fixture
def numbered(tmp_path):
    """One 64x64 picture of unique pixels, in 16 files."""
    values = np.arange(64 * 64)
    image = np.stack([values // 256, values % 256, np.zeros_like(values)], 1).reshape(64, 64, 3).astype(np.uint8)
    for number in range(16):
        (tmp_path / "pictures").mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / "pictures" / f"{number}.png")
    return prepare(tmp_path / "pictures", 64, tmp_path / "store").store


def corners(batch):
    """Where each crop was cut, read from its pixels; whether it is mirrored."""
    found = []
    for image in batch.images.numpy().astype(int):
        left, right = (image[0, 0, at] * 256 + image[1, 0, at] for at in (0, -1))
        found.append((min(left, right) // 64, min(left, right) % 64, right < left))
    return found


def test_dat_11_crops_differ_by_place_step_and_epoch_and_repeat_with_the_seed(numbered):
    crop = RandomCrop(min_scale=0.5, max_scale=0.5)
    batches = [Batches(numbered, "train", 16, seed, True, 32, crop) for seed in (0, 0, 1)]
    first, second = (corners(batches[0].at(step)) for step in (0, 1))  # two epochs of 16
    assert len(set(first)) > 12
    assert first != second
    assert {mirrored for *_, mirrored in first} == {True, False}
    ranks = [corners(batches[0].at(0, first=start, count=4)) for start in (0, 4, 8, 12)]
    assert [
        corner for rank in ranks for corner in rank
    ] == first  # four processes see the parts of one batch, each its own crops
    assert len({tuple(rank) for rank in ranks}) == 4
    assert corners(batches[1].at(1)) == second
    assert corners(batches[2].at(0)) != first


def test_a_store_of_another_size_is_refused(numbered):
    with pytest.raises(DataError, match="size 64; 80 is needed"):
        Batches(numbered, "train", 4, 0, size=64, crop=RandomCrop())
    with pytest.raises(DataError, match="size 64; 32 is needed"):
        Batches(numbered, "train", 4, 0, size=32)


def test_held_out_pictures_are_whole_at_the_size(numbered):
    batch = InOrder(numbered, "all", 4, size=32)[0]
    assert batch.images.shape == (4, 3, 32, 32)
    assert np.array_equal(batch.images.numpy(), resized(numbered.read(batch.index.numpy()), 32))

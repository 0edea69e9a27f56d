"""Downsampled ImageNet: small copies of its batches, pickled or in npz files, in one folder or in those of its parts."""

import os
import pickle
import tracemalloc

import jaxtyping
import numpy as np
import pytest

from iddpm.data.frame import Frame
from iddpm.data.preparing import prepare
from iddpm.data.sources.arrays.imagenet64 import imagenet64, is_imagenet64
from iddpm.runtime.errors import ConfigError, DataError
from python_2 import python_2

IMAGES = np.random.default_rng(0).integers(0, 256, (22, 8, 8, 3), dtype=np.uint8)  # two for each of eleven batches
ROWS = IMAGES.transpose(0, 3, 1, 2).reshape(22, 192)
LABELS = [1, 1000, *range(2, 22)]
NAMES = [*(f"train_data_batch_{number}" for number in range(1, 11)), "val_data"]


def content(number, **changes):
    part = slice(2 * number, 2 * number + 2)
    return {"data": ROWS[part], "labels": LABELS[part], "mean": ROWS.mean(0)} | changes


def write(folder, name, batch, how):
    folder.mkdir(exist_ok=True)
    if how == "pickle":
        (folder / name).write_bytes(python_2(batch) if batch.pop("mean", None) is None else pickle.dumps(batch))
    else:
        save = np.savez if how == "npz" else np.savez_compressed
        save(folder / f"{name}.npz", **batch)


def whole(folder, how="pickle"):
    for number, name in enumerate(NAMES):
        write(folder, name, content(number), how)
    return folder


@pytest.fixture
def folder(tmp_path):
    return whole(tmp_path / "imagenet")


def opened(path, labels="auto"):
    return imagenet64(path, "given", labels, None)


def as_read(source):
    pixels = [source.read(place, Frame(size=8)).pixels for place in source.places]
    return np.stack(pixels).transpose(0, 2, 3, 1)


@pytest.mark.parametrize("how", ["pickle", "npz", "npz compressed"])
def test_batches_in_their_order_with_the_validation_pictures_held_out(tmp_path, how):
    path = whole(tmp_path / "imagenet", how)
    assert is_imagenet64(path)
    source = opened(path)
    listing = source.listing
    assert np.array_equal(as_read(source), IMAGES)
    assert (listing.labels + 1).tolist() == LABELS
    assert listing.classes == tuple(str(label) for label in range(1, 1001))
    assert listing.classes[listing.labels[1]] == "1000"
    assert np.flatnonzero(listing.held_out).tolist() == [20, 21]
    assert "trains on train_data_batch_1 to train_data_batch_10, holds out val_data" in listing.split_rule
    assert (listing.names[19], listing.names[21], listing.kind) == (
        "train_data_batch_10[1]",
        "val_data[1]",
        "imagenet8",
    )


def test_batch_of_python_2(folder):
    (folder / "train_data_batch_1").write_bytes(python_2({"data": ROWS[:2], "labels": LABELS[:2]}))
    assert np.array_equal(as_read(opened(folder)), IMAGES)


def test_labels_may_be_an_array(folder):
    write(folder, "val_data", content(10, labels=np.array(LABELS[20:], ">u2")), "npz")
    assert (opened(folder).listing.labels + 1).tolist() == LABELS


def test_without_labels(folder):
    listing = opened(folder, "none").listing
    assert (listing.labels, listing.classes) == (None, ())
    with pytest.raises(ConfigError, match="labels=coarse: given brings its own labels"):
        opened(folder, "coarse")


def test_folders_of_the_parts_side_by_side(tmp_path):
    for number, name in enumerate(NAMES):
        part = "val" if number == 10 else f"train_part{1 + number // 5}"
        write(tmp_path / f"Imagenet64_{part}", name, content(number), "npz")
    assert is_imagenet64(tmp_path)
    assert np.array_equal(as_read(opened(tmp_path)), IMAGES)


def test_small_sizes_have_one_file_of_training_pictures(tmp_path):
    write(tmp_path, "train_data", {"data": ROWS[:20], "labels": LABELS[:20]}, "pickle")
    write(tmp_path, "val_data", {"data": ROWS[20:], "labels": LABELS[20:]}, "pickle")
    assert is_imagenet64(tmp_path)
    source = opened(tmp_path)
    assert np.array_equal(as_read(source), IMAGES)
    assert source.listing.names[19] == "train_data[19]"


def test_without_val_data_that_is_said(folder):
    (folder / "val_data").unlink()
    listing = opened(folder).listing
    assert listing.held_out is None
    assert listing.notes == ("no val_data: the held-out pictures are taken from the training pictures",)


def test_single_batch(folder):
    assert is_imagenet64(folder / "train_data_batch_3")
    source = opened(folder / "train_data_batch_3")
    assert np.array_equal(as_read(source), IMAGES[4:6])
    assert not is_imagenet64(folder / "nothing")


@pytest.mark.parametrize("number", [1, 4, 10])
def test_missing_batch_is_named(folder, number):
    (folder / f"train_data_batch_{number}").unlink()
    assert is_imagenet64(folder)
    with pytest.raises(DataError, match=f"given: missing train_data_batch_{number}\n"):
        opened(folder)


def test_validation_pictures_alone_are_no_set(tmp_path):
    write(tmp_path, "val_data", content(10), "npz")
    with pytest.raises(DataError, match="given: missing all training batches"):
        opened(tmp_path)


def test_two_sets_in_one_folder_are_told_apart(folder, tmp_path):
    write(folder, "train_data", content(0), "npz")
    with pytest.raises(DataError, match="train_data and train_data_batch_1 are both there"):
        opened(folder)
    for size in (32, 64):
        write(tmp_path / f"Imagenet{size}_val", "val_data", content(10), "npz")
    with pytest.raises(DataError, match="val_data lies in both Imagenet32_val and Imagenet64_val"):
        opened(tmp_path)


def test_batches_of_different_sizes(folder):
    write(folder, "val_data", content(10, data=np.zeros((2, 48), np.uint8)), "npz")
    with pytest.raises(DataError, match="batches of different sizes: 4, 8 pixels a side"):
        opened(folder)


@pytest.mark.parametrize("how", ["pickle", "npz", "npz compressed"])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_cut_batch_is_named(folder, how, kept):
    (folder / "train_data_batch_7").unlink()
    write(folder, "train_data_batch_7", content(6), how)
    path = next(folder.glob("train_data_batch_7*"))
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    assert is_imagenet64(folder)
    with pytest.raises(DataError, match=f"given: {path.name}: (damaged|not a whole npz file)"):
        opened(folder)


@pytest.mark.parametrize("how", ["pickle", "npz"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": ROWS[:2] / 1.0}, r"data is float64 \[2, 192\]"),
        ({"data": ROWS[:2, :190]}, r"data is uint8 \[2, 190\]"),
        ({"labels": [0, 1]}, "labels holds labels from 0 to 1"),
        ({"labels": [1, 1001]}, "labels holds labels from 1 to 1001"),
        ({"labels": [1]}, r"labels is int64 \[1\]"),
    ],
)
def test_batch_of_another_content_is_named(folder, how, changes, message):
    write(folder, "train_data_batch_2", content(1, **changes), how)
    with pytest.raises(DataError, match=rf"given: train_data_batch_2(\.npz)?: {message}"):
        opened(folder)


def test_arrays_of_other_names(folder):
    write(folder, "train_data_batch_2", {"pixels": ROWS[:2]}, "npz")
    with pytest.raises(DataError, match=r"given: train_data_batch_2\.npz: data is no array"):
        opened(folder)


def test_other_folders_are_not_imagenet64(tmp_path):
    (tmp_path / "train_data").mkdir()
    assert not is_imagenet64(tmp_path)
    (tmp_path / "val_data").write_text("words")
    (tmp_path / "train_data_batch_1.png").touch()
    assert not is_imagenet64(tmp_path)
    assert not is_imagenet64(tmp_path / "val_data")
    assert not is_imagenet64(tmp_path / ("x" * 5000))


def test_fingerprint_follows_the_files_and_not_their_place(folder, tmp_path):
    first = opened(folder).listing.fingerprint
    moved = folder.rename(tmp_path / "moved")
    assert opened(moved).listing.fingerprint == first
    os.utime(moved / "val_data", (1, 1))
    assert opened(moved).listing.fingerprint != first


@pytest.mark.parametrize(("how", "limit"), [("pickle", 1.5), ("npz", 0.3), ("npz compressed", 0.9)])
def test_memory_does_not_follow_the_number_of_batches(tmp_path, how, limit, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the checks keep what they checked for a while
    rows = np.zeros((400, 3 * 64 * 64), np.uint8)
    for name in NAMES:
        write(tmp_path, name, {"data": rows, "labels": [1] * 400}, how)
    tracemalloc.start()
    opened(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < limit * rows.nbytes


def test_store(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("iddpm.data.preparing.open_source", lambda *_, **__: opened(folder))
    store = prepare("given", 8, tmp_path / "store").store
    assert (store.labels + 1).tolist() == LABELS
    assert store.held_out.tolist() == [20, 21]
    assert np.array_equal(store.read(slice(None)).transpose(0, 2, 3, 1), IMAGES)

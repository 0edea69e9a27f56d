"""`prepare`: the places it writes to, npz files, built-in sets, and what happens the second time."""

import os
import shutil

import numpy as np
import pytest

from iddpm.data.checking import check_content
from iddpm.data.preparing import prepare
from iddpm.data.store import open_store
from iddpm.runtime.errors import ConfigError, DataError, OutputError
from tiny import Lines

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)


@pytest.fixture
def source(tmp_path):
    np.savez(tmp_path / "pictures.npz", IMAGES)
    return tmp_path / "pictures.npz"


def test_the_second_time_nothing_is_done(source, tmp_path):
    first = prepare(source, 8, tmp_path / "store")
    before = (tmp_path / "store" / "store.json").stat().st_mtime_ns
    told = Lines()
    again = prepare(source, 8, tmp_path / "store", listener=told)
    assert (first.already, again.already) == (False, True)
    assert not told.progressed
    assert (tmp_path / "store" / "store.json").stat().st_mtime_ns == before
    assert again.figures() | {"seconds": 0, "already": 0} == first.figures() | {"seconds": 0, "already": 0}


def test_touched_source_with_the_same_pictures_is_the_same_store(tmp_path):
    from PIL import Image

    (tmp_path / "pictures").mkdir()
    for number, image in enumerate(IMAGES):
        Image.fromarray(image).save(tmp_path / "pictures" / f"{number}.png")
    first = prepare(tmp_path / "pictures", 8, tmp_path / "store")
    os.utime(tmp_path / "pictures" / "3.png", (1, 1))
    again = prepare(tmp_path / "pictures", 8, tmp_path / "store")
    assert again.already
    assert again.store.content_hash == first.store.content_hash
    check_content(again.store)


def test_other_content_is_refused_and_the_store_stays(source, tmp_path):
    kept = prepare(source, 8, tmp_path / "store").store.content_hash
    np.savez(source, IMAGES[::-1])
    with pytest.raises(OutputError, match="other content"):
        prepare(source, 8, tmp_path / "store")
    with pytest.raises(OutputError, match="3 channels at size 8"):
        prepare(source, 4, tmp_path / "store")
    with pytest.raises(OutputError, match="3 channels at size 8"):
        prepare(source, 8, tmp_path / "store", channels=1)
    check_content(open_store(tmp_path / "store"))
    assert open_store(tmp_path / "store").content_hash == kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pictures.npz", "store"]


def test_a_place_that_is_something_else_is_refused_before_any_work(source, tmp_path):
    told = Lines()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years of work")
    for place in (tmp_path / "full", source, source / "below"):
        with pytest.raises(OutputError):
            prepare(source, 8, place, listener=told)
    assert not told.progressed
    assert (tmp_path / "full" / "thesis.txt").read_text() == "years of work"


def test_an_empty_folder_is_a_place(source, tmp_path):
    (tmp_path / "store").mkdir()
    assert len(prepare(source, 8, tmp_path / "store").store) == 12


def test_a_source_without_a_usable_picture_leaves_nothing(tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(b"none")
    with pytest.raises(DataError, match="none of 1 pictures can be used"):
        prepare(tmp_path / "pictures", 8, tmp_path / "store")
    assert [path.name for path in tmp_path.iterdir()] == ["pictures"]


def test_progress_counts_to_the_end(source, tmp_path):
    told = Lines()
    prepare(source, 8, tmp_path / "store", listener=told)
    assert told.progressed == [("preparing", done, 12) for done in range(1, 13)]


def test_sources_that_are_none(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        prepare(tmp_path / "nothing", 8, tmp_path / "store")
    with pytest.raises(DataError, match="no such file or folder"):
        prepare("x" * 5000, 8, tmp_path / "store")
    (tmp_path / "words.txt").write_text("hello")
    with pytest.raises(DataError, match="cannot be read"):
        prepare(tmp_path / "words.txt", 8, tmp_path / "store")


def test_a_store_is_no_source(source, tmp_path):
    prepare(source, 8, tmp_path / "store")
    with pytest.raises(DataError, match="prepared store already"):
        prepare(tmp_path / "store", 8, tmp_path / "other")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"elsewhere": IMAGES}, "no array arr_0"),
        ({"arr_0": IMAGES / 255.0}, "float64"),
        ({"arr_0": IMAGES[..., :2]}, r"\[12, 8, 8, 2\]"),
        ({"arr_0": IMAGES[:0]}, r"\[0, 8, 8, 3\]"),
        ({"arr_0": IMAGES, "arr_1": np.zeros(11, int)}, r"arr_1 is int64 \[11\]"),
        ({"arr_0": IMAGES, "arr_1": np.full(12, 0.5)}, "arr_1 is float64"),
        ({"arr_0": IMAGES, "arr_1": np.full(12, -1)}, "labels from -1"),
        ({"arr_0": np.array([{}, {}])}, "plain arrays"),
    ],
)
def test_npz_files_that_cannot_be_used(tmp_path, arrays, message):
    np.savez(tmp_path / "pictures.npz", allow_pickle=True, **arrays)
    with pytest.raises(DataError, match=message):
        prepare(tmp_path / "pictures.npz", 8, tmp_path / "store")


def test_npz_file_cut_in_half(source, tmp_path):
    whole = source.read_bytes()
    source.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="not a whole npz file"):
        prepare(source, 8, tmp_path / "store")


def test_grey_npz_and_labels_left_out(tmp_path):
    np.savez(tmp_path / "grey.npz", IMAGES[..., 0], np.arange(12) % 2)
    labelled = prepare(tmp_path / "grey.npz", 8, tmp_path / "a", channels=1).store
    assert np.array_equal(labelled.read(slice(None))[:, 0], IMAGES[..., 0])
    assert labelled.labels.tolist() == [0, 1] * 6
    assert prepare(tmp_path / "grey.npz", 8, tmp_path / "b", labels="none").store.labels is None
    with pytest.raises(ConfigError, match="brings its own labels"):
        prepare(tmp_path / "grey.npz", 8, tmp_path / "c", labels="prefix")


def test_digits(tmp_path):
    result = prepare("digits", 8, tmp_path / "store", channels=1)
    assert (len(result.store.train), len(result.store.held_out)) == (1707, 90)
    assert "CC BY 4.0" in result.figures()["attribution"]


def test_avatars_hold_out_their_own_seeds(tmp_path):
    result = prepare("avatars", 16, tmp_path / "store", count=3)
    store = result.store
    assert (len(store.train), len(store.held_out)) == (30, 10)
    assert sorted(store.labels[store.held_out].tolist()) == list(range(10))
    assert "by seed" in result.figures()["split_rule"]


def test_avatars_from_processes_equal_those_from_one(tmp_path, monkeypatch):
    monkeypatch.setattr("iddpm.data.work.WORTH_PROCESSES", 0)
    stores = [
        prepare("avatars", 16, tmp_path / str(workers), count=3, workers=workers).store.path for workers in (1, 2)
    ]
    for name in ("images-00000.bin", "labels.npy", "held_out.npy", "store.json"):
        assert (stores[0] / name).read_bytes() == (stores[1] / name).read_bytes()


def test_a_store_can_be_moved(source, tmp_path):
    prepare(source, 8, tmp_path / "store")
    shutil.move(tmp_path / "store", tmp_path / "moved")
    assert prepare(source, 8, tmp_path / "moved").already


def test_npy_file_under_another_name(tmp_path):
    with (tmp_path / "pictures.npz").open("wb") as file:
        np.save(file, IMAGES)
    store = prepare(tmp_path / "pictures.npz", 8, tmp_path / "store").store
    assert np.array_equal(store.read(slice(None)).transpose(0, 2, 3, 1), IMAGES)

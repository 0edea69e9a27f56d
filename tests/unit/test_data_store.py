import json
import shutil

import numpy as np
import pytest

from iddpm.data.checking import check_content
from iddpm.data.preparing import prepare
from iddpm.data.store import is_store, label_of, open_store
from iddpm.runtime.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(40) % 4


@pytest.fixture
def place(tmp_path):
    np.savez(tmp_path / "pictures.npz", IMAGES, LABELS)
    prepare(tmp_path / "pictures.npz", 8, tmp_path / "store")
    return tmp_path / "store"


def test_store_holds_what_was_given(place):
    store = open_store(place, size=8, channels=3)
    assert np.array_equal(store.read(slice(None)), IMAGES.transpose(0, 3, 1, 2))
    assert np.array_equal(store.labels, LABELS)
    assert store.classes == ("0", "1", "2", "3")
    assert len(store.held_out) == 2
    assert sorted([*store.train, *store.held_out]) == list(range(40))
    assert np.array_equal(store.indices("all"), np.arange(40))


def test_opening_reads_no_picture(place):
    (place / "images-00000.bin").write_bytes(bytes(7680))
    assert not open_store(place).read(slice(0, 3)).any()


def test_what_is_read_is_the_readers_own(place):
    store = open_store(place)
    store.read(slice(0, 1))[:] = 0
    assert np.array_equal(store.read(slice(0, 1))[0], IMAGES[0].transpose(2, 0, 1))


def test_hash_is_of_the_content_alone(place, tmp_path):
    moved = shutil.copytree(place, tmp_path / "elsewhere")
    assert open_store(moved).content_hash == open_store(place).content_hash
    check_content(open_store(moved))

    def hash_with(images, labels):
        np.savez(tmp_path / "other.npz", images, labels)
        shutil.rmtree(tmp_path / "other", ignore_errors=True)
        return prepare(tmp_path / "other.npz", 8, tmp_path / "other").store.content_hash

    assert hash_with(IMAGES, LABELS) == open_store(place).content_hash
    one_level = IMAGES.copy()
    one_level[7, 3, 3, 1] ^= 1
    assert hash_with(one_level, LABELS) != open_store(place).content_hash
    one_label = LABELS.copy()
    one_label[7] = 0
    assert hash_with(IMAGES, one_label) != open_store(place).content_hash


def test_missing_path(tmp_path):
    with pytest.raises(DataError, match="no such store"):
        open_store(tmp_path / "nothing")


def test_not_a_store(tmp_path):
    assert not is_store(tmp_path)
    with pytest.raises(DataError, match="not a prepared store"):
        open_store(tmp_path)


def test_another_size_or_number_of_channels(place):
    with pytest.raises(DataError, match="size 8, asked for 16"):
        open_store(place, size=16)
    with pytest.raises(DataError, match="channels 3, asked for 1"):
        open_store(place, channels=1)


def test_cut_images(place):
    with (place / "images-00000.bin").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(DataError, match="100 bytes, expected 7680"):
        open_store(place)


@pytest.mark.parametrize("name", ["images-00000.bin", "labels.npy", "held_out.npy"])
def test_missing_file(place, name):
    (place / name).unlink()
    with pytest.raises(DataError, match=name):
        open_store(place)


@pytest.mark.parametrize("name", ["labels.npy", "held_out.npy", "store.json"])
def test_file_cut_in_half(place, name):
    whole = (place / name).read_bytes()
    (place / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=name):
        open_store(place)


def test_tables_that_do_not_fit(place):
    np.save(place / "labels.npy", np.full(40, 4))
    with pytest.raises(DataError, match=r"labels.npy is damaged"):
        open_store(place)


def test_another_schema(place):
    header = json.loads((place / "store.json").read_text())
    (place / "store.json").write_text(json.dumps(header | {"schema": 99}))
    with pytest.raises(DataError, match="schema 99, this version reads 2"):
        open_store(place)


def test_header_without_a_field(place):
    header = json.loads((place / "store.json").read_text())
    del header["count"]
    (place / "store.json").write_text(json.dumps(header))
    with pytest.raises(DataError, match="damaged"):
        open_store(place)


def test_changed_pixels_are_found_by_the_full_check(place):
    with (place / "images-00000.bin").open("r+b") as file:
        first = file.read(1)[0]
        file.seek(0)
        file.write(bytes([first ^ 1]))
    with pytest.raises(DataError, match="content differs"):
        check_content(open_store(place))


def test_class_by_name_or_number():
    assert label_of(("0", "1", "2", "10"), "10") == 3
    assert label_of(("cat", "dog"), "dog") == 1
    assert label_of(("cat", "dog"), "0") == 0
    with pytest.raises(DataError, match="no class '3'"):
        label_of(("0", "1", "2", "10"), "3")
    with pytest.raises(DataError, match="allowed: cat, dog"):
        label_of(("cat", "dog"), "cow")
    with pytest.raises(DataError, match="no classes"):
        label_of((), "cow")

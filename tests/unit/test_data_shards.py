"""Raw and encoded shards hold the same pictures behind the same interface."""

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from iddpm.data.checking import check_content
from iddpm.data.preparing import prepare
from iddpm.data.shards import Layout, decoded, encoded
from iddpm.data.store import open_store
from iddpm.runtime.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 3), dtype=np.uint8)


@pytest.fixture
def source(tmp_path):
    np.savez(tmp_path / "pictures.npz", IMAGES, np.arange(50) % 4)
    return tmp_path / "pictures.npz"


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr("iddpm.data.shards.SHARD_BYTES", 7 * 8 * 8 * 3)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("limit", [0, 10**9])
@pytest.mark.usefixtures("small_shards")
def test_many_shards_hold_what_was_given(source, tmp_path, channels, limit):
    store = prepare(source, 8, tmp_path / "store", channels=channels, encode_above_bytes=limit).store
    assert store.encoding == ("webp" if limit == 0 else "raw")
    assert len(list((tmp_path / "store").glob("images-*"))) == (8 if channels == 3 else 3)
    if channels == 3:
        assert np.array_equal(store.read(slice(None)), IMAGES.transpose(0, 3, 1, 2))
    index = np.random.default_rng(1).integers(0, 50, 200)
    assert np.array_equal(store.read(index), store.read(slice(None))[index])
    check_content(store)


def test_encoded_and_raw_stores_have_one_identity(source, tmp_path):
    raw = prepare(source, 8, tmp_path / "raw").store
    small = prepare(source, 8, tmp_path / "small", encode_above_bytes=0).store
    assert raw.content_hash == small.content_hash
    assert small.raw_bytes == raw.raw_bytes == IMAGES.nbytes
    again = prepare(source, 8, tmp_path / "small", encode_above_bytes=10**9)
    assert again.already
    assert again.store.encoding == "raw"
    assert not list((tmp_path / "small").glob("*.webp"))


@given(
    arrays(
        np.uint8,
        st.tuples(st.sampled_from([1, 3]), st.integers(1, 40), st.integers(1, 40)),
        elements=st.integers(0, 255),
    )
)
@settings(max_examples=60)
def test_encoding_loses_nothing(pixels):
    assert np.array_equal(decoded(encoded(pixels), len(pixels)), pixels)


def test_encoding_makes_pictures_smaller():
    across = np.linspace(0, 255, 64).astype(np.uint8)
    assert len(encoded(np.broadcast_to(across, (3, 64, 64)).copy())) < 3 * 64 * 64 / 4


def test_decoding_by_threads_keeps_the_order(tmp_path, monkeypatch):
    monkeypatch.setattr("iddpm.data.shards.WORTH_THREADS", 0)
    np.savez(tmp_path / "pictures.npz", IMAGES)
    store = prepare(tmp_path / "pictures.npz", 8, tmp_path / "store", encode_above_bytes=0).store
    assert np.array_equal(store.read(slice(None)), IMAGES.transpose(0, 3, 1, 2))


@pytest.fixture
def place(source, tmp_path, small_shards):
    return prepare(source, 8, tmp_path / "store", encode_above_bytes=0).store.path


def test_cut_encoded_shard(place):
    with (place / "images-00003.webp").open("r+b") as file:
        file.truncate(10)
    with pytest.raises(DataError, match=r"images-00003.webp is cut or overwritten: 10 bytes"):
        open_store(place)


def test_ends_that_were_changed(place):
    np.save(place / "ends.npy", np.arange(50))
    with pytest.raises(DataError, match=r"ends.npy is damaged"):
        open_store(place)


def test_a_damaged_picture_is_told_when_it_is_read(place):
    with (place / "images-00000.webp").open("r+b") as file:
        file.write(bytes(20))
    with pytest.raises(DataError, match="a picture in the store is damaged"):
        open_store(place).read(slice(None))


def test_shards_of_a_large_store_are_few_and_those_of_a_small_one_not_large():
    assert Layout.of((3, 64, 64), 1_281_167, "raw").per_shard == (1 << 30) // (3 * 64 * 64)
    huge = Layout.of((3, 256, 256), 3_000_000, "webp")
    assert len(huge.shards(3_000_000)) == 256
    assert sum(huge.shards(3_000_000)) == 3_000_000
    assert Layout.of((3, 40000, 40000), 2, "raw").per_shard == 1


def test_a_store_can_be_moved(place, tmp_path):
    moved = shutil.move(place, tmp_path / "elsewhere")
    check_content(open_store(moved))

"""MNIST's format: small sets of it, and every way in which its files can be damaged or mixed up."""

import gzip
import os
import struct
import tracemalloc

import numpy as np
import pytest

from iddpm.data.frame import Frame
from iddpm.data.preparing import prepare
from iddpm.data.sources.arrays.idx import idx, is_idx
from iddpm.data.sources.built_in.fashion_mnist import fashion_mnist
from iddpm.runtime.errors import ConfigError, DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (8, 28, 28), dtype=np.uint8)
LABELS = np.array([5, 0, 4, 1, 9, 2, 1, 3], np.uint8)
PARTS = {"train": slice(0, 6), "t10k": slice(6, 8)}


def idx_bytes(array, kind=8):
    return bytes((0, 0, kind, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write(path, array):
    content = idx_bytes(array)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def whole(folder, images="{}-images-idx3-ubyte.gz", labels="{}-labels-idx1-ubyte.gz", parts=PARTS):
    folder.mkdir(exist_ok=True)
    for name, part in parts.items():
        write(folder / images.format(name), IMAGES[part])
        write(folder / labels.format(name), LABELS[part])
    return folder


@pytest.fixture
def folder(tmp_path):
    return whole(tmp_path / "mnist")


def opened(path, labels="auto", **options):
    return idx(path, "given", labels, None, **options)


def as_read(source):
    return np.stack([source.read(place, Frame(size=28, channels=1)).pixels[0] for place in source.places])


@pytest.mark.parametrize("ending", ["-ubyte", "-ubyte.gz"])
@pytest.mark.parametrize("before", ["-", "."])
@pytest.mark.parametrize("prefix", ["", "kmnist-"])
@pytest.mark.parametrize("held_out", ["t10k", "test"])
def test_names_that_sets_come_with(tmp_path, prefix, held_out, before, ending):
    parts = {"train": PARTS["train"], held_out: PARTS["t10k"]}
    names = [f"{prefix}{{}}-{what}{before}idx{axes}{ending}" for what, axes in (("images", 3), ("labels", 1))]
    path = whole(tmp_path / "set", *names, parts)
    assert is_idx(path)
    source = opened(path)
    assert np.array_equal(as_read(source), IMAGES)
    assert source.listing.labels.tolist() == LABELS.tolist()
    assert source.listing.held_out.tolist() == [False] * 6 + [True] * 2
    assert "trains on train, holds out test" in source.listing.split_rule
    assert source.listing.names[5:7] == ["train[5]", "test[0]"]


def test_classes_are_the_numbers_or_as_given(folder):
    assert opened(folder).listing.classes == tuple("0123456789")
    names = tuple("abcdefghij")
    assert opened(folder, classes=names).listing.classes == names
    assert opened(folder, classes=names).listing.fingerprint != opened(folder).listing.fingerprint
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz holds labels from 0 to 9\nallowed: 0 to 2"):
        opened(folder, classes=("a", "b", "c"))


def test_pictures_of_emnist_are_set_upright(tmp_path):
    names = ("emnist-letters-{}-images-idx3-ubyte", "emnist-letters-{}-labels-idx1-ubyte")
    source = opened(whole(tmp_path / "emnist", *names))
    assert np.array_equal(as_read(source), IMAGES.transpose(0, 2, 1))
    assert "set upright" in source.listing.notes[0]


def test_one_file_of_pictures_with_the_labels_beside_it(folder):
    path = folder / "t10k-images-idx3-ubyte.gz"
    assert is_idx(path)
    source = opened(path)
    assert np.array_equal(as_read(source), IMAGES[6:])
    assert source.listing.labels.tolist() == LABELS[6:].tolist()
    assert source.listing.held_out is None


def test_one_file_under_any_name(tmp_path):
    write(tmp_path / "pictures", IMAGES)
    assert is_idx(tmp_path / "pictures")
    source = opened(tmp_path / "pictures")
    assert np.array_equal(as_read(source), IMAGES)
    assert source.listing.labels is None
    assert source.listing.notes == ("no labels: there is no labels file",)


def test_unpacked_files_beside_the_packed_are_used(folder):
    whole(folder, "{}-images-idx3-ubyte", "{}-labels-idx1-ubyte")
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"damaged")
    assert np.array_equal(as_read(opened(folder)), IMAGES)


def test_without_labels(folder):
    assert opened(folder, "none").listing.labels is None
    assert opened(folder, "none").listing.notes == ()
    with pytest.raises(ConfigError, match="labels=folders: given brings its own labels"):
        opened(folder, "folders")
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="given: no labels file beside the test pictures"):
        opened(folder)
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    assert opened(folder).listing.notes == ("no labels: there is no labels file",)


def test_without_training_pictures(folder):
    (folder / "train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(DataError, match="given: no train-images-idx3-ubyte there"):
        opened(folder)


def test_two_sets_in_one_folder_are_told_apart(folder):
    whole(folder, "kmnist-{}-images-idx3-ubyte", "kmnist-{}-labels-idx1-ubyte")
    with pytest.raises(DataError, match="more than one set there: '', 'kmnist-'"):
        opened(folder)
    assert len(opened(folder / "kmnist-train-images-idx3-ubyte").places) == 6


def test_swapped_files(folder):
    images, labels = folder / "train-images-idx3-ubyte.gz", folder / "train-labels-idx1-ubyte.gz"
    images.rename(folder / "aside")
    labels.rename(images)
    (folder / "aside").rename(labels)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz holds labels of type 8, not pictures"):
        opened(folder)


def test_file_of_labels_given_for_pictures(folder):
    with pytest.raises(DataError, match="holds labels of type 8, not pictures of unsigned bytes"):
        opened(folder / "train-labels-idx1-ubyte.gz")


def test_counts_that_differ(folder):
    write(folder / "train-labels-idx1-ubyte.gz", LABELS)
    with pytest.raises(DataError, match=r"6 pictures in train-images.*, 8 labels in train-labels"):
        opened(folder)


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"])
@pytest.mark.parametrize("kept", [2, 12, 0.5, 0.9, -1])
def test_cut_gzip_file(folder, name, kept):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(kept * len(content)) if isinstance(kept, float) else kept])
    assert is_idx(folder)
    with pytest.raises(DataError, match=f"given: {name}: a damaged or cut file"):
        opened(folder)


def test_changed_byte_in_a_gzip_file(folder):
    path = folder / "train-images-idx3-ubyte.gz"
    content = bytearray(gzip.compress(idx_bytes(IMAGES[:6]), compresslevel=0))
    content[2000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="a damaged or cut file"):
        opened(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no IDX file"),
        (b"\0\0", "is no IDX file"),
        (b"P5 28 28", "is no IDX file"),
        (idx_bytes(IMAGES)[:-1], r"given: pictures: 6287 bytes, not the 6288 that its start says"),
        (idx_bytes(IMAGES) + b"x", "6289 bytes, not the 6288"),
        (idx_bytes(IMAGES)[:10], "given: pictures: 10 bytes"),
        (idx_bytes(IMAGES, kind=13), "holds pictures of type 13, not pictures of unsigned bytes"),
        (idx_bytes(IMAGES[..., None]), "holds arrays of 4 dimensions of type 8"),
        (idx_bytes(IMAGES[:0]), r"is empty: \[0, 28, 28\]"),
        (b"\0\0\x08\3" + b"\xff" * 12 + bytes(100), "116 bytes, not the"),
    ],
)
def test_file_that_is_damaged(tmp_path, content, message):
    (tmp_path / "pictures").write_bytes(content)
    with pytest.raises(DataError, match=message):
        opened(tmp_path / "pictures")


def test_other_paths_are_not_idx(tmp_path):
    (tmp_path / "train-images-idx3-ubyte").mkdir()
    (tmp_path / "train-images.png").touch()
    (tmp_path / "icon.ico").write_bytes(b"\0\0\1\0")
    (tmp_path / "words.gz").write_bytes(gzip.compress(b"words"))
    assert not is_idx(tmp_path)
    for name in ("train-images.png", "icon.ico", "words.gz", "nothing", "x" * 5000):
        assert not is_idx(tmp_path / name)


def test_fingerprint_follows_the_files_and_not_their_place(folder, tmp_path):
    first = opened(folder).listing.fingerprint
    moved = folder.rename(tmp_path / "moved")
    assert opened(moved).listing.fingerprint == first
    os.utime(moved / "t10k-labels-idx1-ubyte.gz", (1, 1))
    assert opened(moved).listing.fingerprint != first


@pytest.mark.parametrize("name", ["pictures", "pictures.gz"])
def test_memory_does_not_follow_the_size(tmp_path, name):
    write(tmp_path / name, np.zeros((40_000, 28, 28), np.uint8))  # 31 MB
    tracemalloc.start()
    source = opened(tmp_path / name)
    source.read(source.places[-1], Frame(size=28))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 << 20


def test_store(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("iddpm.data.preparing.open_source", lambda *_, **__: opened(folder))
    store = prepare("given", 28, tmp_path / "store", channels=1).store
    assert (store.labels.tolist(), store.held_out.tolist()) == (LABELS.tolist(), [6, 7])
    assert np.array_equal(store.read(slice(None))[:, 0], IMAGES)


def test_fashion_mnist(folder):
    source = fashion_mnist(folder)
    listing = source.listing
    assert (listing.source, listing.kind) == ("fashion-mnist", "built-in")
    assert [listing.classes[listing.labels[at]] for at in (0, 1, 4)] == ["Sandal", "T-shirt/top", "Ankle boot"]
    assert "Zalando" in listing.attribution
    assert "MIT" in listing.attribution
    assert listing.held_out.tolist() == [False] * 6 + [True] * 2
    assert np.array_equal(as_read(source), IMAGES)


def test_fashion_mnist_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"fashion-mnist: no folder .*nothing\napt install dataset-fashion-mnist"):
        fashion_mnist(tmp_path / "nothing")

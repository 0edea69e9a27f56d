"""CIFAR-10 and CIFAR-100: small copies of what is distributed, and every way in which they can be damaged."""

import gzip
import io
import os
import pickle
import tarfile
import tracemalloc

import jaxtyping
import numpy as np
import pytest

from iddpm.data.frame import Frame
from iddpm.data.preparing import prepare
from iddpm.data.sources.arrays.cifar import cifar, is_cifar
from iddpm.runtime.errors import ConfigError, DataError
from python_2 import python_2

NAMES = ["airplane", "automobile", "bird"]
IMAGES = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)  # two for each of six batches
ROWS = IMAGES.transpose(0, 3, 1, 2).reshape(12, 3072)
LABELS = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 1]
BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def cifar_10(folder):
    """Write a small CIFAR-10 as it is distributed: pickles of Python 2."""
    folder.mkdir(parents=True)
    (folder / "batches.meta").write_bytes(python_2({"num_cases_per_batch": 2, "label_names": NAMES, "num_vis": 3072}))
    for number, name in enumerate(BATCHES):
        part = slice(2 * number, 2 * number + 2)
        batch = {"data": ROWS[part], "labels": LABELS[part], "batch_label": name, "filenames": ["a.png", "b.png"]}
        (folder / name).write_bytes(python_2(batch))
    (folder / "readme.html").write_text("<html>")
    return folder


def cifar_100(folder):
    """Write a small CIFAR-100 with keys of bytes, as Python 3 writes them."""
    folder.mkdir(parents=True)
    meta = {b"fine_label_names": [b"apple", b"bee", b"crab"], b"coarse_label_names": [b"fruit", b"animal"]}
    (folder / "meta").write_bytes(pickle.dumps(meta, protocol=2))
    for name, part in (("train", slice(0, 8)), ("test", slice(8, 12))):
        fine = LABELS[part]
        batch = {b"data": ROWS[part], b"fine_labels": fine, b"coarse_labels": [min(label, 1) for label in fine]}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


def archive(folder, path, mode="w:gz"):
    with tarfile.open(path, mode) as tar:
        tar.add(folder, folder.name)
    return path


@pytest.fixture
def ten(tmp_path):
    return cifar_10(tmp_path / "cifar-10-batches-py")


@pytest.fixture
def hundred(tmp_path):
    return cifar_100(tmp_path / "cifar-100-python")


def opened(path, labels="auto"):
    return cifar(path, "given", labels, None)


def as_read(source):
    pixels = [source.read(place, Frame(size=32)).pixels for place in source.places]
    return np.stack(pixels).transpose(0, 2, 3, 1)


def test_cifar_10(ten):
    source = opened(ten)
    listing = source.listing
    assert np.array_equal(as_read(source), IMAGES)
    assert listing.labels.tolist() == LABELS
    assert listing.classes == tuple(NAMES)
    assert listing.held_out.tolist() == [False] * 10 + [True] * 2
    assert "trains on data_batch_1 to data_batch_5, holds out test_batch" in listing.split_rule
    assert (listing.names[3], listing.names[11], listing.kind) == ("data_batch_2[1]", "test_batch[1]", "cifar10")


def test_cifar_100_with_fine_coarse_and_no_labels(hundred):
    source = opened(hundred)
    assert np.array_equal(as_read(source), IMAGES)
    assert source.listing.labels.tolist() == LABELS
    assert source.listing.classes == ("apple", "bee", "crab")
    assert source.listing.held_out.tolist() == [False] * 8 + [True] * 4
    coarse = opened(hundred, "coarse").listing
    assert coarse.labels.tolist() == [min(label, 1) for label in LABELS]
    assert coarse.classes == ("fruit", "animal")
    none = opened(hundred, "none").listing
    assert (none.labels, none.classes) == (None, ())
    assert len({source.listing.fingerprint, coarse.fingerprint, none.fingerprint}) == 3


def test_coarse_labels_are_of_cifar_100_alone(ten, hundred):
    with pytest.raises(ConfigError, match=r"labels=coarse: given brings its own labels\nallowed: auto, none$"):
        opened(ten, "coarse")
    with pytest.raises(ConfigError, match=r"labels=folders: given brings its own labels\nallowed: auto, none, coarse$"):
        opened(hundred, "folders")


@pytest.mark.parametrize("make", [cifar_10, cifar_100])
@pytest.mark.parametrize("mode", ["w:gz", "w"])
def test_tar_gives_what_the_folder_gives(make, mode, tmp_path):
    name = {cifar_10: "cifar-10-batches-py", cifar_100: "cifar-100-python"}[make]
    folder = make(tmp_path / "made" / name)
    path = archive(folder, tmp_path / "downloaded", mode)
    assert is_cifar(path)
    assert np.array_equal(as_read(opened(path)), IMAGES)
    assert opened(path).listing.labels.tolist() == LABELS
    assert opened(path).listing.classes == opened(folder).listing.classes
    assert sorted(os.listdir(tmp_path)) == ["downloaded", "made"]


def test_folder_around_the_sets_folder(ten):
    (ten.parent / "cifar-10-python.tar.gz").touch()
    assert is_cifar(ten.parent)
    assert np.array_equal(as_read(opened(ten.parent)), IMAGES)


def test_both_sets_in_one_folder_are_told_apart(ten, hundred):
    assert is_cifar(ten.parent)
    with pytest.raises(DataError, match="both cifar-10-batches-py and cifar-100-python there"):
        opened(ten.parent)


def test_other_folders_are_not_cifar(ten, tmp_path):
    (tmp_path / "pictures").mkdir()
    assert not is_cifar(tmp_path / "pictures")
    (tmp_path / "pictures" / "train").mkdir()
    (tmp_path / "pictures" / "test").mkdir()
    assert not is_cifar(tmp_path / "pictures")
    (tmp_path / "notes").mkdir()
    for name in ("train", "test", "meta"):
        (tmp_path / "notes" / name).write_text("words")
    assert not is_cifar(tmp_path / "notes")
    (ten.parent / "a.png").touch()
    assert not is_cifar(ten.parent)
    for path in (tmp_path / "nothing", ten.parent / "a.png", tmp_path / ("x" * 5000), ten / "readme.html"):
        assert not is_cifar(path)
    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        tar.add(ten / "readme.html", "0001.html")
    assert not is_cifar(tmp_path / "shard.tar")


@pytest.mark.parametrize("name", [*BATCHES, "batches.meta"])
def test_missing_batch_is_named(ten, name):
    (ten / name).unlink()
    assert is_cifar(ten)
    with pytest.raises(DataError, match=f"given: {name} missing of cifar-10-batches-py"):
        opened(ten)


def test_missing_batch_in_the_tar_is_named(ten, tmp_path):
    (ten / "data_batch_4").unlink()
    with pytest.raises(DataError, match="given: data_batch_4 missing"):
        opened(archive(ten, tmp_path / "cifar.tar.gz"))


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.999])
def test_cut_batch_is_named(ten, kept):
    whole = (ten / "data_batch_3").read_bytes()
    (ten / "data_batch_3").write_bytes(whole[: int(kept * len(whole))])
    assert is_cifar(ten)
    with pytest.raises(DataError, match="given: data_batch_3: damaged"):
        opened(ten)


@pytest.mark.parametrize("kept", [0.2, 0.6, 0.99])
def test_cut_tar(ten, tmp_path, kept):
    path = archive(ten, tmp_path / "cifar.tar.gz")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))])
    assert is_cifar(path)
    with pytest.raises(DataError, match="given: a damaged or cut archive"):
        opened(path)


def test_changed_pixel_in_the_tar_is_found_by_the_checksum(ten, tmp_path):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        tar.add(ten, ten.name)
    packed = bytearray(gzip.compress(content.getvalue(), compresslevel=0))
    at = packed.index(ROWS[5].tobytes()[:64])
    packed[at] ^= 1
    (tmp_path / "cifar.tar.gz").write_bytes(packed)
    with pytest.raises(DataError, match="given: a damaged or cut archive"):
        opened(tmp_path / "cifar.tar.gz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": ROWS[:1]}, "data_batch_2 holds 1 pictures, not 2"),
        ({"data": ROWS[:2].astype(np.int32)}, r"data_batch_2: data is int32 \[2, 3072\]"),
        ({"data": ROWS[:2, :3000]}, r"data_batch_2: data is uint8 \[2, 3000\]"),
        ({"data": "pixels"}, "data_batch_2: data is no array"),
        ({"labels": [1]}, r"data_batch_2: labels is int64 \[1\]"),
        ({"labels": [1, 3]}, "data_batch_2: labels holds labels from 1 to 3"),
        ({"labels": ["a", "b"]}, "data_batch_2: labels is no list of numbers"),
        ({"labels": [[1], [1, 2]]}, "data_batch_2: labels is no list of numbers"),
        ({"fine_labels": [0, 1]}, "data_batch_2: labels is no list of numbers"),
    ],
)
def test_batch_of_another_content_is_named(ten, change, message):
    batch = {"data": ROWS[:2]} | ({} if "fine_labels" in change else {"labels": [0, 1]}) | change
    (ten / "data_batch_2").write_bytes(python_2(batch))
    with pytest.raises(DataError, match=message):
        opened(ten)


def test_meta_file_without_names(ten):
    (ten / "batches.meta").write_bytes(python_2({"num_vis": 3072}))
    with pytest.raises(DataError, match=r"label_names in batches\.meta is no list of names"):
        opened(ten)


def test_nothing_that_a_batch_asks_for_is_run(ten, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/run",)

    (ten / "data_batch_1").write_bytes(pickle.dumps({b"data": Evil()}, protocol=2))
    with pytest.raises(DataError, match=r"given: data_batch_1: a pickle that asks for \w+\.system"):
        opened(ten)
    assert not (tmp_path / "run").exists()


def test_fingerprint_follows_the_files_and_not_their_place(ten, tmp_path):
    first = opened(ten).listing.fingerprint
    moved = ten.rename(tmp_path / "moved")
    assert opened(moved).listing.fingerprint == first
    os.utime(moved / "test_batch", (1, 1))
    assert opened(moved).listing.fingerprint != first


def test_one_batch_at_a_time_in_memory(ten, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the checks keep what they checked for a while
    rows = np.zeros((1000, 3072), np.uint8)
    (ten / "batches.meta").write_bytes(python_2({"label_names": NAMES}))
    for name in BATCHES:
        (ten / name).write_bytes(python_2({"data": rows, "labels": [0] * 1000}))
    tracemalloc.start()
    opened(ten)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * rows.nbytes


def test_store(ten, tmp_path, monkeypatch):
    monkeypatch.setattr("iddpm.data.preparing.open_source", lambda *_, **__: opened(ten))
    store = prepare("given", 32, tmp_path / "store").store
    assert store.classes == tuple(NAMES)
    assert (store.labels.tolist(), store.held_out.tolist()) == (LABELS, [10, 11])
    assert np.array_equal(store.read(slice(None)).transpose(0, 2, 3, 1), IMAGES)

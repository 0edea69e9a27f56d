"""A source by its name or path: every kind is recognised, and prepared through one command."""

import pickle
import shutil
import struct
import tarfile

import numpy as np
import pytest
from PIL import Image

from iddpm.data.opening import NAMES, open_source
from iddpm.data.preparing import prepare
from iddpm.runtime.errors import ConfigError, DataError

COUNT = 12
IMAGES = np.random.default_rng(0).integers(0, 256, (COUNT, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(COUNT) % 2


def folder(place):
    for number, image in enumerate(IMAGES):
        (place / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / "ab"[number % 2] / f"{number:02}.png")
    return place


def archive(form):
    return lambda place: shutil.make_archive(str(place), form, folder(place.with_name("packed")))


def folder_of_tars(place):
    source = folder(place.with_name("packed"))
    place.mkdir()
    for name in "ab":
        with tarfile.open(place / f"{name}.tar", "w") as tar:
            tar.add(source / name, ".")
    return place


def webdataset_shards(place):
    from webdataset import TarWriter

    place.mkdir()
    with TarWriter(str(place / "shard-000000.tar")) as writer:
        for number, image in enumerate(IMAGES):
            writer.write({"__key__": f"{number:06}", "png": Image.fromarray(image), "cls": int(LABELS[number])})
    return place


def array_file(save, suffix):
    def make(place):
        save(place.with_suffix(suffix))
        return place.with_suffix(suffix)

    return make


def idx_files(place):
    place.mkdir()
    for side in ("train", "t10k"):
        head = struct.pack(">4BI", 0, 0, 8, 3, COUNT) + struct.pack(">2I", 8, 8)
        (place / f"{side}-images-idx3-ubyte").write_bytes(head + IMAGES[..., ("train", "t10k").index(side)].tobytes())
        head = struct.pack(">4BI", 0, 0, 8, 1, COUNT)
        (place / f"{side}-labels-idx1-ubyte").write_bytes(head + LABELS.astype(np.uint8).tobytes())
    return place


def cifar_batches(place):
    place.mkdir()
    rows = np.zeros((2, 3072), np.uint8)
    for number, name in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
        rows[:] = number
        rows[1, 0] = 255
        (place / name).write_bytes(pickle.dumps({b"data": rows, b"labels": [0, 1]}, protocol=2))
    (place / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"a", b"b"]}, protocol=2))
    return place


def imagenet_batches(place):
    place.mkdir()
    rows = IMAGES.transpose(0, 3, 1, 2).reshape(COUNT, -1)
    np.savez(place / "train_data.npz", data=rows, labels=LABELS + 1)
    return place


def lmdb_folder(place):
    import io

    import lmdb

    with lmdb.open(str(place), map_size=1 << 24) as environment, environment.begin(write=True) as transaction:
        for number, image in enumerate(IMAGES):
            file = io.BytesIO()
            Image.fromarray(image).save(file, "PNG")
            transaction.put(f"{number:06}".encode(), file.getvalue())
    return place


def saved_dataset(place):
    from datasets import ClassLabel, Dataset, Features
    from datasets import Image as ImageColumn

    features = Features({"image": ImageColumn(), "label": ClassLabel(names=["a", "b"])})
    columns = {"image": [Image.fromarray(image) for image in IMAGES], "label": LABELS.tolist()}
    Dataset.from_dict(columns, features=features).save_to_disk(str(place))
    return place


def parquet_folder(place):
    from datasets import load_from_disk

    place.mkdir()
    load_from_disk(str(saved_dataset(place.with_name("saved")))).to_parquet(place / "train-00000-of-00001.parquet")
    return place


KINDS = {
    "folder": (folder, "folder"),
    "zip": (archive("zip"), "zip"),
    "tar": (archive("tar"), "tar"),
    "tar.gz": (archive("gztar"), "tar"),
    "tar.xz": (archive("xztar"), "tar"),
    "folder of tars": (folder_of_tars, "tars"),
    "webdataset": (webdataset_shards, "webdataset"),
    "npz": (array_file(lambda path: np.savez(path, IMAGES, LABELS), ".npz"), "npz"),
    "compressed npz": (array_file(lambda path: np.savez_compressed(path, IMAGES, LABELS), ".npz"), "npz"),
    "npy": (array_file(lambda path: np.save(path, IMAGES), ".npy"), "npz"),
    "idx": (idx_files, "idx"),
    "cifar": (cifar_batches, "cifar10"),
    "imagenet": (imagenet_batches, "imagenet8"),
    "lmdb": (lmdb_folder, "lsun"),
    "saved dataset": (saved_dataset, "hugging face"),
    "parquet": (parquet_folder, "hugging face"),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_recognised_and_prepared(tmp_path, name):
    make, kind = KINDS[name]
    source = make(tmp_path / "source")
    store = prepare(source, 8, tmp_path / "store").store
    assert store.provenance.kind == kind
    assert store.provenance.source == str(source)
    assert not store.provenance.damaged.count
    assert len(store) == {"idx": 2 * COUNT}.get(name, COUNT)
    if name not in ("npy", "lmdb"):
        assert len(store.classes) == (1000 if name == "imagenet" else 2)
    if name not in ("idx", "cifar"):
        assert {image.tobytes() for image in store.read(slice(None))} == {
            image.tobytes() for image in IMAGES.transpose(0, 3, 1, 2)
        }
    assert prepare(source, 8, tmp_path / "store").already
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("npy",)])
def test_labels_can_be_left_out_of_every_kind(tmp_path, name):
    opened = open_source(KINDS[name][0](tmp_path / "source"), labels="none")
    assert opened.listing.labels is None
    assert opened.listing.classes == ()
    assert len(opened.places) == len(opened.listing.names)


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("saved dataset", "parquet")])
def test_labels_that_a_kind_cannot_have_are_refused(tmp_path, name):
    with pytest.raises((ConfigError, DataError), match=r"nowhere\.csv"):
        open_source(KINDS[name][0](tmp_path / "source"), labels="nowhere.csv")


def test_names_are_listed_where_nothing_is_found(tmp_path):
    with pytest.raises(DataError, match="no such file or folder") as caught:
        open_source(tmp_path / "cifar11")
    assert all(name in str(caught.value) for name in NAMES)


@pytest.mark.parametrize("name", ["words.txt", "picture.png", "archive.rar", "table.csv"])
def test_files_of_no_kind_are_refused_with_what_is_allowed(tmp_path, name):
    (tmp_path / name).write_bytes(b"something")
    with pytest.raises(DataError, match=r"cannot be read\nallowed: a folder, \.zip"):
        open_source(tmp_path / name)


@pytest.mark.parametrize(("source", "words"), [("", "the source is empty"), ("hf:", "hf: names no dataset")])
def test_a_source_that_names_nothing_is_refused(source, words):
    with pytest.raises(DataError, match=words):
        open_source(source)


def test_a_source_without_permission_is_told_by_its_name(tmp_path, monkeypatch):
    source = folder(tmp_path / "source")

    def refuse(path, flags):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", refuse)  # root may read anything
    with pytest.raises(DataError, match=r"source cannot be read: Permission denied\ncheck its permissions"):
        open_source(source)


@pytest.mark.parametrize("channels", [3, 4])
def test_one_picture_in_an_array_is_not_taken_for_many(tmp_path, channels):
    np.save(tmp_path / "one.npy", np.zeros((12, 12, channels), np.uint8))
    with pytest.raises(DataError, match=r"one picture in colour.*\n.*array\[None\]"):
        open_source(tmp_path / "one.npy")
    np.save(tmp_path / "narrow.npy", np.zeros((12, 4, 4), np.uint8))
    assert len(open_source(tmp_path / "narrow.npy").places) == 12

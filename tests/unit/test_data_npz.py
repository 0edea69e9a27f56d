"""npz and npy files: which arrays are taken, in which layout, and that large ones are never read whole."""

import io
import os
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from numpy.lib import format as npy

from iddpm.data.frame import Frame
from iddpm.data.preparing import prepare
from iddpm.data.sources.arrays import npz as module
from iddpm.data.sources.arrays.npz import npz
from iddpm.runtime.errors import ConfigError, DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
LABELS = np.array([3, 1, 0, 2, 1, 3])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "pictures.npz"


def opened(path, labels="auto"):
    return npz(path, path.name, labels, path.parent)


def pixels(source, at=0, **frame):
    """A picture at its own size, channels last."""
    return source.read(source.places[at], Frame(size=8, **frame)).pixels.transpose(1, 2, 0)


def as_read(source):
    return np.stack([pixels(source, at) for at in source.places])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_pictures_and_labels_stored_or_compressed(path, save):
    save(path, IMAGES, LABELS)
    source = opened(path)
    assert np.array_equal(as_read(source), IMAGES)
    assert source.listing.labels.tolist() == LABELS.tolist()
    assert source.listing.classes == ("0", "1", "2", "3")
    assert source.listing.names[:2] == ["arr_0[0]", "arr_0[1]"]
    assert source.listing.held_out is None
    assert os.listdir(path.parent) == [path.name]


def test_without_labels_there_are_no_classes(path):
    np.savez(path, IMAGES, LABELS)
    listing = opened(path, "none").listing
    assert (listing.labels, listing.classes) == (None, ())
    assert listing.fingerprint != opened(path).listing.fingerprint


def test_labels_come_from_the_file_or_not_at_all(path):
    np.savez(path, IMAGES, LABELS)
    with pytest.raises(ConfigError, match=r"labels=prefix: pictures\.npz brings its own labels\nallowed: auto, none"):
        opened(path, "prefix")


@pytest.mark.parametrize(
    "names",
    [
        ("images", "labels"),
        ("image", "label"),
        ("pictures", "targets"),
        ("x", "y"),
        ("data", "labels"),
        ("x_train", "y_train"),
    ],
)
def test_common_names_are_taken(path, names):
    np.savez(path, **dict(zip(names, (IMAGES, LABELS), strict=True)))
    source = opened(path)
    assert np.array_equal(as_read(source), IMAGES)
    assert source.listing.labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize("name", ["x_{}", "{}_images", "images_{}"])
def test_parts_of_the_file_are_the_split(path, name):
    labels_name = name.replace("x_", "y_").replace("images", "labels")
    parts = {"test": slice(4, 6), "train": slice(0, 3), "val": slice(3, 4)}
    images = {name.format(part): IMAGES[which] for part, which in parts.items()}
    labels = {labels_name.format(part): LABELS[which, None] for part, which in parts.items()}
    np.savez(path, **images, **labels)
    source = opened(path)
    assert np.array_equal(as_read(source), IMAGES)
    assert source.listing.labels.tolist() == LABELS.tolist()
    assert source.listing.held_out.tolist() == [False] * 3 + [True] * 3
    assert source.listing.names[3] == f"{name.format('val')}[0]"
    assert f"trains on {name.format('train')}, holds out {name.format('val')} and" in source.listing.split_rule


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("images", "x"), "more than one array may hold the pictures"),
        (("images", "x_train"), "more than one array may hold the pictures"),
        (("x_train", "train_images"), "more than one array may hold the pictures"),
        (("elsewhere",), r"no array arr_0, images or x_train \(arrays: elsewhere\)"),
        (("x_test",), "no array arr_0, images or x_train"),
    ],
)
def test_names_that_leave_a_doubt_are_refused(path, names, message):
    np.savez(path, **dict.fromkeys(names, IMAGES))
    with pytest.raises(DataError, match=message):
        opened(path)


def test_two_arrays_of_labels_are_a_doubt_unless_none_is_wanted(path):
    np.savez(path, images=IMAGES, labels=LABELS, y=LABELS)
    with pytest.raises(DataError, match="more than one array may hold the pictures or their labels"):
        opened(path)
    assert len(opened(path, "none").places) == 6


def test_labels_for_one_part_alone_are_refused(path):
    np.savez(path, x_train=IMAGES, x_test=IMAGES, y_train=LABELS)
    with pytest.raises(DataError, match="no array y_test, while other parts have labels"):
        opened(path)
    assert opened(path, "none").listing.labels is None


def test_arr_0_is_taken_whatever_lies_beside_it(path):
    np.savez(path, IMAGES, LABELS, images=IMAGES[::-1])
    assert np.array_equal(as_read(opened(path)), IMAGES)


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_first(path, channels):
    np.savez(path, IMAGES.transpose(0, 3, 1, 2)[:, :channels])
    expected = IMAGES if channels == 3 else np.repeat(IMAGES[..., :1], 3, axis=3)
    assert np.array_equal(as_read(opened(path)), expected)


def test_last_side_that_may_be_channels_is_channels(path):
    np.savez(path, np.zeros((2, 3, 5, 3), np.uint8))
    picture = opened(path).read(0, Frame(size=3))
    assert (picture.width, picture.height) == (5, 3)


def test_grey_and_transparent(path):
    clear = np.concatenate([IMAGES, np.zeros((6, 8, 8, 1), np.uint8)], axis=3)
    np.savez(path, clear)
    assert (pixels(opened(path), background="#010203") == [1, 2, 3]).all()
    np.savez(path, IMAGES[..., 0])
    assert np.array_equal(pixels(opened(path), channels=1)[..., 0], IMAGES[0, ..., 0])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_column_order(path, save):
    save(path, np.asfortranarray(IMAGES), np.asfortranarray(LABELS.astype(">i2")))
    source = opened(path)
    assert np.array_equal(as_read(source), IMAGES)
    assert source.listing.labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize("dtype", [">i8", "<u2", "u1", ">i4"])
def test_labels_of_any_whole_type(path, dtype):
    np.savez(path, IMAGES, LABELS.astype(dtype))
    assert opened(path).listing.labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (LABELS[:5], r"arr_1 is int64 \[5\]"),
        (LABELS / 2, "arr_1 is float64"),
        (np.eye(6, dtype=int), r"arr_1 is int64 \[6, 6\]"),
        (LABELS - 1, "labels from -1 to 2"),
        (LABELS + (1 << 40), "labels from"),
        (np.full(6, 2**64 - 1, np.uint64), "labels from 18446744073709551615"),
    ],
)
def test_labels_that_are_none(path, labels, message):
    np.savez(path, IMAGES, labels)
    with pytest.raises(DataError, match=message):
        opened(path)


def test_array_in_a_npy_file(tmp_path):
    np.save(tmp_path / "pictures.npy", IMAGES)
    source = opened(tmp_path / "pictures.npy")
    assert np.array_equal(as_read(source), IMAGES)
    assert source.listing.labels is None
    with (tmp_path / "pictures.npy").open("ab") as file:
        file.write(b"more")
    with pytest.raises(DataError, match="not a whole npz file"):
        opened(tmp_path / "pictures.npy")


def test_header_of_python_2(tmp_path):
    file = io.BytesIO()
    np.save(file, IMAGES)
    old = file.getvalue().replace(b"(6, 8, 8, 3), }    ", b"(6L, 8L, 8L, 3L), }")
    assert b"6L" in old
    (tmp_path / "old.npy").write_bytes(old)
    assert np.array_equal(as_read(opened(tmp_path / "old.npy")), IMAGES)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("kept", [0, 3, 50, 0.3, 0.5, 0.99, -1])
def test_cut_file(path, save, kept):
    save(path, IMAGES, LABELS)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])
    with pytest.raises(DataError, match=r"pictures\.npz: not a whole npz file of plain arrays\nmake or copy it again"):
        opened(path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("part", [0.2, 0.5, 0.7])
def test_changed_byte_is_found_by_the_checksum(path, save, part):
    save(path, IMAGES, LABELS)
    content = bytearray(path.read_bytes())
    content[int(part * len(content))] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match="not a whole npz file"):
        opened(path)


def with_header(header, data=b""):
    file = io.BytesIO()
    file.write(npy.MAGIC_PREFIX + b"\1\0" + struct.pack("<H", len(header)) + header + data)
    return file.getvalue()


@pytest.mark.parametrize(
    "member",
    [
        with_header(b"{'descr': '|O', 'fortran_order': False, 'shape': (2,), }\n", b"\x80\x02]." * 4),
        with_header(b"{'descr': '|u1', 'fortran_order': False, 'shape': (99, 8, 8), }\n", bytes(64)),
        with_header(b"{'descr': '|u1', 'fortran_order': False, 'shape': (-1, -1, 8), }\n", bytes(8)),
        with_header(b"{'descr': '|u1', 'fortran_order': False, 'shape': (9999999999, 9999999999, 9999999999), }\n"),
        with_header(b"{'descr': '|u1', 'fortran_order': False, 'shape': "),
        with_header(b"((((" * 4000),
        with_header(b"{'descr': __import__('os').system('false')}\n"),
        npy.MAGIC_PREFIX + b"\7\0",
        b"text",
        b"",
    ],
)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_member_that_is_no_plain_array(path, member, compression):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("arr_0.npy", member)
    with pytest.raises(DataError, match="not a whole npz file of plain arrays"):
        opened(path)


def test_empty_array_is_told_by_its_shape(path):
    np.savez(path, IMAGES[:0])
    with pytest.raises(DataError, match=r"arr_0 is uint8 \[0, 8, 8, 3\]"):
        opened(path)


def test_fingerprint_follows_the_content_and_not_the_place(path, tmp_path):
    (tmp_path / "here").mkdir()
    np.savez(tmp_path / "here" / "a.npz", IMAGES, LABELS)
    first = opened(tmp_path / "here" / "a.npz").listing.fingerprint
    (tmp_path / "here").rename(tmp_path / "moved")
    assert opened(tmp_path / "moved" / "a.npz").listing.fingerprint == first
    state = os.stat(tmp_path / "moved" / "a.npz")
    np.savez(path, IMAGES[::-1], LABELS)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert path.stat().st_size == state.st_size
    assert opened(path).listing.fingerprint != first


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_memory_does_not_follow_the_size(path, save):
    save(path, np.zeros((5000, 64, 64, 3), np.uint8))  # 61 MB
    tracemalloc.start()
    source = opened(path)
    for place in source.places[::500]:
        source.read(place, Frame(size=8))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 << 20


def test_beyond_a_size_stored_pictures_are_not_read_to_be_opened(path, monkeypatch):
    np.savez(path, IMAGES)
    content = bytearray(path.read_bytes())
    content[-200] ^= 255  # in the last picture
    path.write_bytes(content)
    monkeypatch.setattr(module, "CHECKED", 100)
    assert np.array_equal(pixels(opened(path)), IMAGES[0])


def test_store_of_a_file_with_parts(path, tmp_path):
    np.savez_compressed(path, x_train=IMAGES[:4], y_train=LABELS[:4], x_test=IMAGES[4:], y_test=LABELS[4:])
    store = prepare(path, 8, tmp_path / "store").store
    assert store.held_out.tolist() == [4, 5]
    assert store.labels.tolist() == LABELS.tolist()
    assert np.array_equal(store.read(slice(None)).transpose(0, 2, 3, 1), IMAGES)


def test_validation_under_its_whole_name_is_held_out(path):
    np.savez(path, x_train=IMAGES, x_validation=IMAGES[:1])
    assert opened(path).listing.held_out.tolist() == [False] * len(IMAGES) + [True]

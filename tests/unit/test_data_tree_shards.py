"""WebDataset shards, written by the webdataset library itself: samples, labels, parts."""

import gzip
import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image

from iddpm.data.frame import Frame
from iddpm.data.sources.archives.archive import is_tar_folder
from iddpm.data.sources.archives.webdataset import is_webdataset, webdataset
from iddpm.runtime.errors import ConfigError, DataError


def encoded(seed=0, form="PNG"):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(file, form)
    return file.getvalue()


def shard(path, *samples):
    """Write samples (dictionaries of suffix and bytes or text) with the library's own writer."""
    from webdataset import TarWriter

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = TarWriter(file, encoder=False)
        for number, sample in enumerate(samples):
            content = {name: part.encode() if isinstance(part, str) else part for name, part in sample.items()}
            writer.write(
                {
                    "__key__": f"{number:03d}",
                    **content,
                    **({} if "__key__" not in sample else {"__key__": sample["__key__"]}),
                }
            )
        writer.close()
    return path


def samples_in(path):
    """The samples of a shard as the library groups them."""
    from webdataset.tariterators import group_by_keys, tar_file_iterator

    with path.open("rb") as file:
        return list(group_by_keys({**each, "__url__": str(path)} for each in tar_file_iterator(file)))


def listing(path, labels="auto"):
    return webdataset(path, "shards", labels).listing


def texts(found):
    return [found.classes[label] for label in found.labels]


def reasons(found):
    return {each.name: each.reason for each in found.ignored.listed}


def test_samples_are_those_that_the_library_finds(tmp_path):
    from webdataset import ShardWriter

    with ShardWriter(str(tmp_path / "set-%03d.tar"), maxcount=3, encoder=False, verbose=0) as writer:
        for number in range(8):
            writer.write({"__key__": f"a/{9 - number}", "png": encoded(number), "cls": str(number % 3).encode()})
    source = webdataset(tmp_path, "shards")
    theirs = [sample for path in sorted(tmp_path.iterdir()) for sample in samples_in(path)]
    assert [name.partition("/")[2].removesuffix(".png") for name in source.listing.names] == [
        sample["__key__"] for sample in theirs
    ]
    assert texts(source.listing) == [sample["cls"].decode() for sample in theirs]
    for place, sample in zip(source.places, theirs, strict=True):
        expected = np.asarray(Image.open(io.BytesIO(sample["png"]))).transpose(2, 0, 1)
        assert np.array_equal(source.read(place, Frame(size=9)).pixels, expected)


def test_shards_come_in_natural_order(tmp_path):
    for number in (10, 2, 1):
        shard(tmp_path / f"{number}.tar", {"jpg": encoded(number, "JPEG"), "txt": "words"})
    assert list(listing(tmp_path).names) == ["1.tar/000.jpg", "2.tar/000.jpg", "10.tar/000.jpg"]


@pytest.mark.parametrize(
    ("sample", "label"),
    [
        ({"cls": "7\n"}, "7"),
        ({"cls": "tabby cat"}, "tabby cat"),
        ({"json": json.dumps({"label": 3})}, "3"),
        ({"json": json.dumps({"cls": "cat", "x": [1]})}, "cat"),
        ({"json": json.dumps({"label": None, "class": 0})}, "0"),
        ({"cls": "1", "json": json.dumps({"label": 2})}, "1"),
        ({"json": json.dumps([1, 2])}, None),
        ({"json": "{"}, None),
        ({"json": json.dumps({"label": 0.5})}, None),
        ({"cls": b"\xff"}, None),
        ({"cls": " "}, None),
        ({"txt": "a caption"}, None),
    ],
)
def test_the_label_of_a_sample(tmp_path, sample, label):
    found = listing(shard(tmp_path / "a.tar", {"jpg": encoded(), **sample}))
    assert (None if found.labels is None else texts(found)[0]) == label
    assert bool(found.notes) == (label is None)


def test_whole_numbers_name_the_classes_as_npz_does(tmp_path):
    found = listing(shard(tmp_path / "a.tar", *({"png": encoded(), "cls": str(number)} for number in (2, 0))))
    assert (found.classes, found.labels.tolist()) == (("0", "1", "2"), [2, 0])


def test_samples_without_a_label_leave_all_without_and_that_is_said(tmp_path):
    path = shard(tmp_path / "a.tar", {"png": encoded(), "cls": "1"}, {"png": encoded(1), "txt": "x"})
    found = listing(path)
    assert (found.labels, found.classes) == (None, ())
    note = "no labels: 1 of 2 samples bring none (.cls, or label, cls, class in .json); --labels cls or json leaves those out"
    assert found.notes == (note,)


def test_samples_without_the_label_that_was_asked_for_are_left_out(tmp_path):
    samples = {"png": encoded(), "cls": "1"}, {"png": encoded(1), "json": '{"label": "x"}'}
    path = shard(tmp_path / "a.tar", *samples)
    for labels, kept, classes in (("cls", "000", ("0", "1")), ("json", "001", ("x",))):
        found = listing(path, labels)
        assert (list(found.names), found.classes) == ([f"a.tar/{kept}.png"], classes)
        assert list(reasons(found).values()) == [f"no label (.{labels})"]
    assert listing(path, "none").labels is None
    assert listing(path, "none").notes == ()


def test_labels_that_shards_do_not_have(tmp_path):
    path = shard(tmp_path / "a.tar", {"png": encoded(), "json": '{"label": [1, 2]}'})
    for labels in ("folders", "prefix"):
        with pytest.raises(ConfigError, match=f"labels={labels}: shards holds samples"):
            listing(path, labels)
    with pytest.raises(DataError, match=r"no sample has a label \(\.cls\)"):
        listing(path, "cls")
    with pytest.raises(DataError, match=r"a\.tar/000\.json: label \[1, 2\]"):
        listing(path, "json")


def test_a_table_labels_samples(tmp_path):
    shard(tmp_path / "a.tar", *({"png": encoded(number)} for number in range(3)))
    (tmp_path / "labels.csv").write_text("000,cat\n002.png,dog\n")
    found = listing(tmp_path, "labels.csv")
    assert (list(found.names), texts(found)) == (["a.tar/000.png", "a.tar/002.png"], ["cat", "dog"])
    assert reasons(found) == {"a.tar/001.png": "no label in labels.csv", "labels.csv": "not a shard"}


def test_what_is_no_sample_is_left_out(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, content in (
            ("__readme__", b"the library's own"),
            ("0.cls", b"1"),
            ("1.jpg", encoded(1, "JPEG")),
            ("1.cls", b"1"),
            ("nodot", b"x"),
            (".hidden.jpg", b"x"),
        ):
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
        link = tarfile.TarInfo("2.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "1.jpg"
        archive.addfile(link)
    found = listing(tmp_path / "a.tar")
    assert list(found.names) == ["a.tar/1.jpg"]
    assert found.ignored.count == 5
    assert reasons(found) == {
        "a.tar/.hidden.jpg": "belongs to no sample",
        "a.tar/0": "a sample without a picture",
        "a.tar/2.jpg": "a link",
        "a.tar/__readme__": "belongs to no sample",
        "a.tar/nodot": "belongs to no sample",
    }


def test_of_several_pictures_the_plainest_is_taken(tmp_path):
    both = {"webp": encoded(1, "WEBP"), "mask.jpg": encoded(2, "JPEG"), "png": encoded(3), "JPG": encoded(4, "JPEG")}
    other = {"seg.webp": encoded(1, "WEBP"), "image.jpg": encoded(2, "JPEG")}
    path = shard(tmp_path / "a.tar", both, other)
    found = listing(path)
    assert list(found.names) == ["a.tar/000.JPG", "a.tar/001.image.jpg"]
    left = ("000.mask.jpg", "000.png", "000.webp", "001.seg.webp")
    assert reasons(found) == {f"a.tar/{name}": "another picture of its sample" for name in left}
    assert found.ignored.count == 4


def test_of_two_pictures_of_one_name_the_last_counts(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, content in (("0.png", encoded(1)), ("0.png", encoded(2)), ("0.cls", b"1")):
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    source = webdataset(tmp_path / "a.tar", "shards")
    expected = np.asarray(Image.open(io.BytesIO(encoded(2)))).transpose(2, 0, 1)
    assert np.array_equal(source.read(source.places[0], Frame(size=9)).pixels, expected)
    assert reasons(source.listing) == {"a.tar/0.png": "a later member has the same name"}


def test_classes_can_be_shown(tmp_path):
    found = listing(shard(tmp_path / "a.tar", {"png": encoded(), "cls": "\x1b[31m"}))
    assert found.classes == (r"\x1b[31m",)


@pytest.mark.parametrize(
    ("one", "two"), [("in1k-train-000.tar", "in1k-val-000.tar"), ("Train/0.tar", "validation/0.tar")]
)
def test_parts_by_the_names_of_the_shards(tmp_path, one, two):
    for number, name in enumerate((one, two, "extra.tar")):
        shard(tmp_path / name, {"png": encoded(number), "cls": "0"})
    found = listing(tmp_path)
    assert dict(zip(found.names, found.held_out.tolist(), strict=True)) == {
        f"{one}/000.png": False,
        f"{two}/000.png": True,
    }
    assert found.split_rule.startswith("by shard: trains on train, holds out val")
    assert reasons(found) == {
        "extra.tar/000.png": f"outside the shards train, {two.partition('/')[0] if '/' in two else 'val'}"
    }


def test_compressed_shards(tmp_path):
    for number in range(3):
        plain = shard(tmp_path / f"{number}.tar", {"png": encoded(number), "cls": str(number)})
        if number:
            (tmp_path / f"{number}.tar.gz").write_bytes(gzip.compress(plain.read_bytes()))
            plain.unlink()
    assert is_webdataset(tmp_path)
    source = webdataset(tmp_path, "shards")
    assert texts(source.listing) == ["0", "1", "2"]
    for number, place in enumerate(source.places):
        expected = np.asarray(Image.open(io.BytesIO(encoded(number)))).transpose(2, 0, 1)
        assert np.array_equal(source.read(place, Frame(size=9)).pixels, expected)


def test_a_cut_shard_is_refused_by_name(tmp_path):
    shard(tmp_path / "0.tar", {"png": encoded(), "cls": "0"})
    path = shard(tmp_path / "1.tar", {"png": encoded(), "cls": "0"})
    path.write_bytes(path.read_bytes()[:1200])
    with pytest.raises(DataError, match=r"shards: 1\.tar: not a whole tar file: damaged or cut at byte"):
        listing(tmp_path)


def test_what_is_taken_for_shards(tmp_path):
    assert is_webdataset(shard(tmp_path / "set" / "0.tar", {"png": encoded(), "txt": "words"}))
    assert is_webdataset(tmp_path / "set")
    assert is_webdataset(tmp_path)
    assert not is_webdataset(shard(tmp_path / "plain" / "n1.tar", {"png": encoded()}, {"png": encoded()}))
    assert is_tar_folder(tmp_path / "plain")
    assert not is_webdataset(tmp_path / "gone")
    (tmp_path / "set" / "0.tar").write_bytes(b"no tar")
    assert not is_webdataset(tmp_path / "set")
    (tmp_path / "loose.png").write_bytes(encoded())
    assert not is_tar_folder(tmp_path)


def test_the_fingerprint_is_the_state_of_the_shards_and_the_labels(tmp_path):
    path = shard(tmp_path / "0.tar", {"png": encoded(), "cls": "0"})
    seen = {listing(tmp_path).fingerprint, listing(tmp_path, "none").fingerprint}
    shard(path, {"png": encoded(), "cls": "1"})
    seen.add(listing(tmp_path).fingerprint)
    shard(tmp_path / "1.tar", {"png": encoded(), "cls": "0"})
    seen.add(listing(tmp_path).fingerprint)
    assert len(seen) == 4

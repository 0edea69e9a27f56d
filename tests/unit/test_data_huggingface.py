import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before the package is imported

import io
import subprocess
import sys
import threading
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value
from PIL import Image as Pictures

from iddpm.data.frame import Frame, UnusablePictureError
from iddpm.data.sources.hub import huggingface as module
from iddpm.data.sources.hub.huggingface import huggingface, is_saved_dataset
from iddpm.runtime.errors import ConfigError, DataError

FRAME = Frame(size=4)
PET = ClassLabel(names=["cat", "dog"])


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
    datasets.disable_progress_bars()


def png(level):
    file = io.BytesIO()
    Pictures.new("RGB", (6, 4), (level, level, level)).save(file, "png")
    return file.getvalue()


def encoded(levels):
    return [None if level is None else {"bytes": png(level), "path": None} for level in levels]


def pets(levels, labels, feature=PET, image="image", label="label"):
    columns = {image: encoded(levels), label: labels}
    return Dataset.from_dict(columns, features=Features({image: Image(), label: feature}))


def saved(path, dataset):
    dataset.save_to_disk(path)
    return path


def levels(source):
    return [int(source.read(place, FRAME).pixels[0, 0, 0]) for place in source.places]


def test_saved_datasets_are_told_from_other_folders(tmp_path):
    one = pets([1], [0])
    assert is_saved_dataset(saved(tmp_path / "one", one))
    assert is_saved_dataset(saved(tmp_path / "dict", DatasetDict(train=one)))
    one.to_parquet(tmp_path / "hub" / "data" / "train-00000-of-00001.parquet")
    assert is_saved_dataset(tmp_path / "hub")
    assert is_saved_dataset(tmp_path / "hub" / "data")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "state.json").write_text("{}")
    assert not is_saved_dataset(tmp_path / "other")
    assert not is_saved_dataset(tmp_path / "missing")


def test_saved_dataset_has_its_pictures_classes_and_names(tmp_path):
    source = huggingface(saved(tmp_path / "one", pets([10, 20, 30], [1, 0, 1])), "pets")
    listing = source.listing
    assert (listing.source, listing.kind, listing.classes) == ("pets", "hugging face", ("cat", "dog"))
    assert listing.labels.tolist() == [1, 0, 1]
    assert listing.labels.dtype == np.int64
    assert list(listing.names) == ["rows[0]", "rows[1]", "rows[2]"]
    assert (listing.held_out, listing.split_rule) == (None, None)
    assert levels(source) == [10, 20, 30]
    assert source.read(source.places[0], FRAME).width == 6
    assert source.pool == "threads"


@pytest.fixture(params=["arrow", "parquet"])
def save(request, tmp_path):
    """Keeps splits in one of the two ways."""

    def keep(**splits):
        if request.param == "arrow":
            return saved(tmp_path / "kept", DatasetDict(splits))
        for name, dataset in splits.items():
            dataset.to_parquet(tmp_path / "kept" / "data" / f"{name}-00000-of-00001.parquet")
        return tmp_path / "kept"

    return keep


@pytest.mark.parametrize("held_out", ["validation", "valid", "val", "test"])
def test_train_is_trained_on_and_the_others_held_out(save, held_out):
    source = huggingface(save(**{held_out: pets([1, 2], [0, 1]), "train": pets([3, 4, 5], [1, 1, 0])}), "pets")
    assert levels(source) == [3, 4, 5, 1, 2]
    assert source.listing.labels.tolist() == [1, 1, 0, 0, 1]
    assert source.listing.held_out.tolist() == [False, False, False, True, True]
    assert source.listing.names[2:4] == ["train[2]", f"{held_out}[0]"]
    assert source.listing.split_rule == "by split: trains on train, holds out the others"


def test_hidden_labels_leave_a_split_out(save):
    path = save(train=pets([1, 2], [0, 1]), validation=pets([3], [1]), test=pets([4, 5], [-1, -1]))
    source = huggingface(path, "pets")
    assert levels(source) == [1, 2, 3]
    assert source.listing.held_out.tolist() == [False, False, True]
    assert source.listing.ignored.count == 2
    assert [(each.name, each.reason) for each in source.listing.ignored.listed] == [("test", "its labels are hidden")]
    assert len(huggingface(path, "pets", "none").listing.names) == 5


def test_hidden_labels_of_the_only_held_out_split_leave_the_choice_to_content(save):
    source = huggingface(save(train=pets([1, 2], [0, 1]), test=pets([4], [-1])), "pets")
    assert (source.listing.held_out, source.listing.split_rule, levels(source)) == (None, None, [1, 2])


def test_rows_without_a_label_are_left_out_by_name(save):
    source = huggingface(save(train=pets([1, 2, 3, 4], [0, None, -1, 1])), "pets")
    assert levels(source) == [1, 4]
    assert list(source.listing.names) == ["train[0]", "train[3]"]
    assert [(each.name, each.reason) for each in source.listing.ignored.listed] == [
        ("train[1]", "no label"),
        ("train[2]", "no label"),
    ]


def test_labels_that_are_all_hidden_are_none(save):
    path = save(train=pets([1, 2], [-1, -1]))
    listing = huggingface(path, "pets").listing
    assert (listing.labels, listing.classes, len(listing.names)) == (None, (), 2)
    assert listing.notes == ("no labels: the column label holds none to train on",)
    with pytest.raises(DataError, match="pets: no labels in the column label"):
        huggingface(path, "pets", "label")


def test_splits_without_train_are_used_together(save):
    source = huggingface(save(test=pets([1], [0]), extra=pets([2], [1])), "pets")
    assert source.listing.held_out is None
    assert sorted(levels(source)) == [1, 2]


def test_other_splits_beside_train_are_left_out(tmp_path):
    path = saved(tmp_path / "d", DatasetDict(train=pets([1], [0]), extra=pets([2, 3], [0, 1])))
    listing = huggingface(path, "pets").listing
    assert (listing.ignored.count, listing.ignored.listed[0].name) == (2, "extra")
    assert listing.ignored.listed[0].reason.startswith("neither train nor")


def test_held_out_split_with_other_classes_is_left_out(save):
    other = pets([2], [0], ClassLabel(names=["dog", "cat"]))
    listing = huggingface(save(train=pets([1], [0]), test=other), "pets").listing
    assert [each.reason for each in listing.ignored.listed] == ["its column label is not that of train"]


def test_null_pictures_are_damaged_and_the_others_not(save):
    source = huggingface(save(train=pets([1, None, 3], [0, 0, 1])), "pets")
    assert len(source.places) == 3
    with pytest.raises(UnusablePictureError, match="no picture in this row"):
        source.read(source.places[1], FRAME)
    assert source.read(source.places[2], FRAME).pixels.max() == 3


def test_damaged_pictures_are_damaged(save):
    features = Features({"image": Image(), "label": PET})
    rows = {"image": [{"bytes": png(9)[:40], "path": None}, {"bytes": b"text", "path": None}], "label": [0, 1]}
    source = huggingface(save(train=Dataset.from_dict(rows, features=features)), "pets")
    for place in source.places:
        with pytest.raises(UnusablePictureError):
            source.read(place, FRAME)


def test_exif_orientation_is_honoured(save):
    file, tags = io.BytesIO(), Pictures.Exif()
    tags[0x0112] = 6
    Pictures.new("RGB", (6, 4)).save(file, "jpeg", exif=tags)
    features = Features({"image": Image()})
    rows = {"image": [{"bytes": file.getvalue(), "path": None}]}
    source = huggingface(save(train=Dataset.from_dict(rows, features=features)), "pets")
    picture = source.read(source.places[0], FRAME)
    assert (picture.width, picture.height) == (4, 6)


def test_pictures_by_path_are_read_from_there(tmp_path):
    for index in range(2):
        (tmp_path / f"{index}.png").write_bytes(png(index + 5))
    features = Features({"image": {"bytes": Value("binary"), "path": Value("string")}})
    rows = {"image": [{"bytes": None, "path": str(tmp_path / f"{index}.png")} for index in (0, 1, 2)]}
    Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "p" / "train.parquet")
    source = huggingface(tmp_path / "p", "paths")
    assert source.read(1, FRAME).pixels.max() == 6
    with pytest.raises(UnusablePictureError, match=r"2\.png: No such file"):
        source.read(2, FRAME)


def test_plain_parquet_of_bytes_is_taken(tmp_path):
    table = pyarrow.table({"jpg": [png(3), png(4)], "label": [1, 0]})
    pyarrow.parquet.write_table(table, tmp_path / "anything.parquet")
    source = huggingface(tmp_path, "plain")
    assert (levels(source), source.listing.classes) == ([3, 4], ("0", "1"))
    assert list(source.listing.names) == ["rows[0]", "rows[1]"]


@pytest.mark.parametrize("name", ["image", "img"])
def test_picture_column_is_preferred_by_name(save, name):
    columns = {"depth": encoded([1]), name: encoded([2])}
    path = save(train=Dataset.from_dict(columns, features=Features({"depth": Image(), name: Image()})))
    assert levels(huggingface(path, "two")) == [2]


def test_picture_columns_that_cannot_be_told_apart_are_listed(save):
    columns = {"left": encoded([1]), "right": encoded([2])}
    path = save(train=Dataset.from_dict(columns, features=Features({"left": Image(), "right": Image()})))
    with pytest.raises(ConfigError, match=r"two: several columns of pictures: left, right\n.*allowed: image, img"):
        huggingface(path, "two")


def test_dataset_without_pictures_lists_its_columns(save):
    with pytest.raises(DataError, match=r"text: no column of pictures \(columns: words, label\)"):
        huggingface(save(train=Dataset.from_dict({"words": ["a"], "label": [0]})), "text")


def columns(**labels):
    features = Features({"image": Image(), **{name: feature for name, (feature, _) in labels.items()}})
    return Dataset.from_dict({"image": encoded([1, 2]), **{n: v for n, (_, v) in labels.items()}}, features=features)


NUMBERS, TEXTS = Value("int32"), Value("string")


@pytest.mark.parametrize(
    ("there", "classes"),
    [
        ({"coarse_label": (PET, [0, 1]), "fine_label": (ClassLabel(names=["x", "y"]), [1, 0])}, ("x", "y")),
        ({"breed": (PET, [0, 1]), "label": (NUMBERS, [2, 2])}, ("cat", "dog")),
        ({"label": (NUMBERS, [2, 0])}, ("0", "1", "2")),
        ({"size": (NUMBERS, [2, 0])}, ()),
        ({"a": (PET, [0, 1]), "b": (PET, [0, 1])}, ()),
        ({"label": (TEXTS, ["x", "y"])}, ()),
        ({"label": (Value("float32"), [0.5, 1.0])}, ()),
    ],
)
def test_label_column_is_found(save, there, classes):
    assert huggingface(save(train=columns(**there)), "set").listing.classes == classes


def test_columns_that_could_be_labels_are_told(save):
    listing = huggingface(save(train=columns(a=(PET, [0, 1]), b=(PET, [0, 1]))), "set").listing
    assert listing.notes == ("no labels: they could come from a, b, with labels=a",)


def test_label_column_can_be_asked_for(save):
    path = save(
        train=columns(label=(PET, [0, 1]), size=(NUMBERS, [3, 0]), kind=(TEXTS, ["k10", "k9"])),
        test=columns(label=(PET, [0, 1]), size=(NUMBERS, [1, 1]), kind=(TEXTS, ["k9", None])),
    )
    by_text = huggingface(path, "set", "kind").listing
    assert (by_text.classes, by_text.labels.tolist()) == (("k9", "k10"), [1, 0, 0])
    by_number = huggingface(path, "set", "size").listing
    assert (len(by_number.classes), by_number.labels.tolist()) == (4, [3, 0, 1, 1])
    without = huggingface(path, "set", "none").listing
    assert (without.classes, without.labels) == ((), None)
    assert len({each.fingerprint for each in (by_text, by_number, without)}) == 3


def test_column_that_is_not_there_is_told_with_those_that_are(save):
    with pytest.raises(ConfigError, match=r"labels=folders: set has no column .*\nallowed: auto, none, label"):
        huggingface(save(train=pets([1], [0])), "set", "folders")


def test_too_many_classes_are_refused(save):
    with pytest.raises(DataError, match="4294967296 classes in the column label"):
        huggingface(save(train=columns(label=(Value("int64"), [0, 2**32 - 1]))), "set")


def test_parquet_files_of_a_split_follow_in_natural_order(tmp_path):
    for index in range(12):
        pets([index], [0]).to_parquet(tmp_path / "test" / f"{index}.parquet")
        pets([100 + index], [1]).to_parquet(tmp_path / "train" / f"{index}.parquet")
    source = huggingface(tmp_path, "many")
    assert levels(source) == [*range(100, 112), *range(12)]
    assert source.listing.held_out.sum() == 12


@pytest.fixture
def long(tmp_path):
    """A file of 10 row groups of 50 rows, the labels of which are their rows."""
    table = pyarrow.table({"img": [png(row % 251) for row in range(500)], "label": list(range(500))})
    pyarrow.parquet.write_table(table, tmp_path / "train.parquet", row_group_size=50, compression="none")
    return tmp_path


def test_parquet_rows_are_the_same_in_any_order(long):
    source = huggingface(long, "long")
    order = np.random.default_rng(0).permutation(500)[:40].tolist()
    for place in [*order, 0, 499, 0, 250, 251, 250]:
        assert source.read(place, FRAME).pixels.max() == place % 251


def test_parquet_rows_are_read_from_many_threads(long):
    source, found = huggingface(long, "long"), {}

    def work(part):
        for chunk in range(part, 32, 4):
            for place in source.places[chunk * 16 : chunk * 16 + 16]:
                found[place] = int(source.read(place, FRAME).pixels.max())

    threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {row: row % 251 for row in range(500)}


def test_parquet_rows_in_order_are_decoded_once_and_not_kept(long, monkeypatch):
    opened = []
    real = pyarrow.parquet.ParquetFile.iter_batches

    def counted(self, *arguments, **options):
        opened.append(options["row_groups"])
        return real(self, *arguments, **options)

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", counted)
    source = huggingface(long, "long")
    opened.clear()
    assert levels(source) == [row % 251 for row in range(500)]
    assert opened == [[group] for group in range(10)]
    assert source.read.rows[0]._kept == []


def test_damaged_row_group_is_only_its_rows(long):
    file = long / "train.parquet"
    place = pyarrow.parquet.read_metadata(file).row_group(3).column(0).data_page_offset
    with file.open("r+b") as opened:
        opened.seek(place)
        opened.write(os.urandom(40))
    source, damaged = huggingface(long, "long"), []
    for row in range(500):
        try:
            assert source.read(row, FRAME).pixels.max() == row % 251
        except UnusablePictureError:
            damaged.append(row)
    assert damaged == list(range(150, 200))


@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_damaged_file_is_one_line(save, damage):
    path = save(train=pets([1, 2], [0, 1]))
    for file in [*path.rglob("*.arrow"), *path.rglob("*.parquet")]:
        content = {"cut": file.read_bytes()[:100], "empty": b"", "text": b"text" * 100}[damage]
        file.write_bytes(content)
    with pytest.raises(DataError, match=r"pets: cannot open the dataset: .+\n.+") as told:
        huggingface(path, "pets")
    assert "\n" not in told.value.what


def test_empty_dataset_is_refused(save):
    with pytest.raises(DataError, match=r"pets: (the dataset is empty|cannot open the dataset: .)"):
        huggingface(save(train=pets([], [])), "pets")


def test_fingerprint_follows_the_content_and_not_the_place(save, tmp_path):
    path = save(train=pets([1, 2], [0, 1]))
    before = huggingface(path, "x").listing.fingerprint
    assert huggingface(path, "y").listing.fingerprint == before
    path.rename(tmp_path / "moved")
    assert huggingface(tmp_path / "moved", "x").listing.fingerprint == before
    file = next(file for file in (tmp_path / "moved").rglob("*") if file.suffix in (".arrow", ".parquet"))
    os.utime(file)
    assert huggingface(tmp_path / "moved", "x").listing.fingerprint != before


def test_name_is_loaded_as_the_package_does(tmp_path, monkeypatch):
    pets([1, 2], [0, 1]).to_parquet(tmp_path / "org" / "pets" / "data" / "train-00000-of-00001.parquet")
    pets([3], [1]).to_parquet(tmp_path / "org" / "pets" / "data" / "test-00000-of-00001.parquet")
    monkeypatch.chdir(tmp_path)
    source = huggingface("hf:org/pets", "hf:org/pets")
    assert (source.listing.source, source.listing.classes) == ("hf:org/pets", ("cat", "dog"))
    assert levels(source) == [1, 2, 3]
    assert source.listing.held_out.tolist() == [False, False, True]
    with pytest.raises(DataError, match=r"hf:org/pets:large: cannot open the dataset: .*large"):
        huggingface("hf:org/pets:large", "hf:org/pets:large")


def test_progress_bars_are_back_afterwards(save):
    path = save(train=pets([1], [0]))
    datasets.enable_progress_bars()
    verbosity = datasets.logging.get_verbosity()
    huggingface(path, "pets")
    assert not datasets.are_progress_bars_disabled()
    assert datasets.logging.get_verbosity() == verbosity


def test_missing_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r'need the package datasets\npip install "iddpm\[data\]"'):
        huggingface("hf:some/name", "hf:some/name")


def test_name_without_network_is_one_line_and_nothing_else_and_brings_no_torch(tmp_path):
    code = """
import sys
from iddpm.data.sources.hub.huggingface import huggingface
from iddpm.runtime.errors import DataError
try:
    huggingface("hf:nobody/nothing", "hf:nobody/nothing")
except DataError as error:
    assert error.what.startswith("hf:nobody/nothing: cannot open the dataset: "), error.what
    assert "\\n" not in error.what
else:
    raise AssertionError("opened")
assert not {"torch", "torchvision"} & set(sys.modules)
"""
    source = str(Path(module.__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": source, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_stray_parquet_makes_no_dataset_of_a_folder_of_pictures(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "0.png").write_bytes(png(1))
    pyarrow.parquet.write_table(pyarrow.table({"caption": ["a cat"]}), tmp_path / "captions.parquet")
    assert not is_saved_dataset(tmp_path)
    (tmp_path / "cat" / "0.png").unlink()
    assert is_saved_dataset(tmp_path)


def test_a_picture_beside_a_dataset_makes_it_no_folder_of_pictures(tmp_path):
    (tmp_path / "thumbnail.png").write_bytes(png(1))
    table = pyarrow.table({"jpg": [png(3)], "label": [0]})
    pyarrow.parquet.write_table(table, tmp_path / "train-00000-of-00001.parquet")
    assert is_saved_dataset(tmp_path)


def test_files_that_are_lost_or_changed_after_they_were_listed_end_the_run(long):
    source = huggingface(long, "long")
    assert source.read(0, FRAME).pixels.max() == 0
    os.utime(long / "train.parquet", ns=(1, 1))
    source.read.rows[0]._stream, source.read.rows[0]._reached = iter(()), -1
    with pytest.raises(DataError, match=r"train\.parquet has changed since it was listed"):
        source.read(400, FRAME)
    (long / "train.parquet").rename(long / "away")
    with pytest.raises(DataError, match=r"train\.parquet: No such file.*gone since\n.*the same command goes on"):
        source.read(400, FRAME)


def test_classes_and_splits_can_be_shown(tmp_path):
    table = pyarrow.table({"jpg": [png(3), png(4)], "label": ["\x1b[31m", "b"]})
    pyarrow.parquet.write_table(table, tmp_path / "anything.parquet")
    assert huggingface(tmp_path, "odd", "label").listing.classes == (r"\x1b[31m", "b")

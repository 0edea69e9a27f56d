"""Folders of pictures as people have them, prepared; the cases are those of the public reports, by their ids."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from iddpm.data.loader import Batches
from iddpm.data.preparing import prepare
from iddpm.data.store import label_of
from iddpm.runtime.errors import ConfigError, DataError

COLOURS = {"0": (200, 0, 0), "1": (0, 200, 0), "2": (0, 0, 200), "10": (200, 200, 0)}


def picture(path, mode="RGB", sides=(32, 32), colour=None, seed=0):
    """Write one picture file, of noise that differs by seed or of one colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng([seed, *path.name.encode()]).integers(0, 256, (sides[1], sides[0], 3), dtype=np.uint8)
    image = Image.fromarray(noise) if colour is None else Image.new("RGB", sides, colour)
    image.convert(mode).save(path)
    return path


def names_and_reasons(told):
    return {each["name"]: each["reason"] for each in told["listed"]}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pictures").mkdir()
    return tmp_path / "pictures"


def prepared(folder, size=32, **options):
    return prepare(folder, size, folder.parent / "store", **options)


def test_dat_01_one_grey_picture_among_coloured_ones(folder):
    for number in range(8):
        picture(folder / f"{number}.png", mode="L" if number == 3 else "RGB")
    store = prepared(folder).store
    assert store.read(slice(None)).shape == (8, 3, 32, 32)
    grey = store.read(slice(3, 4))[0]
    assert np.array_equal(grey[0], grey[1])
    assert Batches(store, "train", 8, seed=0).at(1).images.shape == (8, 3, 32, 32)


def test_dat_03_phone_pictures_stand_upright(folder):
    for orientation in (1, 3, 6, 8):
        image = Image.new("RGB", (40, 20), "red")
        image.paste("blue", (20, 0, 40, 20))
        exif = Image.Exif()
        exif[0x0112] = orientation
        image.save(folder / f"{orientation}.jpg", exif=exif, quality=95)
    images = prepared(folder, size=20).store.read(slice(None))
    red_is = {1: np.s_[:, :8], 3: np.s_[:, -8:], 6: np.s_[:8, :], 8: np.s_[-8:, :]}
    for image, part in zip(images, red_is.values(), strict=True):
        assert image[0][part].mean() > 230
        assert image[2][part].mean() < 25


def test_dat_04_suffixes_in_any_case(folder):
    for name in ("a.png", "b.JPG", "c.jpeg", "d.WEBP", "e.bmp", "f.TIFF"):
        picture(folder / name)
    (folder / "notes.txt").write_text("not a picture")
    told = prepared(folder).figures()
    assert (told["found"], told["used"], told["ignored"]["count"]) == (7, 6, 1)
    assert names_and_reasons(told["ignored"]) == {"notes.txt": "not a picture file (.txt)"}


def test_dat_05_hidden_and_system_files(folder):
    for number in range(4):
        picture(folder / f"{number}.png")
    for name, count in ((".DS_Store", 6000), ("Thumbs.db", 6000), ("._0.png", 4000)):
        (folder / name).write_bytes(os.urandom(count))
    picture(folder / ".trash" / "old.png")
    told = prepared(folder).figures()
    assert (told["found"], told["used"], told["ignored"]["count"]) == (8, 4, 4)
    assert set(names_and_reasons(told["ignored"])) == {".DS_Store", "Thumbs.db", "._0.png", ".trash"}


def test_dat_06_damaged_files_are_found_and_named(folder):
    for number in range(6):
        picture(folder / f"{number}.png")
    whole = picture(folder / "cut.jpg").read_bytes()
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "x.png").touch()
    result = prepared(folder)
    told = result.figures()
    assert (told["found"], told["used"], told["damaged"]["count"]) == (8, 6, 2)
    reasons = names_and_reasons(told["damaged"])
    assert set(reasons) == {"cut.jpg", "x.png"}
    assert "truncated" in reasons["cut.jpg"].lower()
    assert reasons["x.png"] == "empty file"
    assert [len(Batches(result.store, "train", 4, seed=0).at(step)) for step in range(6)] == [4] * 6


@pytest.mark.parametrize("made_in", [("0", "1", "2", "10"), ("10", "2", "0", "1")])
def test_dat_08_numeric_classes_in_natural_order(folder, made_in):
    for name in made_in:
        for number in range(4):
            picture(folder / name / f"{number}.png", colour=COLOURS[name])
    store = prepared(folder).store
    assert store.classes == ("0", "1", "2", "10")
    assert set(store.labels[store.train].tolist()) == {0, 1, 2, 3}  # copies of one colour do not leave training whole
    ten = store.read(np.flatnonzero(store.labels == label_of(store.classes, "10")))
    assert len(ten) == 4
    assert (ten == np.array(COLOURS["10"]).reshape(3, 1, 1)).all()


def test_dat_14_wide_pictures_are_cropped_and_that_is_said(folder):
    for number in range(12):
        image = Image.new("RGB", (48, 24), (0, number, 0))
        image.paste("black", (0, 0, 12, 24))
        image.paste("white", (36, 0, 48, 24))
        image.save(folder / f"{number}.png")
    result = prepared(folder, size=24)
    told = result.figures()
    assert told["cropped"] == 12
    assert "centre square" in told["rule"]
    assert [image[1].max() for image in result.store.read(slice(None))] == list(range(12))


def test_enlarged_pictures_and_duplicates_are_counted(folder):
    picture(folder / "small.png", sides=(8, 8))
    for number in range(3):
        picture(folder / f"copy{number}.png", colour="teal")
    told = prepared(folder).figures()
    assert (told["enlarged"], told["duplicates"]) == (1, 2)


def test_train_and_val_folders_are_honoured(folder):
    for name, count in (("train", 6), ("val", 3)):
        for kind in ("cat", "dog"):
            for number in range(count):
                picture(folder / name / kind / f"{number}.png", seed=len(name + kind) + ord(kind[0]))
    picture(folder / "elsewhere.png")
    result = prepared(folder)
    store, told = result.store, result.figures()
    assert store.classes == ("cat", "dog")
    assert (len(store.train), len(store.held_out)) == (12, 6)
    assert "by folder" in told["split_rule"]
    assert "outside the folders train, val" in names_and_reasons(told["ignored"])["elsewhere.png"]
    assert sorted(store.labels[store.held_out].tolist()) == [0, 0, 0, 1, 1, 1]


def test_copies_of_validation_pictures_are_kept_out_of_training(folder):
    for number in range(4):
        picture(folder / "train" / f"{number}.png")
    picture(folder / "val" / "0.png")  # the same pixels as train/0.png
    picture(folder / "val" / "9.png")
    result = prepared(folder)
    assert (len(result.store.train), len(result.store.held_out)) == (3, 3)
    assert "1 copies" in result.figures()["notes"][0]


def test_nothing_left_to_train_on_is_refused(folder):
    picture(folder / "train" / "0.png")
    picture(folder / "val" / "0.png")
    with pytest.raises(DataError, match="every training picture is a copy"):
        prepared(folder)
    assert not (folder.parent / "store").exists()


def test_a_class_named_train_is_a_class(folder):
    for name in ("train", "bus"):
        picture(folder / name / "0.png", seed=len(name))
    store = prepared(folder).store
    assert store.classes == ("bus", "train")
    assert len(store.train) == 2  # a class keeps its only picture in training


def test_a_common_folder_is_no_class(folder):
    for kind in ("cat", "dog"):
        picture(folder / "images" / kind / "deep" / "0.png")
    assert prepared(folder).store.classes == ("cat", "dog")


def test_pictures_beside_class_folders_leave_all_without_labels_and_that_is_said(folder):
    for name in ("cat/0.png", "dog/0.png", "loose.png"):
        picture(folder / name)
    result = prepared(folder)
    assert result.store.labels is None
    assert result.figures()["notes"] == ["no labels: 1 of 3 pictures lie outside the sub-folders"]


def test_labels_as_asked(folder):
    for name in ("b_0.png", "a_0.png", "a_1.png"):
        picture(folder / name)
    flat = folder.parent / "none"
    assert prepare(folder, 8, flat).store.labels is None
    by_prefix = prepare(folder, 8, folder.parent / "prefix", labels="prefix").store
    assert by_prefix.classes == ("a", "b")
    assert by_prefix.labels.tolist() == [0, 0, 1]
    with pytest.raises(DataError, match="lie in no class folder"):
        prepare(folder, 8, folder.parent / "folders", labels="folders")
    picture(folder / "plain.png")
    with pytest.raises(DataError, match=r"plain\.png has no class prefix"):
        prepare(folder, 8, folder.parent / "prefix", labels="prefix")


def test_links_are_followed_but_no_circle(folder):
    picture(folder / "a" / "0.png")
    picture(folder.parent / "other" / "1.png")
    (folder / "b").symlink_to(folder.parent / "other", target_is_directory=True)
    (folder / "a" / "up").symlink_to(folder, target_is_directory=True)
    (folder / "a" / "gone.png").symlink_to(folder / "nothing.png")
    told = prepared(folder).figures()
    assert told["used"] == 2
    assert names_and_reasons(told["ignored"]) == {
        "a/gone.png": "not a regular file, or a broken link",
        "a/up": "link to a folder read already",
    }


def test_names_in_any_bytes(folder):
    picture(folder / "ok.png")
    odd = os.path.join(os.fsencode(folder), b"caf\xe9.png")
    try:
        os.rename(picture(folder / "odd.png"), odd)
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    with open(os.path.join(os.fsencode(folder), b"dam\xe9.png"), "wb") as file:
        file.write(b"damaged")
    told = prepared(folder).figures()
    assert told["used"] == 2
    assert list(names_and_reasons(told["damaged"])) == ["dam\\xe9.png"]


@pytest.mark.parametrize("channels", [1, 3])
def test_workers_do_not_change_the_store(folder, channels):
    for number in range(50):
        picture(folder / f"{number}.png", sides=(9, 14))
    (folder / "7.png").write_bytes(b"damaged")
    stores = [
        prepare(folder, 8, folder.parent / f"store{workers}", channels=channels, workers=workers).store.path
        for workers in (1, 3)
    ]
    for name in ("images-00000.bin", "held_out.npy", "store.json"):
        assert (stores[0] / name).read_bytes() == (stores[1] / name).read_bytes()


def test_nothing_to_use(folder):
    with pytest.raises(DataError, match="no picture file there"):
        prepared(folder)
    (folder / "notes.txt").touch()
    with pytest.raises(DataError, match="the first of 1 other files"):
        prepared(folder)
    (folder / "a.png").touch()
    with pytest.raises(DataError, match=r"none of 1 pictures can be used; a\.png: empty file"):
        prepared(folder)
    assert [path.name for path in folder.parent.iterdir()] == ["pictures"]


def test_bad_requests(folder):
    picture(folder / "a.png")
    for options, what in ((dict(size=0), "size 0"), (dict(channels=4), "channels 4"), (dict(workers=0), "workers 0")):
        with pytest.raises(ConfigError, match=what):
            prepared(folder, **options)


@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
def test_processes_read_what_threads_read(folder, monkeypatch, kind):
    for number in range(40):
        picture(folder / str(number % 2) / f"{number}.png", seed=number)
    source = folder
    if kind != "folder":
        source = Path(shutil.make_archive(str(folder.parent / "archive"), kind, folder))
    by_threads = prepare(source, 16, folder.parent / "one", workers=2).store.content_hash
    monkeypatch.setattr("iddpm.data.work.MOST_THREADS", 1)
    assert prepare(source, 16, folder.parent / "two", workers=2).store.content_hash == by_threads

"""ImageNet as it is unpacked, and as Kaggle and the original site give it: class folders in train, a flat val."""

import io
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from iddpm.data.preparing import prepare
from iddpm.data.sources.archives.archive import is_tar_folder, tar_folder, zip_archive
from iddpm.data.sources.tree.folder import folder
from iddpm.runtime.errors import DataError

TRAIN = {f"train/{name}/{name}_{index}.JPEG": index for name in ("n01440764", "n01443537") for index in range(3)}
VAL = {f"val/ILSVRC2012_val_0000000{index}.JPEG": 10 + index for index in range(1, 4)}
TEST = {f"test/ILSVRC2012_test_0000000{index}.JPEG": 20 + index for index in range(1, 3)}
SOLUTION = """ImageId,PredictionString
ILSVRC2012_val_00000001,n01443537 111 108 230 366
ILSVRC2012_val_00000002,n01440764 1 2 3 4 n01440764 5 6 7 8
ILSVRC2012_val_00000003,n01443537 9 9 9 9
"""


def jpeg(seed):
    file = io.BytesIO()
    noise = np.random.default_rng(seed).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, "JPEG")
    return file.getvalue()


def layout(root, files, below=""):
    for name, seed in files.items():
        path = root / below / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg([seed, len(name)]))
    return root


def reasons(listing):
    return {each.name: each.reason for each in listing.ignored.listed}


def told(listing):
    """Class and side of each picture by its base name."""
    sides = [False] * len(listing.names) if listing.held_out is None else listing.held_out.tolist()
    labels = [listing.classes[label] for label in listing.labels]
    names = [name.rpartition("/")[2] for name in listing.names]
    return {name: (label, "val" if held else "train") for name, label, held in zip(names, labels, sides, strict=True)}


EXPECTED = {name.rpartition("/")[2]: (name.split("/")[1], "train") for name in TRAIN} | {
    "ILSVRC2012_val_00000001.JPEG": ("n01443537", "val"),
    "ILSVRC2012_val_00000002.JPEG": ("n01440764", "val"),
    "ILSVRC2012_val_00000003.JPEG": ("n01443537", "val"),
}


@pytest.mark.parametrize("labels", ["auto", "folders"])
def test_a_flat_val_is_left_out_and_that_is_said(tmp_path, labels):
    root = layout(tmp_path / "imagenet", TRAIN | VAL)
    result = prepare(root, 8, tmp_path / "store", labels=labels)
    figures = result.figures()
    assert figures["classes"] == ["n01440764", "n01443537"]
    assert (figures["used"], figures["found"]) == (6, 9)
    assert {each["reason"] for each in figures["ignored"]["listed"]} == {"no class folder (val)"}
    assert figures["split_rule"].startswith("by content")
    assert len(figures["notes"]) == 1
    assert "3 pictures of val lie in no class folder and are left out: --labels" in figures["notes"][0]


def test_a_table_labels_val_while_train_keeps_its_class_folders(tmp_path):
    root = layout(tmp_path / "imagenet", TRAIN | VAL)
    (tmp_path / "LOC_val_solution.csv").write_text(SOLUTION)
    listing = folder(root, "imagenet", str(tmp_path / "LOC_val_solution.csv")).listing
    assert told(listing) == EXPECTED
    assert listing.split_rule == "by folder: trains on train, holds out val"
    assert listing.notes == ("train: labels by class folder, LOC_val_solution.csv names none of those pictures",)


def test_the_kaggle_layout(tmp_path):
    root = layout(tmp_path / "kaggle", TRAIN | VAL | TEST, "ILSVRC/Data/CLS-LOC")
    (root / "LOC_val_solution.csv").write_text(SOLUTION)
    (root / "ILSVRC/Annotations").mkdir()
    (root / "ILSVRC/Annotations/a.xml").write_text("<boxes/>")
    listing = folder(root, "kaggle", "LOC_val_solution.csv").listing
    assert told(listing) == EXPECTED
    assert listing.split_rule == "by folder: trains on train, holds out val"
    left_out = reasons(listing)
    assert [reason for name, reason in left_out.items() if "_test_" in name] == ["no label in LOC_val_solution.csv"] * 2
    assert listing.ignored.count == 4
    assert reasons(folder(root, "kaggle").listing)["ILSVRC/Data/CLS-LOC/test/ILSVRC2012_test_00000001.JPEG"] == (
        "no class folder (test)"
    )


def test_the_kaggle_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "kaggle.zip", "w") as archive:
        archive.writestr("LOC_val_solution.csv", SOLUTION)
        for name, seed in (TRAIN | VAL | TEST).items():
            archive.writestr(f"ILSVRC/Data/CLS-LOC/{name}", jpeg(seed))
    assert told(zip_archive(tmp_path / "kaggle.zip", "kaggle.zip", "LOC_val_solution.csv").listing) == EXPECTED


def test_the_tars_of_the_original_site(tmp_path):
    root = tmp_path / "imagenet"
    root.mkdir()
    classes = {name: io.BytesIO() for name in ("n01443537", "n01440764")}
    for name, file in classes.items():
        pack(file, {path.rpartition("/")[2]: jpeg(seed) for path, seed in TRAIN.items() if f"/{name}/" in path})
    with (root / "ILSVRC2012_img_train.tar").open("wb") as file:
        pack(file, {f"{name}.tar": inner.getvalue() for name, inner in classes.items()})
    with (root / "ILSVRC2012_img_val.tar").open("wb") as file:
        pack(file, {path.rpartition("/")[2]: jpeg(seed) for path, seed in VAL.items()})
    (root / "LOC_val_solution.csv").write_text(SOLUTION)
    assert is_tar_folder(root)
    assert told(tar_folder(root, "imagenet", "LOC_val_solution.csv").listing) == EXPECTED
    assert set(reasons(tar_folder(root, "imagenet").listing).values()) == {
        "no class folder (val)",
        "not a picture file (.csv)",
    }


def pack(file, files):
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in files.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))


def test_without_labels_val_is_held_out_as_it_is(tmp_path):
    listing = folder(layout(tmp_path, TRAIN | VAL), "imagenet", "none").listing
    assert listing.labels is None
    assert int(listing.held_out.sum()) == 3
    assert listing.ignored.count == 0


def test_a_class_of_the_table_that_is_none_of_trains_is_refused(tmp_path):
    layout(tmp_path, TRAIN | VAL)
    (tmp_path / "truth.txt").write_text("ILSVRC2012_val_00000001.JPEG 490\n")
    with pytest.raises(DataError, match=r"truth\.txt: class 490 is none of train's, of which the first is n01440764"):
        folder(tmp_path, "imagenet", "truth.txt")


def test_labels_for_val_alone_leave_nothing_to_train_on_where_train_is_flat(tmp_path):
    layout(tmp_path, {"train/0.JPEG": 0} | VAL)
    (tmp_path / "LOC_val_solution.csv").write_text(SOLUTION)
    with pytest.raises(DataError, match="no picture is left to train on"):
        folder(tmp_path, "imagenet", "LOC_val_solution.csv")


def test_a_flat_train_beside_class_folders_in_val_is_no_labels_and_that_is_said(tmp_path):
    listing = folder(layout(tmp_path, {"train/0.JPEG": 0, "val/a/1.JPEG": 1, "val/b/1.JPEG": 2}), "set").listing
    assert listing.labels is None
    assert listing.notes == ("no labels: 1 of 3 pictures lie outside the sub-folders",)
    assert listing.held_out.tolist() == [False, True, True]


def test_a_table_may_label_all_parts(tmp_path):
    layout(tmp_path, TRAIN | VAL)
    rows = [f"{name.rpartition('/')[2].removesuffix('.JPEG')},{seed % 2}" for name, seed in (TRAIN | VAL).items()]
    (tmp_path / "labels.csv").write_text("ImageId,label\n" + "\n".join(rows))
    listing = folder(tmp_path, "imagenet", "labels.csv").listing
    assert listing.classes == ("0", "1")
    assert listing.labels.tolist() == [0, 1, 0, 0, 1, 0, 1, 0, 1]
    assert listing.notes == ()

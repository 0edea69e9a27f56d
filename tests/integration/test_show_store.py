"""`iddpm show STORE`."""

import json

import numpy as np
import pytest
from PIL import Image

from iddpm.cli.main import main
from iddpm.data.preparing import prepare


@pytest.fixture
def place(tmp_path):
    for number in range(30):
        noise = np.random.default_rng(number).integers(0, 256, (20, 24, 3), dtype=np.uint8)
        folder = tmp_path / "pictures" / ("cats", "dogs", "owls")[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise).save(folder / f"{number}.png")
    (tmp_path / "pictures" / "cats" / "notes.txt").write_text("about cats")
    (tmp_path / "pictures" / "cats" / "bad.png").write_bytes(b"none")
    return prepare(tmp_path / "pictures", 16, tmp_path / "store").store.path


def test_it_says_what_the_store_holds(place, capsys):
    assert main(["show", str(place), "--check"]) == 0
    printed = capsys.readouterr().out
    for words in (
        "found 32, used 30, ignored 1, damaged 1, duplicates 0",
        "cats/notes.txt: not a picture file (.txt)",
        "cats/bad.png: not a picture",
        "16x16, 3 channels",
        "30 were not square",
        "3 classes: cats (10), dogs (10), owls (10)",
        "every pixel as prepared",
        "contact_sheet.png",
    ):
        assert words in printed


def test_the_sheet_has_a_row_for_each_class(place, capsys):
    assert main(["show", str(place), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["class_counts"] == [10, 10, 10]
    assert facts["raw_bytes"] == 30 * 3 * 16 * 16
    with Image.open(facts["contact_sheet"]) as sheet:
        assert sheet.height == 3 * (16 * 4 + 2) + 2
    assert prepare(place.parent / "pictures", 16, place).already


def test_a_sheet_elsewhere_and_without_labels(place, tmp_path, capsys):
    other = prepare(place.parent / "pictures", 16, tmp_path / "plain", labels="none").store.path
    assert main(["show", str(other), "--sheet", str(tmp_path / "sheet.png"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["class_counts"] is None
    assert not (other / "contact_sheet.png").exists()
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (12 * 66 + 2, 3 * 66 + 2)


def test_a_store_that_cannot_be_written_is_shown_without_a_sheet(place, monkeypatch, capsys):
    from iddpm.runtime.errors import OutputError

    def refuse(folder):
        raise OutputError(f"cannot write {folder}")

    monkeypatch.setattr("iddpm.commands.show_store.check_writable", refuse)  # root may write anywhere
    assert main(["show", str(place), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["contact_sheet"] is None
    assert main(["show", str(place), "--sheet", "/nowhere/sheet.png"]) == 2


def test_changed_pixels_are_found(place, capsys):
    with (place / "images-00000.bin").open("r+b") as file:
        file.write(b"\x00\x01\x02")
    assert main(["show", str(place)]) == 0
    assert main(["show", str(place), "--check"]) == 2
    assert "content differs" in capsys.readouterr().err


def test_flags_for_a_store_are_refused_for_a_recipe(capsys):
    assert main(["show", "demo", "--check"]) == 2
    assert "demo is none" in capsys.readouterr().err

"""Tables of labels in every form that people have them in, and which picture a row means."""

import json

import pytest

from iddpm.data.names import Names
from iddpm.data.sources.tree.label_match import match
from iddpm.data.sources.tree.label_table import number_classes, read_table
from iddpm.runtime.errors import DataError


def table(content, name="labels.csv", folder=""):
    return read_table(content.encode() if isinstance(content, str) else content, name, name, folder)


def rows(content, name="labels.csv"):
    read = table(content, name)
    return {file: read.texts[label] for file, label in zip(read.files, read.label_of, strict=True)}


def labels_of(paths, *tables, common=0):
    found = match(Names(paths), tables, common)
    return [found.texts[label] if label >= 0 else None for label in found.label_of], found.idle


CATS = {"a/0.png": "cat", "b.png": "big dog"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("l.csv", "a/0.png,cat\nb.png,big dog\n"),
        ("l.csv", "file,label\na/0.png,cat\nb.png,big dog"),
        ("l.csv", "\ufeffFile_Name,Width,Class\r\na/0.png,3,cat\r\n\r\nb.png,4,big dog\r\n"),
        ("l.csv", 'path;category\n"a/0.png";cat\nb.png; big dog\n'),
        ("l.csv", "breed,image_id\ncat,a/0.png\nbig dog,b.png\n"),
        ("l.tsv", "./a/0.png\tcat\nb.png\tbig dog\n"),
        ("l.csv", "filename,target\na\\0.png,cat\nb.png,big dog\nc.png,\n"),
        ("l.json", json.dumps(CATS)),
        ("l.json", json.dumps([list(each) for each in CATS.items()])),
        ("dataset.json", json.dumps({"labels": [list(each) for each in CATS.items()]})),
        ("l.json", json.dumps([{"file_name": file, "label": label, "x": 1} for file, label in CATS.items()])),
        ("l.jsonl", "\n".join(json.dumps({"file_name": file, "label": label}) for file, label in CATS.items())),
    ],
)
def test_tables_in_every_form_say_the_same(name, content):
    assert rows(content, name) == CATS


def test_a_plain_list_of_files_and_numbers_is_a_table():
    assert rows("val/1.JPEG 65\nval/2.JPEG 970\n", "val.txt") == {"val/1.JPEG": "65", "val/2.JPEG": "970"}


def test_imagenet_solution_names_the_class_first():
    content = "ImageId,PredictionString\nILSVRC2012_val_00000001,n01751748 111 108 230 366 \nX_2,n01440764 1 2 3 4 n01440764 5 6 7 8\n"
    assert rows(content, "LOC_val_solution.csv") == {"ILSVRC2012_val_00000001": "n01751748", "X_2": "n01440764"}


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("l.csv", "a.png,0.5\n", "label 0.5"),
        ("l.csv", "a.png,6.0\n", "label 6.0"),
        ("l.json", '{"a.png": 0.5}', "label 0.5"),
        ("l.json", '{"a.png": [1, 2]}', r"label \[1, 2\]"),
        ("l.json", '{"a.png": true}', "label true"),
        ("l.json", '{"labels": null}', "holds no labels"),
        ("l.json", '{"a.png": ', "not a whole json file"),
        ("l.json", "[" * 100_000, "not a whole json file"),
        ("l.json", "[1, 2]", "item 1 is no file with its label: 1"),
        ("l.jsonl", '{"file_name": "a.png", "text": "a", "x": 1}', "which columns"),
        ("l.csv", "", "which columns"),
        ("l.csv", "a.png\n", "which columns"),
        ("l.csv", "image_id,Bald,Smiling\na.png,-1,1\n", "which columns .*image_id, Bald, Smiling"),
        ("l.csv", "a.png,cat,dog\n", "which columns"),
        ("l.csv", "file,label\na.png\n", "line 2: 1 columns"),
        ("l.csv", "file,label\na.png,cat,dog\n", "line 2: 3 columns"),
        ("l.csv", "file,label\n", "holds no labels"),
        ("l.csv", b"a.png,caf\xe9\n", r"not a text file in UTF-8 \(byte 9\)"),
        ("l.csv", "a.png,c\0t\n" + "x" * 200_000 + ",1\n", "field larger than field limit"),
    ],
)
def test_what_is_no_table_of_labels_is_refused_in_one_line(name, content, what):
    with pytest.raises(DataError, match=what) as error:
        table(content, name)
    assert len(str(error.value).splitlines()) == 2


def test_whole_numbers_name_the_classes_as_npz_does():
    assert number_classes({"2", "0", "005"}, "l") == (tuple("012345"), {"2": 2, "0": 0, "005": 5})


def test_whole_numbers_far_between_are_the_classes_that_occur():
    assert number_classes({"54321", "3", "003"}, "l") == (("3", "54321"), {"3": 0, "003": 0, "54321": 1})
    assert number_classes({"0", "6"}, "l")[0] == ("0", "6")
    assert number_classes({"1", "2"}, "l")[0] == ("0", "1", "2")


def test_a_label_that_is_no_text_at_all_is_one_class():
    assert rows('{"a.png": "\\ud800"}', "l.json") == {"a.png": "\\ud800"}
    with pytest.raises(DataError, match=r"a\.png: label \[.*ud800"):
        table('{"a.png": ["\\ud800"]}', "l.json")


def test_texts_are_classes_in_natural_order():
    assert number_classes({"class10", "class2", "7"}, "l")[0] == ("7", "class2", "class10")


@pytest.mark.parametrize("number", ["-1", "100000", "9" * 40])
def test_a_number_that_can_be_no_class_is_refused(number):
    with pytest.raises(DataError, match=f"label {number}"):
        number_classes({"0", number}, "l.csv")


def test_paths_come_before_names():
    told = table("a/0.png,cat\nb/0.png,dog\n0.png,fox\n")
    assert labels_of(["0.png", "a/0.png", "b/0.png", "c/0.png"], told) == (["fox", "cat", "dog", None], 0)


def test_a_name_that_one_row_and_one_picture_have_is_enough():
    told = table("elsewhere/x/1.png,cat\n2.png,dog\nILSVRC_3,fox\nn/4.5.png,owl\n")
    paths = ["p/1.png", "p/2.png", "q/ILSVRC_3.JPEG", "4.5.jpg"]
    assert labels_of(paths, told) == (["cat", "dog", "fox", "owl"], 0)


def test_accents_may_be_composed_or_not():
    assert labels_of(["Ka\u0308se.png"], table("K\u00e4se.png,gouda\n")) == (["gouda"], 0)


def test_a_name_that_two_have_is_not():
    assert labels_of(["p/1.png", "q/1.png"], table("1.png,cat\n")) == ([None, None], 1)
    assert labels_of(["p/1.png"], table("x/1.png,cat\ny/1.png,cat\n")) == ([None], 2)
    assert labels_of(["1.png", "1.jpg"], table("1,cat\n")) == ([None, None], 1)


def test_a_table_in_a_folder_speaks_of_that_folder():
    told = table("0.png,cat\n", folder="train"), table("0.png,dog\n", folder="val")
    assert labels_of(["train/0.png", "val/0.png"], *told) == (["cat", "dog"], 0)


def test_a_table_may_leave_out_what_all_paths_share():
    told = table("a/0.png,cat\nb/0.png,dog\n")
    assert labels_of(["x/y/a/0.png", "x/y/b/0.png"], told, common=2) == (["cat", "dog"], 0)


def test_rows_without_a_picture_are_counted_once():
    assert labels_of(["a.png"], table("a.png,cat\nb.png,dog\nb.png,dog\nc.png,cat\n")) == (["cat"], 2)


def test_one_file_with_two_labels_is_refused():
    assert labels_of(["a.png"], table("a.png,cat\n./a.png,cat\n")) == (["cat"], 0)
    with pytest.raises(DataError, match=r"a\.png has two labels, cat and dog"):
        labels_of(["a.png"], table("a.png,cat\n./a.png,dog\n"))

"""What folders and archives share: the order, the parts of a split, classes, and what is left out."""

import errno
import io
import os
import pickle
import random

import numpy as np
import pytest

from iddpm.data.frame import Frame, UnusablePictureError
from iddpm.data.listing import LISTED, natural_key
from iddpm.data.names import Names
from iddpm.data.sources.archives.members import Member, entries_of, indexed, normal_path
from iddpm.data.sources.archives.positioned import named_file
from iddpm.data.sources.sides import side_in
from iddpm.data.sources.tree import folder as folder_module
from iddpm.data.sources.tree.entries import Entry, gather
from iddpm.data.sources.tree.folder import folder
from iddpm.data.sources.tree.roles import folder_roles, shared_folders
from iddpm.runtime.errors import DataError


def tree(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x")
    return root


def listing(root, labels="auto"):
    return folder(root, "pictures", labels).listing


def reasons(listing):
    return {each.name: each.reason for each in listing.ignored.listed}


def entries(*paths):
    return list(entries_of(indexed((Member(path=path, row=(index,)) for index, path in enumerate(paths)), 1)))


def test_natural_order_is_total_and_by_value():
    texts = [
        "a",
        "a0",
        "a00",
        "a1",
        "a01",
        "a2",
        "a10",
        "a10b",
        "a!",
        "ab",
        "",
        "2",
        "10",
        "é9",
        "é10",
        "a1b2",
        "a1b10",
    ]
    ordered = sorted(texts, key=natural_key)
    assert ordered == [
        "",
        "2",
        "10",
        "a",
        "a0",
        "a00",
        "a01",
        "a1",
        "a1b2",
        "a1b10",
        "a2",
        "a10",
        "a10b",
        "a!",
        "ab",
        "é9",
        "é10",
    ]
    random.Random(0).shuffle(texts)
    assert sorted(texts, key=natural_key) == ordered


def test_members_come_in_the_order_of_a_folder():
    paths = ["b/10.png", "b2/0.png", "b/9.png", "a.png", "b/9/x.png", "b10/0.png", "c.png"]
    assert ["/".join(entry.parts) for entry in entries(*paths)] == [
        "a.png", "b/9/x.png", "b/9.png", "b/10.png", "b2/0.png", "b10/0.png", "c.png",
    ]  # fmt: skip


def test_of_members_of_one_name_the_last_counts():
    assert [(entry.at, entry.reason) for entry in entries("a.png", "b.png", "a.png")] == [
        (0, "a later member has the same name"), (2, None), (1, None),
    ]  # fmt: skip


def test_a_hidden_folder_is_one_entry_whatever_it_holds():
    found = [
        ("/".join(entry.parts), entry.reason) for entry in entries("a/.git/1", "a/.git/b/2.png", "__MACOSX/a/._0.png")
    ]
    assert found == [("__MACOSX", "hidden folder"), ("a/.git", "hidden folder")]


@pytest.mark.parametrize("name", ["/a//b.png", "./a/./b.png", "a/b.png"])
def test_member_names_are_brought_to_one_form(name):
    assert normal_path(name) == "a/b.png"


def test_a_name_that_leads_out_is_left_out():
    assert [entry.reason for entry in entries("../a.png")] == ["'..' in its path"]


def test_all_that_is_left_out_is_counted_and_the_first_are_named():
    found = gather((Entry(parts=(f"{index}.txt",)) for index in range(LISTED + 7)), "")
    assert (found.ignored.count, len(found.ignored.listed)) == (LISTED + 7, LISTED)


def test_what_all_folders_share_is_left_out_but_for_the_last_folder():
    assert shared_folders([("a", "b", "c"), ("a", "b", "d", "e")]) == 2
    assert shared_folders([("a", "b"), ("a", "b", "c")]) == 1
    assert shared_folders([("a",), ()]) == 0
    assert shared_folders([]) == 0


def test_parts_lie_below_the_shared_folders():
    roles = folder_roles([("x", "y", "Train", "cat"), ("x", "y", "val", "cat"), ("x", "y", "more")])
    assert [(role.side, role.class_name) for role in roles] == [("train", "cat"), ("val", "cat"), (None, None)]


def test_train_alone_is_no_part():
    assert [role.side for role in folder_roles([("train", "a"), ("other", "b")])] == ["", ""]


@pytest.mark.parametrize(
    ("name", "side"),
    [("imagenet-train-000000", "train"), ("ILSVRC2012_img_val", "val"), ("training", None), ("train-val", None)],
)
def test_the_part_in_a_file_name(name, side):
    assert side_in(name) == side


def test_macos_archives_and_hidden_twins_are_left_out(tmp_path):
    found = listing(tree(tmp_path, "0.png", "._0.png", "__MACOSX/0.png", ".x/y/0.png"))
    assert found.names == Names(["0.png"])
    assert reasons(found) == {"._0.png": "hidden file", ".x": "hidden folder", "__MACOSX": "hidden folder"}


def test_links_to_themselves_are_left_out(tmp_path):
    tree(tmp_path, "0.png")
    (tmp_path / "self.png").symlink_to("self.png")
    (tmp_path / "loop").symlink_to("loop")
    assert reasons(listing(tmp_path)) == {
        "loop": "not a picture file (no suffix)",
        "self.png": "not a regular file, or a broken link",
    }


def test_a_folder_with_a_suffix_of_pictures_is_entered(tmp_path):
    assert list(listing(tree(tmp_path, "set.png/0.png")).names) == ["set.png/0.png"]


def test_the_fingerprint_changes_with_any_file_and_with_the_labels(tmp_path):
    tree(tmp_path, "a/0.png", "b/1.png")
    seen = [listing(tmp_path).fingerprint, listing(tmp_path, "none").fingerprint]
    os.utime(tmp_path / "a/0.png", ns=(1, 1))
    seen.append(listing(tmp_path).fingerprint)
    (tmp_path / "b/1.png").rename(tmp_path / "b/2.png")
    seen.append(listing(tmp_path).fingerprint)
    assert len(set(seen)) == len(seen)
    assert listing(tmp_path).fingerprint == seen[-1]


def test_the_fingerprint_does_not_change_with_files_that_are_not_used(tmp_path):
    before = listing(tree(tmp_path, "a/0.png", "b/1.png")).fingerprint
    tree(
        tmp_path,
        ".DS_Store",
        "a/Thumbs.db",
        ".out.preparing/images-00000.bin",
        "out/store.json",
        "out/images-00000.webp",
    )
    assert listing(tmp_path).fingerprint == before


def test_the_fingerprint_tells_copies_of_equal_size_and_time_apart(tmp_path):
    prints = []
    for name in ("mnist", "kmnist"):
        os.utime(tree(tmp_path / name, "0.png") / "0.png", ns=(0, 0))
        prints.append(listing(tmp_path / name).fingerprint)
    (tmp_path / "kmnist/0.png").write_bytes(b"y")
    os.utime(tmp_path / "kmnist/0.png", ns=(0, 0))
    prints.append(listing(tmp_path / "kmnist").fingerprint)
    assert len(set(prints)) == 3


def test_the_fingerprint_does_not_change_with_the_place(tmp_path):
    before = listing(tree(tmp_path / "here", "a/0.png")).fingerprint
    (tmp_path / "here").rename(tmp_path / "there")
    assert listing(tmp_path / "there").fingerprint == before


def test_a_store_that_was_prepared_into_the_source_is_passed_over(tmp_path):
    found = listing(tree(tmp_path, "0.png", "out/store.json", "out/images-00000.bin", "out/classes/1.png"))
    assert list(found.names) == ["0.png"]
    assert reasons(found) == {"out": "a prepared store"}


def test_a_folder_of_the_source_goes_by_its_own_name_whatever_links_lead_to_it(tmp_path):
    tree(tmp_path, "zebra/0.png", "train/cat/1.png", "train/dog/2.png")
    (tmp_path / "aaa").symlink_to("zebra")
    (tmp_path / "test").mkdir()
    (tmp_path / "test/cat").symlink_to("../train/cat")
    found = listing(tmp_path, "none")
    assert list(found.names) == ["train/cat/1.png", "train/dog/2.png", "zebra/0.png"]
    elsewhere = "link to a folder that is read elsewhere in the source"
    assert {name: reason for name, reason in reasons(found).items() if "/" not in name} == {"aaa": elsewhere}
    assert reasons(found)["test/cat"] == elsewhere


def test_a_link_that_leads_out_of_what_is_read_is_followed_once(tmp_path):
    tree(tmp_path / "outside", "b/0.png")
    tree(tmp_path / "in", ".objects/c/1.png")
    for name, to in (("x", "../outside"), ("y", "../outside/b"), ("cat", ".objects/c"), ("dog", ".objects/c")):
        (tmp_path / "in" / name).symlink_to(to)
    found = listing(tmp_path / "in")
    assert list(found.names) == ["cat/1.png", "y/0.png"]
    already = dict.fromkeys(("dog", "x/b"), "link to a folder read already")
    assert reasons(found) == already | {".objects": "hidden folder"}


def read_error(source, at=0):
    with pytest.raises((DataError, UnusablePictureError)) as caught:
        source.read(source.places[at], Frame(size=8))
    return caught.value


def test_a_picture_that_changes_or_goes_after_it_was_listed_ends_the_run(tmp_path):
    source = folder(tree(tmp_path / "set", "a/0.png", "a/1.png"), "set")
    (tmp_path / "set/a/0.png").write_bytes(b"other")
    os.utime(tmp_path / "set/a/1.png", ns=(1, 1))
    for at in (0, 1):
        error = read_error(source, at)
        assert isinstance(error, DataError)
        assert f"set/a/{at}.png has changed since it was listed" in error.what
    (tmp_path / "set").rename(tmp_path / "unmounted")
    error = read_error(source)
    assert isinstance(error, DataError)
    assert "No such file or directory: it was listed, and has gone since" in error.what
    assert "the same command goes on from there" in error.fix


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOTCONN])
@pytest.mark.parametrize("when", ["opened", "read"])
def test_a_failing_disk_is_no_damage(tmp_path, monkeypatch, number, when):
    source = folder(tree(tmp_path, "0.png"), "set")

    class Failing(io.BytesIO):
        def fileno(self):
            return self.file.fileno()

        def read(self, *_):
            raise OSError(number, os.strerror(number))

        def close(self):
            self.file.close()

    def failing(path, mode):
        if when == "opened":
            raise OSError(number, os.strerror(number))
        file = Failing()
        file.file = open(path, mode)  # noqa: SIM115
        return file

    monkeypatch.setattr(folder_module, "open", failing, raising=False)
    error = read_error(source)
    assert isinstance(error, DataError)
    assert os.strerror(number) in error.what
    assert "the same command goes on from there" in error.fix


def test_one_file_without_permission_is_damage(tmp_path, monkeypatch):
    source = folder(tree(tmp_path, "0.png"), "set")

    def refused(path, mode):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(folder_module, "open", refused, raising=False)
    error = read_error(source)
    assert isinstance(error, UnusablePictureError)
    assert str(error) == "Permission denied"


def test_what_a_decoder_says_is_damage(tmp_path):
    content = b"II*\0\xff\xff\xff\xff" + b"\0" * 40  # a TIFF whose first page lies behind its end
    tree(tmp_path, "0.png", "1.tif")
    (tmp_path / "1.tif").write_bytes(content)
    (tmp_path / "2.png").write_bytes(b"")
    source = folder(tmp_path, "set")
    assert [type(read_error(source, at)) for at in range(3)] == [UnusablePictureError] * 3
    assert str(read_error(source, 2)) == "empty file"


def test_a_failing_disk_hides_no_folder_and_no_file(tmp_path, monkeypatch):
    tree(tmp_path, "0.png")
    stat = os.stat

    def failing(path, *args, **options):
        if str(path).endswith("0.png"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", failing)
    with pytest.raises(DataError, match=r"0\.png: Input/output error"):
        listing(tmp_path)


def test_the_places_of_a_folder_go_to_other_processes(tmp_path):
    source = folder(tree(tmp_path, "0.png", "1.png", "2.png"), "set")
    places = pickle.loads(pickle.dumps(source.places[1:3]))
    assert [path for path, *_ in places] == ["1.png", "2.png"]
    assert places[0] == source.places[1] == ("1.png", 1, (tmp_path / "1.png").stat().st_mtime_ns)


def test_the_places_are_those_of_the_pictures_that_are_used(tmp_path):
    tree(tmp_path, "0.png", "1.png", "2.png")
    (tmp_path / "1.png").write_bytes(b"longer")
    (tmp_path / "labels.csv").write_text("1.png,a\n2.png,b\n")
    assert [place[:2] for place in folder(tmp_path, "set", "labels.csv").places] == [("1.png", 6), ("2.png", 1)]


def test_a_folder_takes_little_memory_for_each_picture(tmp_path):
    import tracemalloc

    count = 3000
    for index in range(count):
        (tmp_path / f"ILSVRC2012_val_{index:08d}.JPEG").touch()
    listing(tmp_path)
    tracemalloc.start()
    found = folder(tmp_path, "set")
    size, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.places) == count
    assert size / count < 100
    assert peak / count < 240


def test_control_characters_of_names_are_not_shown(tmp_path):
    found = listing(tree(tmp_path, "a\nb\x1b[31m.png", "c\x1b.t\x1bt"))
    assert list(found.names) == [r"a\nb\x1b[31m.png"]
    assert reasons(found) == {r"c\x1b.t\x1bt": r"not a picture file (.t\x1bt)"}
    assert folder(tmp_path, "set").places[0][0] == "a\nb\x1b[31m.png"


@pytest.mark.parametrize("path", ["a/" * 100 + "0.png", "a/" * 15_000 + "0.png", "\u00e9" * 2100 + ".png"])
def test_members_with_endless_paths_are_left_out_and_take_no_memory(path):
    import tracemalloc

    tracemalloc.start()
    found = gather(entries_of(indexed([Member(path=path, row=(0,)), Member(path="0.png", row=(1,))], 1)), "")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert list(found.paths) == ["0.png"]
    assert [each.reason for each in found.ignored.listed] == ["a path of more than 100 parts or 4096 bytes"]
    assert peak < 1 << 19


def test_a_path_of_100_parts_is_used():
    assert entries("a/" * 99 + "0.png")[0].reason is None


def test_the_fingerprint_changes_with_the_table_and_not_with_its_name(tmp_path):
    root = tree(tmp_path / "pictures", "0.png", "1.png")
    seen = []
    for name, content in (("l.csv", "0,a\n1,b\n"), ("m.csv", "0,a\n1,b\n"), ("l.csv", "0,a\n1,c\n")):
        (tmp_path / name).write_text(content)
        seen.append(listing(root, str(tmp_path / name)).fingerprint)
    assert seen[0] == seen[1] != seen[2]


def test_a_table_lies_here_or_in_the_source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = tree(tmp_path / "pictures", "x/0.png", "x/1.png")
    (root / "l.csv").write_text("x/0.png,in\nx/1.png,in\n")
    assert listing(root, "l.csv").classes == ("in",)
    (tmp_path / "l.csv").write_text("x/0.png,here\nx/1.png,here\n")
    assert listing(root, "l.csv").classes == ("here",)


def test_a_table_in_each_part_is_used_for_that_part(tmp_path):
    tree(tmp_path, "train/0.png", "train/1.png", "test/0.png")
    (tmp_path / "train/metadata.csv").write_text("file_name,label\n0.png,cat\n1.png,dog\n")
    (tmp_path / "test/metadata.csv").write_text("file_name,label\n0.png,dog\n")
    found = listing(tmp_path, "metadata.csv")
    assert list(found.names) == ["test/0.png", "train/0.png", "train/1.png"]
    assert [found.classes[label] for label in found.labels] == ["dog", "cat", "dog"]
    assert found.held_out.tolist() == [True, False, False]


def test_a_table_that_is_there_is_mentioned_and_not_used(tmp_path):
    tree(tmp_path, "00000/0.png", "00000/1.png")
    (tmp_path / "dataset.json").write_text('{"labels": [["00000/0.png", 6], ["00000/1.png", 0]]}')
    found = listing(tmp_path)
    assert found.labels is None
    assert found.notes == ("dataset.json may hold labels: --labels dataset.json uses it",)
    used = listing(tmp_path, "dataset.json")
    assert (used.labels.tolist(), used.classes) == ([1, 0], ("0", "6"))


def test_pictures_without_a_row_are_left_out_and_idle_rows_told(tmp_path):
    root = tree(tmp_path / "pictures", "0.png", "1.png", "2.png")
    (tmp_path / "labels.csv").write_text("0.png,b\n2.png,a\n3.png,c\n")
    found = listing(root, str(tmp_path / "labels.csv"))
    assert (list(found.names), found.labels.tolist(), found.classes) == (["0.png", "2.png"], [1, 0], ("a", "b"))
    assert reasons(found) == {"1.png": "no label in labels.csv"}
    assert found.notes == ("1 rows of labels.csv name no picture here",)


def test_a_table_of_other_pictures_is_refused(tmp_path):
    root = tree(tmp_path / "pictures", "0.png")
    (tmp_path / "labels.csv").write_text("x.png,b\n")
    with pytest.raises(DataError, match=r"labels\.csv: none of its 1 files is a picture of pictures"):
        listing(root, str(tmp_path / "labels.csv"))


@pytest.mark.parametrize("labels", ["folder", "labels.csv", "", "a\0b"])
def test_labels_that_do_not_exist_are_refused(tmp_path, labels):
    with pytest.raises(DataError, match="labels "):
        listing(tree(tmp_path, "0.png"), labels)


def test_unreadable_folders_are_told(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        listing(tmp_path / "gone")


def test_a_file_is_read_at_any_position_also_in_another_process(tmp_path):
    (tmp_path / "f").write_bytes(bytes(range(100)))
    file = named_file(tmp_path / "f")
    assert pickle.loads(pickle.dumps(file)).read_at(90, 3) == b"Z[\\"
    with pytest.raises(UnusablePictureError, match="ends within it"):
        file.read_at(99, 2)


def test_a_file_that_changed_since_it_was_listed_is_not_read(tmp_path):
    (tmp_path / "f").write_bytes(b"one")
    file = named_file(tmp_path / "f")
    (tmp_path / "f").write_bytes(b"other")
    with pytest.raises(DataError, match="changed since"):
        file.read_at(0, 3)


def test_a_file_that_changes_while_it_is_read_or_goes_ends_the_run(tmp_path):
    (tmp_path / "f").write_bytes(b"one")
    file = named_file(tmp_path / "f")
    assert file.read_at(0, 3) == b"one"
    (tmp_path / "f").write_bytes(b"two")
    os.utime(tmp_path / "f", ns=(1, 1))
    with pytest.raises(DataError, match="changed since"):
        file.read_at(0, 3)
    (tmp_path / "g").write_bytes(b"one")
    gone = named_file(tmp_path / "g")
    (tmp_path / "g").unlink()
    with pytest.raises(DataError, match=r"g: No such file or directory: it was listed, and has gone since"):
        gone.read_at(0, 3)


def test_too_many_open_files_are_no_damage(tmp_path, monkeypatch):
    (tmp_path / "f").write_bytes(b"one")
    file = named_file(tmp_path / "f")

    def full(path, flags):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", full)
        with pytest.raises(
            DataError, match=r"Too many open files\nonce it can be read again, the same command goes on"
        ):
            file.read_at(0, 3)
    assert file.read_at(0, 3) == b"one"


def test_a_listing_takes_a_few_bytes_for_each_picture():
    """Names in one block, and whole numbers: never an object for each."""
    import tracemalloc

    count = 3000
    tracemalloc.start()
    found = gather(
        (Entry(parts=("train", "n01440764", f"{index:08d}.JPEG"), state=(1, 2)) for index in range(count)), ""
    )
    size, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.paths) == count
    assert size / count < 80
    assert peak / count < 140
    assert found.folder_of.dtype == np.int64

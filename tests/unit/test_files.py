import errno
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from iddpm.runtime.errors import OutputError
from iddpm.runtime.files import (
    check_writable,
    new_folder,
    remove_folder,
    reported,
    sha256_of,
    to_json,
    write_bytes,
    write_json,
    write_text,
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_write_replaces_whole_files_and_leaves_nothing_aside(tmp_path):
    file = tmp_path / "a.json"
    write_json(file, {"a": 1})
    write_json(file, {"a": 2, "é": None})
    assert json.loads(file.read_text(encoding="utf-8")) == {"a": 2, "é": None}
    write_text(tmp_path / "b.txt", "ü\n")
    assert (tmp_path / "b.txt").read_bytes() == "ü\n".encode()
    assert names(tmp_path) == ["a.json", "b.txt"]


def test_failed_write_keeps_the_old_file_and_leaves_nothing_aside(tmp_path, monkeypatch):
    file = tmp_path / "a"
    write_bytes(file, b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match="No space left"):
        write_bytes(file, b"new")
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_files_are_readable_by_others_as_the_umask_allows(tmp_path):
    write_text(tmp_path / "a", "")
    with new_folder(tmp_path / "b"):
        pass
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o666 & ~mask
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o777 & ~mask


def test_json_refuses_what_is_not_json():
    with pytest.raises(ValueError, match="JSON"):
        to_json({"a": float("nan")})


def test_place_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    below = tmp_path / "file" / "below"
    for write in (lambda: write_text(below, ""), lambda: check_writable(below), lambda: new_folder(below).__enter__()):
        with pytest.raises(OutputError, match=str(below)):
            write()
    with pytest.raises(OutputError, match=r"missing/a"):
        write_text(tmp_path / "missing" / "a", "")
    assert names(tmp_path) == ["file"]


def test_check_writable_makes_the_folder_and_leaves_it_empty(tmp_path):
    check_writable(tmp_path / "a" / "b")
    assert names(tmp_path / "a" / "b") == []


def test_new_folder_has_its_name_only_when_it_is_done(tmp_path):
    with new_folder(tmp_path / "deep" / "a") as aside:
        (aside / "x").write_text("1")
        assert not (tmp_path / "deep" / "a").exists()
    assert names(tmp_path / "deep") == ["a"]
    assert (tmp_path / "deep" / "a" / "x").read_text() == "1"


def test_new_folder_replaces_a_whole_folder(tmp_path):
    for content in ("old", "new"):
        with new_folder(tmp_path / "a") as aside:
            (aside / content).write_text(content)
    assert names(tmp_path) == ["a"]
    assert names(tmp_path / "a") == ["new"]


def test_failed_new_folder_keeps_the_old_one_and_leaves_nothing_aside(tmp_path):
    with new_folder(tmp_path / "a") as aside:
        (aside / "old").write_text("1")

    def half():
        with new_folder(tmp_path / "a") as aside:
            (aside / "new").write_text("2")
            raise KeyError("half-way")

    with pytest.raises(KeyError):
        half()
    assert names(tmp_path) == ["a"]
    assert names(tmp_path / "a") == ["old"]


def test_disk_that_fills_up_while_a_folder_is_made_is_an_output_error(tmp_path):
    with pytest.raises(OutputError, match="No space left"), new_folder(tmp_path / "a"):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(FileNotFoundError), new_folder(tmp_path / "a"):
        (tmp_path / "missing").read_text()
    assert names(tmp_path) == []


def test_sha256_is_of_the_content(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_of(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_system_errors_of_a_block_name_the_place(tmp_path):
    with pytest.raises(OutputError, match=f"cannot write {tmp_path}: Input/output error"), reported(tmp_path):
        raise OSError(errno.EIO, "Input/output error")
    with pytest.raises(KeyError), reported(tmp_path):
        raise KeyError("not the system's")


def test_folder_is_removed_and_a_kill_on_the_way_leaves_a_hidden_one(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name / "deep").mkdir(parents=True)
    remove_folder(tmp_path / "a")
    assert names(tmp_path) == ["b"]

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        remove_folder(tmp_path / "b")
    assert [name[:3] for name in names(tmp_path)] == [".b."]


def test_folder_that_cannot_be_removed_is_an_output_error(tmp_path):
    with pytest.raises(OutputError, match="missing"):
        remove_folder(tmp_path / "missing")


def test_writing_in_two_threads_leaves_the_umask_alone(tmp_path):
    before = os.umask(0o027)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda i: write_text(tmp_path / str(i), "x"), range(40)))
        assert {stat.S_IMODE((tmp_path / str(i)).stat().st_mode) for i in range(40)} == {0o640}
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)

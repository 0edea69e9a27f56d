"""What goes wrong while a store is written, or because somebody else writes it too."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from iddpm.commands.store import store_for
from iddpm.data.checking import check_content
from iddpm.data.crop import WholePicture
from iddpm.data.frame import Frame
from iddpm.data.opening import open_source
from iddpm.data.preparing import prepare, store_source
from iddpm.data.store import open_store
from iddpm.experiment.config import DataConfig
from iddpm.runtime.errors import ConfigError, DataError, OutputError
from tiny import Lines

COUNT = 60


def fill(folder: Path, sides=(20, 20), first=0) -> Path:
    for number in range(first, first + COUNT):
        noise = np.random.default_rng(number).integers(0, 256, (*sides, 3), dtype=np.uint8)
        (folder / str(number % 3)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise).save(folder / str(number % 3) / f"{number}.png")
    return folder


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda handle: None)


@pytest.fixture
def pictures(tmp_path):
    return fill(tmp_path / "pictures")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    "where",
    ["iddpm.data.writing.write_rest", "iddpm.data.store.write_json", "iddpm.data.preparing.publish_folder"],
)
def test_a_disk_that_is_full_at_the_very_end_costs_no_work(pictures, tmp_path, monkeypatch, where):
    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(where, fail)
        with pytest.raises((OutputError, OSError), match="No space left"):
            prepare(pictures, 16, tmp_path / "store")
    told = Lines()
    again = prepare(pictures, 16, tmp_path / "store", listener=told)
    assert again.resumed_at == COUNT
    assert not told.progressed
    assert content(again.store.path) == content(prepare(pictures, 16, tmp_path / "whole").store.path)


@pytest.mark.parametrize("name", ["images-00000.bin", "digests.part", "origins.part", "kept.part"])
def test_a_write_that_fails_on_the_way_is_told_and_gone_on_with(pictures, tmp_path, monkeypatch, name):
    monkeypatch.setattr("iddpm.data.writing.COMMIT_BYTES", 1)
    opened = Path.open

    class Full:
        def __init__(self, file):
            self._file, self._left = file, 20

        def write(self, piece):
            self._left -= 1
            if self._left < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return self._file.write(piece)

        def __getattr__(self, attribute):
            return getattr(self._file, attribute)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self._file.close()

    def open_full(path, *args, **kwargs):
        file = opened(path, *args, **kwargs)
        return Full(file) if path.name == name else file

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", open_full)
        with pytest.raises(OutputError, match=r"No space left.*\n.*goes on from there"):
            prepare(pictures, 16, tmp_path / "store")
    again = prepare(pictures, 16, tmp_path / "store")
    assert 0 < again.resumed_at < COUNT
    assert content(again.store.path) == content(prepare(pictures, 16, tmp_path / "whole").store.path)


RACE = """
import sys
from iddpm.data.preparing import prepare
for _ in range(int(sys.argv[4])):
    try:
        prepare(sys.argv[1], 16, sys.argv[2], labels=sys.argv[3])
    except Exception as error:
        if "holds a store of other content" not in str(error):
            raise
"""


def test_many_processes_with_two_requests_leave_one_whole_store(pictures, tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(pictures), str(tmp_path / "store"), labels, "8"],
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for labels in ("auto", "none", "auto", "none")
    ]
    complaints = [child.communicate(timeout=100)[1] for child in children]
    assert [child.returncode for child in children] == [0] * 4, complaints
    check_content(open_store(tmp_path / "store"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pictures", "store"]


def test_what_others_put_into_a_store_stays_when_the_source_was_touched(pictures, tmp_path):
    first = prepare(pictures, 16, tmp_path / "store")
    (tmp_path / "store" / "NOTES.md").write_text("mine")
    (tmp_path / "store" / "more").mkdir()
    images = (tmp_path / "store" / "images-00000.bin").stat()
    os.utime(pictures / "0" / "0.png", (1, 1))
    again = prepare(pictures, 16, tmp_path / "store")
    assert again.already
    assert again.store.provenance.fingerprint != first.store.provenance.fingerprint
    assert (tmp_path / "store" / "images-00000.bin").stat().st_ino == images.st_ino
    encoded = prepare(pictures, 16, tmp_path / "store", encode_above_bytes=0)
    assert encoded.store.encoding == "webp"
    assert (tmp_path / "store" / "NOTES.md").read_text() == "mine"
    assert (tmp_path / "store" / "more").is_dir()
    assert not (tmp_path / "store" / "images-00000.bin").exists()
    assert not list(tmp_path.glob(".*"))


def test_a_place_that_is_a_link_leads_where_it_points(pictures, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "disk" / "store")
    prepare(pictures, 16, tmp_path / "store")
    assert (tmp_path / "store").is_symlink()
    assert (tmp_path / "disk" / "store" / "store.json").is_file()


def test_a_mount_point_is_refused_before_any_work(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path).name == "store")
    told = Lines()
    with pytest.raises(OutputError, match="mount point"):
        prepare(pictures, 16, tmp_path / "store", listener=told)
    assert not told.progressed


def test_a_worker_that_is_killed_leaves_the_work(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("iddpm.data.writing.COMMIT_BYTES", 1)
    monkeypatch.setattr("iddpm.data.work.WORTH_PROCESSES", 0)
    monkeypatch.setattr("iddpm.data.work.CHUNK", 1)

    class Killing(Lines):
        def progress(self, task, done, total, detail=""):
            super().progress(task, done, total, detail)
            if done == 20:
                import multiprocessing

                for child in multiprocessing.active_children():
                    os.kill(child.pid, signal.SIGKILL)

    opened = replace(open_source(pictures), pool="processes")
    frame = Frame(size=16)
    with pytest.raises(DataError, match=r"died.*\n.*goes on from there"):
        store_source(opened, frame, tmp_path / "store", workers=2, listener=Killing())
    again = store_source(opened, frame, tmp_path / "store", workers=1)
    assert again.resumed_at >= 20
    assert content(again.store.path) == content(prepare(pictures, 16, tmp_path / "whole").store.path)


def test_a_script_without_a_main_guard_prepares_by_threads(pictures, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import iddpm.data.work\n"
        "from iddpm.data.preparing import prepare\n"
        "iddpm.data.work.MOST_THREADS, iddpm.data.work.MANY = 1, 0\n"
        f"print(len(prepare({str(pictures)!r}, 16, {str(tmp_path / 'store')!r}, workers=2).store))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == str(COUNT)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("IDDPM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_prepared_file_is_not_opened_again(pictures, tmp_path, cache, monkeypatch):
    archive = shutil.make_archive(str(tmp_path / "pictures"), "gztar", pictures)
    data = DataConfig(source=archive, size=16)
    first, _ = store_for(data)

    def refuse(*args, **kwargs):
        raise AssertionError("opened again")

    with monkeypatch.context() as patched:
        patched.setattr("iddpm.commands.store.open_source", refuse)
        patched.setattr("iddpm.commands.store.check_writable", refuse)  # a cache that is read-only serves all the same
        told = Lines()
        assert store_for(data, told)[0].path == first.path
        assert "prepared before" in told.text
    fill(pictures, first=1000)
    shutil.make_archive(str(tmp_path / "pictures"), "gztar", pictures)
    assert len(store_for(data)[0]) == 2 * COUNT


def test_forgotten_work_is_removed_from_the_cache(pictures, cache, monkeypatch):
    data = DataConfig(source=str(pictures), size=16)
    for name, age in (("old", 8 * 86400), ("new", 0)):
        left = cache / "stores" / f".pictures-16x16x3-{name}.preparing"
        left.mkdir(parents=True)
        (left / "progress.json").touch()
        at = (left / "progress.json").stat().st_mtime - age
        os.utime(left / "progress.json", (at, at))
    store_for(data)
    assert [path.name for path in (cache / "stores").glob(".*.preparing")] == [".pictures-16x16x3-new.preparing"]


def test_options_that_a_store_was_not_made_with_are_refused(tmp_path):
    store = prepare(fill(tmp_path / "wide", sides=(20, 30)), 16, tmp_path / "store", background="red").store.path
    data = DataConfig(source=str(store), size=16)
    assert store_for(replace(data, background="#ff0000"))[0].path == store
    for options in ({"labels": "none"}, {"background": "blue"}, {"crop": WholePicture()}):
        with pytest.raises(ConfigError, match=r"store|lost their ends"):
            store_for(replace(data, **options))


@pytest.mark.parametrize("field", ["size", "channels", "count", "per_shard"])
@pytest.mark.parametrize("value", [0, -1])
def test_numbers_in_a_header_are_above_0(pictures, tmp_path, field, value):
    header = prepare(pictures, 16, tmp_path / "store").store.path / "store.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | {field: value}))
    with pytest.raises(DataError, match="damaged"):
        open_store(tmp_path / "store")


def test_a_changed_split_is_found_on_opening(pictures, tmp_path):
    place = prepare(pictures, 16, tmp_path / "store").store.path
    held_out = np.load(place / "held_out.npy")
    np.save(place / "held_out.npy", (held_out + 1) % COUNT)
    with pytest.raises(DataError, match=r"held_out.npy is damaged"):
        open_store(place)


def test_a_store_that_does_not_fit_is_refused_before_any_work(pictures, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=COUNT * 3 * 16 * 16 - 1))
    told = Lines()
    with pytest.raises(OutputError, match=r"a store of 60 pictures needs 0\.0 GB.*\n.*--encode-above-gb 0"):
        prepare(pictures, 16, tmp_path / "store", listener=told)
    assert not told.progressed
    assert len(prepare(pictures, 16, tmp_path / "store", encode_above_bytes=0).store) == COUNT


def test_shards_without_permission_are_no_damage(pictures, tmp_path, monkeypatch):
    place = prepare(pictures, 16, tmp_path / "store").store.path
    opened = Path.open

    def refuse(path, *args, **kwargs):
        if path.name == "images-00000.bin":
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match="Permission denied\ncheck its permissions"):
        open_store(place)


def test_as_many_classes_as_pictures_are_remarked_on(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    for classes, remarks in ((40, ["40 classes for 40 pictures: are these labels?"]), (4, [])):
        np.savez(tmp_path / f"{classes}.npz", images, np.arange(40) % classes)
        notes = prepare(tmp_path / f"{classes}.npz", 8, tmp_path / f"store-{classes}").store.provenance.notes
        assert [note for note in notes if "are these labels" in note] == remarks


def test_a_class_without_a_training_picture_is_remarked_on(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x_train=images[:8], y_train=[0] * 8, x_test=images[8:], y_test=[0, 0, 0, 1])
    notes = prepare(tmp_path / "a.npz", 8, tmp_path / "store").store.provenance.notes
    assert notes == ("1 classes have no training picture: 1",)

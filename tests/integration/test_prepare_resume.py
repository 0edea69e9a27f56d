"""A preparation that is cut short, whatever way, and the same command again: the same store, bit for bit."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from iddpm.data.checking import check_content
from iddpm.data.preparing import prepare
from iddpm.runtime.errors import OutputError
from tiny import Lines

COUNT = 60


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "pictures"
    for number in range(COUNT):
        noise = np.random.default_rng(number).integers(0, 256, (20, 24, 3), dtype=np.uint8)
        (folder / str(number % 3)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise).save(folder / str(number % 3) / f"{number}.png")
    (folder / "0" / "0.png").write_bytes(b"not a picture")
    (folder / "notes.txt").write_text("about them")
    return folder


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Small shards, and a commit after every picture, without waiting for the disk each time."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    monkeypatch.setattr("iddpm.data.shards.SHARD_BYTES", 7 * 16 * 16 * 3)
    monkeypatch.setattr("iddpm.data.writing.COMMIT_BYTES", 1)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Stopping(Lines):
    """Stops the work after so many pictures."""

    def __init__(self, at: int, error: BaseException):
        super().__init__()
        self._at, self._error = at, error

    def progress(self, task, done, total, detail=""):
        super().progress(task, done, total, detail)
        if done == self._at:
            raise self._error


@pytest.mark.parametrize("limit", [0, 10**9])
@pytest.mark.parametrize("at", [1, 8, 15, 16, 40, COUNT])
def test_ctrl_c_and_the_same_again(pictures, tmp_path, limit, at):
    whole = prepare(pictures, 16, tmp_path / "whole", encode_above_bytes=limit)
    told = Stopping(at, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        prepare(pictures, 16, tmp_path / "store", encode_above_bytes=limit, listener=told)
    assert "the same command goes on" in told.text
    assert not (tmp_path / "store").exists()
    told = Lines()
    again = prepare(pictures, 16, tmp_path / "store", encode_above_bytes=limit, listener=told)
    assert again.resumed_at == (at if at > 1 else 0)  # what is left out is committed with the next picture
    assert told.progressed == [("preparing", done, COUNT) for done in range(again.resumed_at + 1, COUNT + 1)]
    assert content(tmp_path / "store") == content(whole.store.path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "whole"]


def test_a_changed_source_or_request_starts_anew(pictures, tmp_path):
    for options in ({"channels": 1}, {"labels": "none"}, {"size": 8}):
        with pytest.raises(KeyboardInterrupt):
            prepare(pictures, 16, tmp_path / "store", listener=Stopping(30, KeyboardInterrupt()))
        asked = {"size": 16} | options
        again = prepare(pictures, out=tmp_path / f"store-{options}", **asked).store.content_hash
        other = prepare(pictures, out=tmp_path / "store", **asked)
        assert other.resumed_at == 0
        assert other.store.content_hash == again
        for path in other.store.path.iterdir():
            path.unlink()
        other.store.path.rmdir()


@pytest.mark.parametrize("name", ["digests.part", "kept.part", "images-00001.bin", "progress.json"])
def test_what_was_left_is_used_only_where_it_is_whole(pictures, tmp_path, name):
    with pytest.raises(KeyboardInterrupt):
        prepare(pictures, 16, tmp_path / "store", listener=Stopping(30, KeyboardInterrupt()))
    left = tmp_path / ".store.preparing" / name
    left.write_bytes(left.read_bytes()[:5])
    result = prepare(pictures, 16, tmp_path / "store")
    assert result.resumed_at == 0
    check_content(result.store)
    assert content(result.store.path) == content(prepare(pictures, 16, tmp_path / "whole").store.path)


def test_a_full_disk_is_told_and_gone_on_with(pictures, tmp_path, monkeypatch):
    with pytest.raises(OutputError, match="No space left"):
        prepare(pictures, 16, tmp_path / "store", listener=Stopping(40, OSError(28, "No space left on device")))
    assert prepare(pictures, 16, tmp_path / "store").resumed_at == 40


SCRIPT = """
import os, sys
from pathlib import Path
import iddpm.data.shards, iddpm.data.writing
from iddpm.data.preparing import prepare
iddpm.data.shards.SHARD_BYTES, iddpm.data.writing.COMMIT_BYTES = 7 * 16 * 16 * 3, 1
os.fsync = lambda handle: None
class Slow:
    def say(self, text): pass
    def progress(self, task, done, total, detail=""):
        print(done, flush=True)
prepare(sys.argv[1], 16, Path(sys.argv[2]), encode_above_bytes=int(sys.argv[3]), listener=Slow())
"""


@pytest.mark.parametrize("limit", [0, 10**9])
def test_kill_9_and_the_same_again(pictures, tmp_path, limit):
    whole = prepare(pictures, 16, tmp_path / "whole", encode_above_bytes=limit)
    command = [sys.executable, "-c", SCRIPT, str(pictures), str(tmp_path / "store"), str(limit)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    draw = random.Random(limit)
    for _ in range(3):
        after = draw.randrange(1, COUNT // 3)
        child = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        for _ in range(after):
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    result = prepare(pictures, 16, tmp_path / "store", encode_above_bytes=limit)
    assert result.resumed_at > 0
    assert content(tmp_path / "store") == content(whole.store.path)


def test_two_processes_at_once_make_one_store(pictures, tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(pictures), str(tmp_path / "store"), "0"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) for _ in range(2)]
    counted = [child.communicate(timeout=60)[0].split() for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert sorted(map(len, counted)) == [0, COUNT]  # one did it all, the other waited
    assert content(tmp_path / "store") == content(
        prepare(pictures, 16, tmp_path / "whole", encode_above_bytes=0).store.path
    )

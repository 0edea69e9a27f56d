import errno
import json
import os
import shutil

import pytest

from iddpm.artifacts import journal as module
from iddpm.artifacts.journal import Journal, read_journal
from iddpm.runtime.errors import OutputError, RunError
from small_disk import small_disk


def test_events_come_back_as_written(tmp_path):
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.write("start", step=0, device="CPU é")
        journal.write("step", step=1, parts={"mse": 0.5})
        journal.sync()
    events = read_journal(tmp_path / "journal.jsonl")
    assert [event["event"] for event in events] == ["start", "step"]
    assert events[0]["device"] == "CPU é"
    assert events[1]["parts"] == {"mse": 0.5}
    assert events[0]["time"] <= events[1]["time"]


def test_events_are_there_before_the_journal_is_closed(tmp_path):
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.write("start")
        assert len(read_journal(tmp_path / "journal.jsonl")) == 1


def test_journal_is_appended_to(tmp_path):
    for name in ("first", "second"):
        with Journal(tmp_path / "journal.jsonl") as journal:
            journal.write(name)
    assert [event["event"] for event in read_journal(tmp_path / "journal.jsonl")] == ["first", "second"]


def test_missing_journal_has_no_events(tmp_path):
    assert read_journal(tmp_path / "journal.jsonl") == []


@pytest.mark.parametrize("keep", [1, 12, -2, -1])
def test_line_cut_by_a_crash_costs_only_itself(tmp_path, keep):
    file = tmp_path / "journal.jsonl"
    whole = b'{"event": "start"}\n'
    last = json.dumps({"event": "step", "note": "zürich"}, ensure_ascii=False).encode() + b"\n"
    file.write_bytes(whole + last[:keep])
    complete = keep == -1
    assert len(read_journal(file)) == 1 + complete
    with Journal(file) as journal:
        journal.write("resume")
        journal.write("step")
    names = [event["event"] for event in read_journal(file)]
    assert names == ["start", *(["step"] if complete else []), "resume", "step"]


def test_line_cut_inside_a_character_costs_only_itself(tmp_path):
    file = tmp_path / "journal.jsonl"
    file.write_bytes('{"event": "start"}\n{"event": "é'.encode()[:-1])
    assert [event["event"] for event in read_journal(file)] == ["start"]
    with Journal(file) as journal:
        journal.write("resume")
    assert [event["event"] for event in read_journal(file)] == ["start", "resume"]


def test_damaged_line_in_the_middle_is_reported_by_number(tmp_path):
    file = tmp_path / "journal.jsonl"
    file.write_text('{"event": "a"}\nrubbish\n{"event": "b"}\n{"event": "c"}\n')
    with pytest.raises(RunError, match="line 2"):
        read_journal(file)


def test_value_that_is_not_json_is_not_written(tmp_path):
    with Journal(tmp_path / "journal.jsonl") as journal:
        with pytest.raises(ValueError, match="JSON"):
            journal.write("step", loss=float("nan"))
        journal.write("step", loss=1.0)
    assert [event["loss"] for event in read_journal(tmp_path / "journal.jsonl")] == [1.0]


def test_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="journal"):
        Journal(tmp_path / "file" / "journal.jsonl")


def named(path):
    return [(event["event"], event.get("step")) for event in read_journal(path / "journal.jsonl")]


class Disk:
    """What `os.write` is while a disk has room for so many bytes; None: for all."""

    def __init__(self, room=0):
        self.room = room
        self._write = os.write

    def __call__(self, file, content):
        if self.room is None:
            return self._write(file, content)
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self._write(file, bytes(content[: self.room]))
        self.room -= taken
        return taken


@pytest.fixture
def disk(monkeypatch):
    made = Disk()
    monkeypatch.setattr(module.os, "write", made)
    return made


@pytest.mark.parametrize("room", [0, 1, 30, 70, 71, 72, 100])
def test_res_06_events_wait_for_room_and_are_written_whole_and_in_order(tmp_path, disk, room):
    disk.room = room
    with Journal(tmp_path / "journal.jsonl") as journal:
        for step in range(3):
            journal.write("step", step=step, note="é")
        assert "No space left on device" in journal.pending.what
        assert "\n" not in journal.pending.what
        disk.room = 1  # a little at a time
        journal.write("step", step=3)
        assert journal.pending is not None
        disk.room = None
        journal.write("step", step=4)
        assert journal.pending is None
    assert named(tmp_path) == [("step", step) for step in range(5)]
    assert "\n\n" not in (tmp_path / "journal.jsonl").read_text()


def test_events_that_wait_are_written_on_closing_or_syncing(tmp_path, disk):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.write("a")
    disk.room = None
    journal.sync()
    assert (named(tmp_path), journal.pending) == ([("a", None)], None)
    disk.room = 5
    journal.write("b")
    disk.room = None
    journal.close()
    assert named(tmp_path) == [("a", None), ("b", None)]


def test_events_that_can_never_be_written_are_an_output_error_on_closing(tmp_path, disk):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.write("a")
    journal.write("b")
    with pytest.raises(OutputError, match=r"last 2 events are not in the journal: No space left"):
        journal.close()


def leave(journal, error):
    with journal:
        journal.write("a")
        if error is not None:
            raise error


@pytest.mark.parametrize(("error", "told"), [(KeyError("the news"), KeyError), (None, OutputError)])
def test_what_went_wrong_in_the_block_is_not_hidden(tmp_path, disk, error, told):
    with pytest.raises(told):
        leave(Journal(tmp_path / "journal.jsonl"), error)


def test_line_begun_on_a_full_disk_and_then_killed_is_dropped_by_the_next(tmp_path, disk):
    Journal(tmp_path / "journal.jsonl")
    disk.room = 40
    Journal(tmp_path / "journal.jsonl").write("step", step=1, parts={"mse": 0.5}, lr=1e-4)
    disk.room = 0
    journal = Journal(tmp_path / "journal.jsonl")
    journal.write("resume")
    disk.room = None
    journal.close()
    assert named(tmp_path) == [("resume", None)]


@pytest.mark.parametrize("keep", range(1, 90, 4))
def test_line_cut_anywhere_inside_is_dropped_even_after_a_brace(tmp_path, keep):
    line = json.dumps(
        {"event": "step", "parts": {"mse": 0.5, "note": '}"{'}, "q": [1.0, {"a": 2}, 3.0], "lr": 1e-4, "x": 1}
    )
    assert keep < len(line)
    (tmp_path / "journal.jsonl").write_text(line[:keep])
    for name in ("resume", "end"):
        with Journal(tmp_path / "journal.jsonl") as journal:
            journal.write(name)
    assert [name for name, _ in named(tmp_path)] == ["resume", "end"]


def test_memory_is_bounded_steps_go_first_and_it_is_told(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(module, "MEMORY_BYTES", 2000)
    disk.room = 10  # of the first line: it must not be torn
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.write("start", step=0)
        for step in range(1, 101):
            journal.write("checkpoint" if step % 20 == 0 else "step", step=step)
            assert sum(len(line.content) for line in journal._lines) <= 2000
        disk.room = None
        journal.write("step", step=101)
        assert journal.pending is None
    told = named(tmp_path)
    assert told[0] == ("start", 0)
    assert [step for name, step in told if name == "checkpoint"] == [20, 40, 60, 80, 100]
    steps = [step for name, step in told if name == "step"]
    written = [step for step in range(1, 102) if step % 20]
    assert 10 < len(steps) < 60
    assert steps == written[-len(steps) :]
    gap = [event for event in read_journal(tmp_path / "journal.jsonl") if event["event"] == "journal_gap"]
    assert [event["dropped"] for event in gap] == [len(written) - len(steps)]


def test_other_events_go_where_there_are_no_steps_left(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(module, "MEMORY_BYTES", 300)
    with Journal(tmp_path / "journal.jsonl") as journal:
        for step in range(20):
            journal.write("preview", step=step)
        disk.room = None
    told = named(tmp_path)
    assert told[-1][0] == "journal_gap"
    assert [step for _, step in told[:-1]] == list(range(20 - len(told) + 1, 20))


def test_res_06_journal_on_a_full_disk_loses_nothing(tmp_path):
    with small_disk(tmp_path / "disk") as place:
        journal = Journal(place / "journal.jsonl")
        journal.write("start")
        with pytest.raises(OSError, match="No space"):
            (place / "other").write_bytes(bytes(4 * 1024**2))
        for step in range(200):
            journal.write("step", step=step)
        assert "No space left" in journal.pending.what
        (place / "other").unlink()
        journal.write("step", step=200)
        assert journal.pending is None
        journal.close()
        assert named(place) == [("start", None), *(("step", step) for step in range(201))]


def test_journal_that_somebody_removed_is_made_anew(tmp_path):
    (tmp_path / "run").mkdir()
    with Journal(tmp_path / "run" / "journal.jsonl") as journal:
        journal.write("a")
        shutil.rmtree(tmp_path / "run")
        journal.write("b")
        assert "No such file" in journal.pending.what
        (tmp_path / "run").mkdir()
        journal.write("c")
        assert journal.pending is None
    assert named(tmp_path / "run") == [("b", None), ("c", None)]


def test_error_of_a_sync_is_told_and_kills_nothing(tmp_path, monkeypatch):
    def broken(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.write("a")
        with monkeypatch.context() as patch:
            patch.setattr(module.os, "fsync", broken)
            journal.sync()
        assert "Input/output error" in journal.pending.what
        journal.sync()
        assert journal.pending is None


def test_zeros_that_a_power_cut_left_are_in_nobodys_way(tmp_path):
    path = tmp_path / "journal.jsonl"
    for name in ("first", "second", "third"):
        with Journal(path) as journal:
            journal.write(name)
        path.write_bytes(path.read_bytes() + bytes(200))
    assert [event["event"] for event in read_journal(path)] == ["first", "second", "third"]

import json

import pytest

from iddpm.artifacts.journal import Journal, read_journal
from iddpm.runtime.errors import OutputError, RunError


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

import shutil

import pytest
import torch

from iddpm.artifacts.checkpoint import save_checkpoint
from iddpm.artifacts.run_dir import locked, newest_whole, open_run_dir, start_run_dir
from iddpm.runtime.errors import OutputError, RunError


@pytest.fixture
def run(tmp_path):
    return start_run_dir(tmp_path / "run", {"recipe": "x"}, {"device": "CPU"})


def save(run, *steps):
    for step in steps:
        save_checkpoint(run.checkpoints, step, {"model": {"a": torch.ones(8)}}, {"step": step}, {})


def damage(run, step):
    file = run.checkpoints / f"{step:09d}" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:20])


def test_started_run_opens_with_what_was_written(run):
    opened = open_run_dir(run.path)
    assert opened.config == {"recipe": "x"}
    assert opened.provenance == {"device": "CPU"}
    assert opened.events() == []
    assert opened.path.is_absolute()


def test_paths_are_the_published_ones(run):
    assert run.samples("k") == run.path / "samples" / "k"
    assert run.evaluation("k") == run.path / "evaluations" / "k.json"
    assert run.journal_path == run.path / "journal.jsonl"
    assert run.checkpoints == run.path / "checkpoints"
    assert run.averages == run.path / "averages"


def test_what_is_no_run_is_named(tmp_path):
    with pytest.raises(RunError, match=r"missing does not exist"):
        open_run_dir(tmp_path / "missing")
    with pytest.raises(RunError, match=r"no config\.json"):
        open_run_dir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file is not a run directory"):
        open_run_dir(tmp_path / "file")


def test_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"):
        start_run_dir(tmp_path / "file" / "run", {}, {})


def test_damaged_config_is_named(run):
    (run.path / "config.json").write_text('{"recipe": ')
    with pytest.raises(RunError, match=r"config\.json cannot be read"):
        run.config  # noqa: B018


def test_newest_whole_checkpoint_is_taken_and_damaged_ones_are_told(run):
    save(run, 10, 20, 30)
    assert run.newest_checkpoint()[0].step == 30
    assert run.newest_checkpoint()[1] == []
    damage(run, 30)
    newest, complaints = run.newest_checkpoint()
    assert newest.step == 20
    assert len(complaints) == 1
    assert "000000030" in complaints[0]
    assert run.checkpoint_at(None)[0].step == 20


def test_step_asked_for_is_the_step_given(run):
    save(run, 10, 20)
    assert run.checkpoint_at(10)[0].step == 10
    with pytest.raises(RunError, match="step 15") as refused:
        run.checkpoint_at(15)
    assert "10, 20" in str(refused.value.fix)
    damage(run, 20)
    with pytest.raises(RunError, match="damaged"):
        run.checkpoint_at(20)


def test_run_without_a_whole_checkpoint_is_refused(run):
    with pytest.raises(RunError, match="no checkpoint yet"):
        run.checkpoint_at(None)
    save(run, 10)
    damage(run, 10)
    assert run.newest_checkpoint()[0] is None
    with pytest.raises(RunError, match="whole") as refused:
        run.checkpoint_at(None)
    assert "000000010" in refused.value.what


def test_res_01_checkpoint_renamed_is_the_newest_at_its_stored_step(run):
    save(run, 10, 20)
    (run.checkpoints / "000000020").rename(run.checkpoints / "best.pt")
    newest, complaints = run.newest_checkpoint()
    assert (newest.path.name, newest.step, complaints) == ("best.pt", 20, [])
    assert run.checkpoint_at(20)[0].path.name == "best.pt"


def test_res_01_of_a_step_held_twice_ours_is_taken_and_the_other_where_it_is_damaged(run):
    save(run, 20)
    shutil.copytree(run.checkpoints / "000000020", run.checkpoints / "best")
    assert run.newest_checkpoint()[0].path.name == "000000020"
    assert run.checkpoint_at(20)[0].path.name == "000000020"
    damage(run, 20)
    assert run.newest_checkpoint()[0].path.name == "best"
    assert run.checkpoint_at(20)[0].path.name == "best"


def test_folder_without_checkpoints_has_no_newest(tmp_path):
    assert newest_whole(tmp_path / "missing") == (None, [])


def test_what_a_kill_left_half_written_is_removed_by_the_next_to_train(run):
    save(run, 10)
    left = [run.checkpoints / ".000000020.ab.part", run.averages / ".000000020.cd.old"]
    for folder in left:
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_text("half")
    with locked(run.path):
        assert not any(folder.exists() for folder in left)
        assert run.newest_checkpoint()[0].step == 10
        with pytest.raises(OutputError, match="another process"), locked(run.path):
            pass

"""Whole runs on a disk that fills up, turns read-only or goes away."""

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from iddpm.artifacts.checkpoint import check_checkpoint, list_checkpoints
from iddpm.artifacts.journal import read_journal
from iddpm.artifacts.run_dir import RunDir
from iddpm.cli.main import main
from iddpm.commands.train import train
from iddpm.data.preparing import prepare
from iddpm.runtime.errors import DataError, OutputError
from small_disk import small_disk
from tiny import Lines, journalled, same, tensors_of, tiny_config


class At(Lines):
    """A listener that does something once training has come to a step."""

    def __init__(self, **actions: Callable[[], object]):
        super().__init__()
        self._actions = {int(name.removeprefix("step")): action for name, action in actions.items()}

    def progress(self, task, done, total, detail=""):
        super().progress(task, done, total, detail)
        if task == "training" and done in self._actions:
            self._actions.pop(done)()

    @property
    def warnings(self):
        return [line for line in self.lines if line.startswith("warning: ")]


@pytest.fixture
def config(small_digits):
    return tiny_config(small_digits, train_steps=8, checkpoint_every=2, keep_checkpoints=9)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """A save that failed is tried again at once."""
    monkeypatch.setattr("iddpm.training.keeping._RETRY_SECONDS", 0.0)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb") as file:
        try:
            while True:
                file.write(b"\0" * 65536)
        except OSError:
            pass


def whole(run: Path) -> list[int]:
    for checkpoint in list_checkpoints(run / "checkpoints"):
        check_checkpoint(checkpoint)
    assert not [path for path in (run / "checkpoints").glob(".*")]
    return [checkpoint.step for checkpoint in list_checkpoints(run / "checkpoints")]


def test_res_06_disk_that_stays_full_ends_in_one_line_and_the_same_command_goes_on(config, tmp_path):
    with small_disk(tmp_path / "disk", "64m") as disk:
        told = At(step3=lambda: fill(disk))
        with pytest.raises(OutputError, match="No space left on device") as ended:
            train(config, disk / "run", listener=told)
        assert ended.value.exit_status == 2
        assert len(str(ended.value).splitlines()) <= 2
        assert whole(disk / "run") == [2]
        assert told.progressed[-1] == ("training", 8, 8)
        checkpoints = [line for line in told.warnings if "no checkpoint of step 4" in line]
        assert len(checkpoints) == 1
        assert "that of step 2 stands; training goes on" in checkpoints[0]
        assert "trying again in a minute, 0 more times after that" in told.text
        assert sum("journal" in line for line in told.warnings) <= 1
        (disk / "filler").unlink()
        assert train(config, disk / "run").resumed_from == 2
        train(config, tmp_path / "undisturbed")
        assert same(tensors_of(disk / "run"), tensors_of(tmp_path / "undisturbed"))
        assert [entry["step"] for entry in journalled(disk / "run", "end")] == [8]
        read_journal(disk / "run" / "journal.jsonl")


def test_res_06_full_disk_is_two_lines_and_status_2_for_people(config, tmp_path, small_digits, capsys):
    with small_disk(tmp_path / "disk", "1m") as disk:
        words = ["train", "digits-8", "--train-steps", "2", "--train.batch-size", "8", "--net.multipliers", "1", "1"]
        assert main([*words, "--data", str(small_digits), "--out", str(disk / "run")]) == 2
        last = capsys.readouterr().err.splitlines()[-2:]
        assert last[0].startswith("iddpm train: cannot write")
        assert "No space left on device" in last[0]


def test_space_that_comes_free_is_used_and_the_run_ends_well(config, tmp_path):
    with small_disk(tmp_path / "disk", "64m") as disk:
        told = At(step3=lambda: fill(disk), step6=(disk / "filler").unlink)
        assert train(config, disk / "run", listener=told).step == 8
        steps = whole(disk / "run")
        assert steps[0] == 2
        assert steps[-1] == 8
        assert journalled(disk / "run", "checkpoint_failed")
        assert [entry["step"] for entry in journalled(disk / "run", "step")] == list(range(1, 9))
        train(config, tmp_path / "undisturbed")
        assert same(tensors_of(disk / "run"), tensors_of(tmp_path / "undisturbed"))


def test_res_06_folder_that_is_read_only_for_a_while_costs_warnings(config, tmp_path):
    checkpoints = tmp_path / "run" / "checkpoints"

    def turn_read_only() -> None:
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(checkpoints)], capture_output=True)
        if made.returncode:
            pytest.skip(f"nothing can be mounted here: {made.stderr.decode(errors='replace').strip()}")

    def turn_back() -> None:
        subprocess.run(["umount", "-l", str(checkpoints)], check=True)

    told = At(step3=turn_read_only, step7=turn_back)
    assert train(config, tmp_path / "run", listener=told).step == 8
    assert whole(tmp_path / "run") == [2, 8]
    assert any("Read-only file system" in line for line in told.warnings)


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_run_folder_that_is_gone_is_made_again_with_one_warning_and_can_be_gone_on_with(config, tmp_path, how):
    run = tmp_path / "run"
    told = At(step3=lambda: shutil.rmtree(run) if how == "removed" else run.rename(tmp_path / "elsewhere"))
    assert train(config, run, listener=told).step == 8
    assert whole(run) == [4, 6, 8]
    assert sum("moved or removed" in line for line in told.warnings) == 1
    assert sum("journal" in line for line in told.warnings) <= 1
    assert train(config, run).resumed_from == 8
    train(config, tmp_path / "undisturbed")
    assert same(tensors_of(run), tensors_of(tmp_path / "undisturbed"))
    assert (run / "config.json").read_bytes() == (tmp_path / "undisturbed" / "config.json").read_bytes()
    assert RunDir(run).provenance["store"] == config.data.source


def test_run_folder_whose_place_is_taken_ends_in_one_line(config, tmp_path):
    def take() -> None:
        shutil.rmtree(tmp_path / "run")
        (tmp_path / "run").write_text("a file")

    told = At(step3=take)
    with pytest.raises(OutputError, match="Not a directory"):
        train(config, tmp_path / "run", listener=told)
    assert told.progressed[-1] == ("training", 8, 8)
    assert not any("moved or removed" in line for line in told.warnings)


def encoded_store(small_digits: Path, tmp_path: Path) -> Path:
    import numpy as np

    from iddpm.data.store import open_store

    store = open_store(small_digits)
    images = np.repeat(store.read(np.arange(len(store))).transpose(0, 2, 3, 1), 3, axis=3)
    np.savez(tmp_path / "digits.npz", images, store.labels)
    return prepare(tmp_path / "digits.npz", 8, tmp_path / "encoded", channels=1, encode_above_bytes=0).store.path


@pytest.mark.parametrize("encoded", [False, True])
def test_store_that_is_removed_while_training(config, tmp_path, small_digits, encoded):
    """Its files are open: what was there can be read to the end."""
    place = encoded_store(small_digits, tmp_path) if encoded else shutil.copytree(small_digits, tmp_path / "raw")
    own = replace(config, data=replace(config.data, source=str(place)))
    told = At(step3=lambda: shutil.rmtree(place))
    assert train(own, tmp_path / "run", listener=told).step == 8


def test_pictures_that_cannot_be_read_any_more_end_training_with_a_checkpoint(config, tmp_path, monkeypatch):
    from iddpm.data.store import Store

    read, calls = Store.read, []

    def failing(self, index):
        calls.append(index)
        if len(calls) > 6:
            raise DataError(f"{self.path}: the pictures cannot be read any more", "bring the store back")
        return read(self, index)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "read", failing)
        with pytest.raises(DataError, match="cannot be read any more"):
            train(replace(config, train=replace(config.train, checkpoint_every=100)), tmp_path / "run")
    assert whole(tmp_path / "run") == [6]
    assert train(config, tmp_path / "run").resumed_from == 6

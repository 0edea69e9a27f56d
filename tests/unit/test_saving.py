import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest
import torch

from iddpm.artifacts import checkpoint as checkpoint_module
from iddpm.artifacts.checkpoint import check_checkpoint, list_checkpoints, load_state, load_tensors, save_checkpoint
from iddpm.runtime.errors import OutputError
from iddpm.training import saving
from iddpm.training.saving import Retention, Saver, retain
from small_disk import small_disk


def groups(value=1.0):
    return {
        "model": {"w": torch.full((4, 3), value), "conv": torch.full((2, 3, 2, 2), value), "n": torch.tensor(value)},
        "ema-0.9": {"w": torch.full((4, 3), value / 2)},
        "task": {},
    }


def begin(saver, folder, step, value=1.0, **state):
    held = groups(value)
    saver.begin({folder: tuple(held)}, step, held, {"step": step, **state})
    return held


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def gate(monkeypatch):
    """Writing waits until it is opened."""
    opened = threading.Event()
    write = checkpoint_module.write_tensors

    def waiting(*args):
        opened.wait(20)
        return write(*args)

    monkeypatch.setattr(checkpoint_module, "write_tensors", waiting)
    yield opened
    opened.set()


def test_what_is_written_is_what_save_checkpoint_writes(tmp_path):
    saver = Saver({"recipe": "x"}, {})
    begin(saver, tmp_path / "a", 20, note="é")
    (saved,) = saver.wait()
    save_checkpoint(tmp_path / "b", 20, groups(), {"step": 20, "note": "é"}, {"recipe": "x"})
    assert (saved.step, saved.path, saved.error) == (20, tmp_path / "a" / "000000020", None)
    assert names(saved.path) == names(tmp_path / "b" / "000000020")
    assert (saved.path / "state.json").read_bytes() == (tmp_path / "b" / "000000020" / "state.json").read_bytes()
    (checkpoint,) = list_checkpoints(tmp_path / "a")
    check_checkpoint(checkpoint)
    assert torch.equal(load_tensors(checkpoint, "model")["w"], torch.ones(4, 3))
    assert saved.bytes == sum(file.stat().st_size for file in saved.path.iterdir())


def test_state_may_change_while_it_is_written(tmp_path, gate):
    saver = Saver({}, {})
    held = begin(saver, tmp_path, 1, value=3.0)
    for tensor in held["model"].values():
        tensor.fill_(-1.0)
    assert saver.finished() == []
    assert list_checkpoints(tmp_path) == []
    gate.set()
    assert [saved.step for saved in saver.wait()] == [1]
    written = load_tensors(list_checkpoints(tmp_path)[0], "model")
    assert all(bool((tensor == 3.0).all()) for tensor in written.values())


def test_state_that_changes_after_begin_is_not_what_is_written(tmp_path, gate):
    saver = Saver({}, {})
    state = {"step": 1, "metrics": {"bits_per_dim": 3.0}}
    saver.begin({tmp_path: ()}, 1, {}, state)
    state["metrics"]["bits_per_dim"] = 9.0
    gate.set()
    saver.wait()
    assert load_state(list_checkpoints(tmp_path)[0])["metrics"] == {"bits_per_dim": 3.0}


def test_next_save_waits_for_the_one_before_and_uses_its_memory(tmp_path, gate):
    saver = Saver({}, {})
    begin(saver, tmp_path, 1)
    addresses = {key: tensor.data_ptr() for key, tensor in saver._copies.items()}
    threading.Timer(0.2, gate.set).start()
    begin(saver, tmp_path, 2, value=2.0)
    first, second = saver.wait()
    assert first.wait_seconds < 0.1 < second.wait_seconds
    assert {key: tensor.data_ptr() for key, tensor in saver._copies.items()} == addresses
    values = [float(load_tensors(checkpoint, "model")["n"]) for checkpoint in list_checkpoints(tmp_path)]
    assert values == [1.0, 2.0]


def test_copies_lie_as_the_tensors_do_and_follow_a_change_of_shape(tmp_path):
    saver = Saver({}, {})
    for step, side in ((1, 3), (2, 5)):
        image = torch.randn(2, 4, side, side).to(memory_format=torch.channels_last)
        saver.begin({tmp_path: ("model",)}, step, {"model": {"a": image, "e": torch.zeros(0)}}, {})
        assert saver._copies["model", "a"].stride() == image.stride()
        saver.wait()
        assert torch.equal(load_tensors(list_checkpoints(tmp_path)[-1], "model")["a"], image)


def test_tensors_that_want_a_gradient_are_copied_without_one(tmp_path):
    saver = Saver({}, {})
    layer = torch.nn.Linear(2, 2)
    saver.begin({tmp_path: ("model",)}, 1, {"model": dict(layer.named_parameters())}, {})
    assert saver.wait()[0].error is None
    assert not any(tensor.requires_grad for tensor in saver._copies.values())


def test_two_folders_are_written_from_one_copy(tmp_path):
    saver = Saver({}, {tmp_path / "a": Retention(last=1)})
    for step in (1, 2):
        saver.begin({tmp_path / "a": ("model", "ema-0.9"), tmp_path / "b": ("ema-0.9",)}, step, groups(), {})
        first, second = saver.wait()
        assert [first.path.parent.name, second.path.parent.name] == ["a", "b"]
        assert (second.copy_seconds, second.wait_seconds) == (0.0, 0.0)
    assert names(tmp_path / "a") == ["000000002"]
    assert names(tmp_path / "b") == ["000000001", "000000002"]
    assert names(tmp_path / "b" / "000000002") == ["ema-0.9.safetensors", "manifest.json", "state.json"]


def test_error_of_the_disk_is_kept_and_the_next_save_works(tmp_path, monkeypatch):
    saver = Saver({}, {})
    begin(saver, tmp_path, 1)
    saver._thread.join()
    with monkeypatch.context() as broken:

        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        broken.setattr(checkpoint_module, "write_tensors", full)
        begin(saver, tmp_path, 2)
        saver._thread.join()
    begin(saver, tmp_path, 3)
    one, two, three = saver.wait()
    assert (one.error, three.error) == (None, None)
    assert isinstance(two.error, OutputError)
    assert (two.step, two.bytes) == (2, 0)
    assert "000000002: No space left" in two.error.what
    assert "\n" not in two.error.what
    assert names(tmp_path) == ["000000001", "000000003"]
    assert saver.wait() == []


@pytest.mark.parametrize("ask", [Saver.wait, Saver.finished, lambda saver: begin(saver, saver.folder, 2)])
def test_defect_in_the_thread_comes_out_and_passes_for_no_checkpoint(tmp_path, monkeypatch, ask):
    def wrong(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(checkpoint_module, "write_tensors", wrong)
    saver = Saver({}, {})
    saver.folder = tmp_path
    begin(saver, tmp_path, 1)
    saver._thread.join()
    with pytest.raises(ZeroDivisionError):
        ask(saver)
    assert names(tmp_path) == []


def test_state_that_is_not_json_is_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        Saver({}, {}).begin({tmp_path: ()}, 1, {}, {"loss": float("nan")})


def test_thread_does_not_keep_a_process_alive(tmp_path, gate):
    saver = Saver({}, {})
    begin(saver, tmp_path, 1)
    assert saver._thread.daemon
    assert saver._thread.is_alive()


def test_res_06_full_disk_costs_one_checkpoint_and_nothing_else(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        saver = Saver({}, {disk: Retention(last=2)})
        state = {"model": {"w": torch.arange(150_000.0)}}  # 600 kB
        (disk / "other").write_bytes(bytes(300_000))
        for step in (1, 2, 3):
            saver.begin({disk: ("model",)}, step, state, {"step": step})
        *good, full = saver.wait()
        assert [saved.error for saved in good] == [None, None]
        assert "000000003: No space left on device" in full.error.what
        assert names(disk) == ["000000001", "000000002", "other"]
        for checkpoint in list_checkpoints(disk):
            check_checkpoint(checkpoint)
        (disk / "other").unlink()
        saver.begin({disk: ("model",)}, 4, state, {"step": 4})
        assert saver.wait()[0].error is None
        assert names(disk) == ["000000002", "000000004"]


def test_res_06_read_only_disk_is_told_and_keeps_what_is_there(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        saver = Saver({}, {disk: Retention(last=1)})
        begin(saver, disk, 1)
        saver.wait()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        begin(saver, disk, 2)
        (refused,) = saver.wait()
        assert "000000002: Read-only file system" in refused.error.what
        check_checkpoint(list_checkpoints(disk)[0])


def test_folder_that_vanishes_is_made_again(tmp_path):
    saver = Saver({}, {})
    begin(saver, tmp_path / "run" / "checkpoints", 1)
    saver.wait()
    shutil.rmtree(tmp_path / "run")
    begin(saver, tmp_path / "run" / "checkpoints", 2)
    assert saver.wait()[0].error is None


def test_res_06_process_that_leaves_while_saving_leaves_no_half_checkpoint(tmp_path):
    program = f"""
import torch
from pathlib import Path
from iddpm.artifacts import checkpoint
from iddpm.training.saving import Saver
saver, folder = Saver({{}}, {{}}), Path({str(tmp_path)!r})
def begin(step):
    saver.begin({{folder: ("model",)}}, step, {{"model": {{"w": torch.zeros(10)}}}}, {{}})
begin(1)
saver.wait()
import threading
write, reached = checkpoint.write_tensors, threading.Event()
def slow(*args):
    write(*args)
    reached.set()
    threading.Event().wait(60)
checkpoint.write_tensors = slow
begin(2)
reached.wait(30)
raise KeyboardInterrupt
"""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert done.returncode != 0
    assert "KeyboardInterrupt" in done.stderr
    assert time.perf_counter() - began < 40
    there = names(tmp_path)
    assert [name for name in there if not name.startswith(".")] == ["000000001"]
    assert [name[:11] for name in there if name.startswith(".")] == [".000000002."]


def save_all(folder, metrics):
    for step, bits_per_dim in metrics.items():
        state = {"step": step} | ({} if bits_per_dim is None else {"metrics": {"bits_per_dim": bits_per_dim}})
        save_checkpoint(folder, step, {}, state, {})


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (Retention(last=1), [60]),
        (Retention(last=3), [40, 50, 60]),
        (Retention(last=9), [10, 20, 30, 40, 50, 60]),
        (Retention(last=1, every=20), [20, 40, 60]),
        (Retention(last=1, best=1), [20, 60]),
        (Retention(last=1, best=2), [20, 40, 60]),
        (Retention(last=1, best=9), [10, 20, 40, 60]),
        (Retention(last=2, every=30, best=1), [20, 30, 50, 60]),
    ],
)
def test_each_reason_keeps_its_checkpoints(tmp_path, retention, kept):
    save_all(tmp_path, {10: 3.0, 20: 1.0, 30: None, 40: 2.0, 50: None, 60: None})
    retain(tmp_path, 60, retention)
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path)] == kept
    assert [name for name in names(tmp_path) if name.startswith(".")] == []


def test_of_equal_ones_the_newer_is_the_best(tmp_path):
    save_all(tmp_path, {10: 2.0, 20: 2.0, 30: 5.0})
    retain(tmp_path, 30, Retention(last=1, best=1))
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path)] == [20, 30]


def test_state_that_cannot_be_read_has_no_metric(tmp_path):
    save_all(tmp_path, {10: 1.0, 20: 2.0, 30: 5.0})
    (tmp_path / "000000010" / "state.json").write_text("{")
    (tmp_path / "000000020" / "state.json").write_text('{"metrics": null}')
    retain(tmp_path, 30, Retention(last=1, best=2))
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path)] == [30]


def test_newer_ones_and_those_of_another_name_are_never_touched(tmp_path):
    save_all(tmp_path, {10: None, 20: None, 30: None, 40: None})
    (tmp_path / "000000010").rename(tmp_path / "best")
    (tmp_path / "notes").mkdir()
    retain(tmp_path, 30, Retention(last=1))
    assert names(tmp_path) == ["000000030", "000000040", "best", "notes"]
    assert json.loads((tmp_path / "best" / "state.json").read_text()) == {"step": 10}


def test_failed_save_removes_nothing(tmp_path, monkeypatch):
    save_all(tmp_path, {1: None, 2: None})

    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(checkpoint_module, "write_tensors", full)
    saver = Saver({}, {tmp_path: Retention(last=1)})
    begin(saver, tmp_path, 3)
    assert saver.wait()[0].error is not None
    assert names(tmp_path) == ["000000001", "000000002"]


def test_one_that_cannot_be_removed_harms_nothing(tmp_path, monkeypatch):
    def busy(path):
        raise OutputError(f"cannot write {path}: busy", "free it")

    monkeypatch.setattr(saving, "remove_folder", busy)
    saver = Saver({}, {tmp_path: Retention(last=1)})
    for step in (1, 2):
        begin(saver, tmp_path, step)
    assert [saved.error for saved in saver.wait()] == [None, None]
    assert names(tmp_path) == ["000000001", "000000002"]


@pytest.mark.gpu
def test_state_on_a_gpu_is_copied_through_pinned_memory(tmp_path):
    saver = Saver({}, {})
    held = {"model": {"w": torch.randn(1000, 1000, device="cuda"), "step": torch.tensor(3.0)}}
    expected = held["model"]["w"].cpu()
    for step in (1, 2):
        saver.begin({tmp_path: ("model",)}, step, held, {})
        held["model"]["w"].mul_(2.0)
        saver.wait()
        written = load_tensors(list_checkpoints(tmp_path)[-1], "model")
        assert torch.equal(written["w"], expected)
        assert written["step"] == 3.0
        expected = held["model"]["w"].cpu()
    assert saver._copies["model", "w"].is_pinned()
    assert not saver._copies["model", "step"].is_pinned()


def test_what_a_run_goes_back_to_is_kept_however_many_bad_ones_follow(tmp_path):
    for step, bad in ((1, 0), (2, 0), (3, 4), (4, 5)):
        save_checkpoint(tmp_path, step, {}, {"guard": {"in_a_row": bad}}, {})
    retain(tmp_path, 4, Retention(last=1))
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path)] == [2, 4]


def test_best_are_those_measured_as_the_newest_was(tmp_path):
    measured = ((1, 2.0, 10), (2, 1.0, 10), (3, 7.0, 50), (4, 8.0, 50))
    for step, value, steps in measured:
        save_checkpoint(tmp_path, step, {}, {"metrics": {"bits_per_dim": value, "num_steps": steps}}, {})
    save_checkpoint(tmp_path, 5, {}, {}, {})
    retain(tmp_path, 5, Retention(last=1, best=1))
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path)] == [3, 5]

import errno
import hashlib
import json
import os
import re
import shutil

import pytest
import torch
from safetensors import safe_open

from iddpm.artifacts.checkpoint import (
    Checkpoint,
    check_checkpoint,
    list_checkpoints,
    load_state,
    load_tensors,
    save_checkpoint,
)
from iddpm.runtime.errors import OutputError, RunError


def save(folder, step=20, value=1.0):
    groups = {"model": {"a": torch.full((3, 2), value), "b": torch.arange(4.0)[::2]}, "task": {}}
    return save_checkpoint(folder, step, groups, {"step": step, "note": "é"}, {"recipe": "x"})


def test_everything_comes_back(tmp_path):
    saved = save(tmp_path)
    assert (saved.path.name, saved.step) == ("000000020", 20)
    check_checkpoint(saved)
    tensors = load_tensors(saved, "model")
    assert torch.equal(tensors["a"], torch.ones(3, 2))
    assert torch.equal(tensors["b"], torch.tensor([0.0, 2.0]))
    assert load_tensors(saved, "task") == {}
    assert load_state(saved) == {"step": 20, "note": "é"}


def test_tensor_files_carry_the_config(tmp_path):
    saved = save(tmp_path)
    with safe_open(saved.path / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["config"]) == {"recipe": "x"}
        assert file.metadata()["step"] == "20"


def test_checkpoints_are_listed_oldest_first_and_nothing_else_is(tmp_path):
    for step in (100, 5, 1_000_000_000):
        save(tmp_path, step)
    (tmp_path / ".000000200.x.part").mkdir()
    (tmp_path / "mine").mkdir()
    save(tmp_path, 7).path.rename(tmp_path / ".hidden")
    (tmp_path / "000000300").write_text("a file")
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path)] == [5, 100, 1_000_000_000]
    assert list_checkpoints(tmp_path / "missing") == []


def test_res_01_checkpoint_under_another_name_is_found_at_its_stored_step(tmp_path):
    save(tmp_path, 40)
    save(tmp_path, 20).path.rename(tmp_path / "best.pt")
    found = list_checkpoints(tmp_path)
    assert [(checkpoint.path.name, checkpoint.step) for checkpoint in found] == [("best.pt", 20), ("000000040", 40)]
    assert [checkpoint.is_named_by_us for checkpoint in found] == [False, True]
    check_checkpoint(found[0])
    assert load_state(found[0])["step"] == 20


def test_res_01_of_two_of_one_step_ours_comes_last_that_is_first_asked(tmp_path):
    shutil.copytree(save(tmp_path, 20).path, tmp_path / "best")
    assert [checkpoint.path.name for checkpoint in list_checkpoints(tmp_path)] == ["best", "000000020"]


@pytest.mark.parametrize("manifest", ["", "[]", '{"schema": 1}', '{"step": "20"}', '{"step": -1}'])
def test_res_01_folder_without_a_manifest_that_says_the_step_is_no_checkpoint(tmp_path, manifest):
    save(tmp_path, 20).path.rename(tmp_path / "best")
    (tmp_path / "best" / "manifest.json").write_text(manifest)
    assert list_checkpoints(tmp_path) == []


def test_res_01_name_of_another_step_is_told(tmp_path):
    save(tmp_path, 20).path.rename(tmp_path / "000000030")
    with pytest.raises(RunError, match=r"000000030 is of step 20, not of step 30"):
        check_checkpoint(list_checkpoints(tmp_path)[0])


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_res_10_names_are_bare_in_every_group(tmp_path, prefix):
    groups = {"model": {f"{prefix}a.weight": torch.ones(2)}, "optimizer": {f"{prefix}a.weight/exp_avg": torch.ones(2)}}
    saved = save_checkpoint(tmp_path, 1, groups, {}, {})
    assert list(load_tensors(saved, "model")) == ["a.weight"]
    assert list(load_tensors(saved, "optimizer")) == ["a.weight/exp_avg"]


def test_manifest_holds_size_and_hash_of_every_file(tmp_path):
    saved = save(tmp_path)
    files = json.loads((saved.path / "manifest.json").read_text())["files"]
    there = {file.name: file.read_bytes() for file in saved.path.iterdir() if file.name != "manifest.json"}
    assert files == {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()} for name, content in there.items()
    }


def test_same_step_again_replaces_the_whole_checkpoint(tmp_path):
    save(tmp_path)
    saved = save(tmp_path, value=2.0)
    check_checkpoint(saved)
    assert float(load_tensors(saved, "model")["a"][0, 0]) == 2.0
    assert [path.name for path in tmp_path.iterdir()] == ["000000020"]


def test_res_06_failed_save_leaves_nothing_under_the_name(tmp_path, monkeypatch):
    save(tmp_path, 10)

    def broken(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("iddpm.artifacts.checkpoint.write_tensors", broken)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 20)
    assert [path.name for path in tmp_path.iterdir()] == ["000000010"]


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flip, lambda file: file.unlink(), lambda file: file.write_bytes(b"")])
@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "manifest.json"])
def test_damage_is_found_and_the_file_named(tmp_path, name, damage):
    saved = save(tmp_path)
    damage(saved.path / name)
    with pytest.raises(RunError, match=name) as found:
        check_checkpoint(saved)
    assert "damaged" in found.value.what or "cannot be read" in found.value.what
    assert found.value.fix


def test_newer_format_is_refused(tmp_path):
    saved = save(tmp_path)
    manifest = json.loads((saved.path / "manifest.json").read_text())
    (saved.path / "manifest.json").write_text(json.dumps(manifest | {"schema": 99}))
    with pytest.raises(RunError, match="format 99"):
        check_checkpoint(saved)


def test_group_that_is_not_there_names_those_that_are(tmp_path):
    with pytest.raises(RunError, match=r"no 'ema-0\.5' weights") as refused:
        load_tensors(save(tmp_path), "ema-0.5")
    assert "model, task" in str(refused.value.fix)


def test_damaged_group_is_reported_on_loading(tmp_path):
    saved = save(tmp_path)
    cut(saved.path / "model.safetensors")
    with pytest.raises(RunError, match=r"model\.safetensors is damaged"):
        load_tensors(saved, "model")


def test_place_that_cannot_be_written_is_an_output_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"):
        save(tmp_path / "file" / "checkpoints")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.ENOENT])
def test_disk_that_fails_is_an_output_error_of_one_line_and_nothing_is_left(tmp_path, monkeypatch, number):
    save(tmp_path, 10)

    def failing(file, *_):
        file.write_bytes(b"half")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("iddpm.artifacts.checkpoint.write_tensors", failing)
    with pytest.raises(OutputError, match=re.escape(f"{tmp_path / '000000020'}: {os.strerror(number)}")) as refused:
        save(tmp_path)
    assert "\n" not in refused.value.what
    assert [path.name for path in tmp_path.iterdir()] == ["000000010"]


def test_checkpoint_of_a_missing_folder_is_a_run_error(tmp_path):
    with pytest.raises(RunError, match=r"manifest\.json"):
        check_checkpoint(Checkpoint(tmp_path / "000000001", 1))

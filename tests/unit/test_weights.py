import ast
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import iddpm
from iddpm.artifacts.checkpoint import save_checkpoint
from iddpm.artifacts.run_dir import start_run_dir
from iddpm.artifacts.weights import read_weights
from iddpm.runtime.errors import RunError

CONFIG = {"recipe": "x", "train": {"ema": [0.9999, 0.99]}}


def groups(value):
    return {
        "model": {"a": torch.full((2,), value)},
        "ema-0.99": {"a": torch.full((2,), value + 0.25)},
        "ema-0.9999": {"a": torch.full((2,), value + 0.5)},
        "power-0.1": {"a": torch.full((2,), value + 0.75)},
        "optimizer": {"a/exp_avg": torch.zeros(2)},
        "task": {},
    }


@pytest.fixture
def run(tmp_path):
    made = start_run_dir(tmp_path / "run", CONFIG, {})
    for step in (10, 20):
        save_checkpoint(made.checkpoints, step, groups(float(step)), {"step": step}, CONFIG)
    return made


def value(weights):
    return float(weights.tensors["a"][0])


@pytest.mark.parametrize(
    ("asked", "group", "expected"),
    [
        ("ema", "ema-0.9999", 20.5),
        ("ema-0.99", "ema-0.99", 20.25),
        ("model", "model", 20.0),
        ("power-0.1", "power-0.1", 20.75),
    ],
)
def test_run_gives_its_newest_checkpoint(run, asked, group, expected):
    weights = read_weights(run.path, asked)
    assert value(weights) == expected
    assert weights.origin == str(run.checkpoints / "000000020" / f"{group}.safetensors")
    assert (weights.step, weights.config) == (20, CONFIG)


def test_damaged_newest_is_passed_over(run):
    (run.checkpoints / "000000020" / "state.json").unlink()
    assert (value(read_weights(run.path)), read_weights(run.path).step) == (10.5, 10)


def test_checkpoint_folder_a_folder_of_them_and_a_tensor_file_are_read(run, tmp_path):
    assert value(read_weights(run.checkpoints / "000000010")) == 10.5
    assert value(read_weights(run.checkpoints)) == 20.5
    file = read_weights(run.checkpoints / "000000010" / "ema-0.99.safetensors")
    assert (value(file), file.step, file.config) == (10.25, 10, CONFIG)


def test_res_01_renamed_checkpoint_is_read_at_its_stored_step(run, tmp_path):
    shutil.copytree(run.checkpoints / "000000010", tmp_path / "best.pt")
    assert (value(read_weights(tmp_path / "best.pt")), read_weights(tmp_path / "best.pt").step) == (10.5, 10)


def test_the_only_average_there_is_is_the_average(tmp_path):
    save_checkpoint(tmp_path, 5, {"model": {}, "ema-0.5": {"a": torch.ones(2)}}, {}, {})
    assert value(read_weights(tmp_path / "000000005")) == 1.0


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.bin", "w.ckpt"])
@pytest.mark.parametrize("new_format", [True, False])
def test_torch_file_is_read_bare_or_under_its_usual_entries(tmp_path, name, new_format):
    state = {"a": torch.ones(2)}
    for content, entry in ((state, ""), ({"state_dict": state, "step": 7}, "/state_dict"), ({"ema": state}, "/ema")):
        torch.save(content, tmp_path / name, _use_new_zipfile_serialization=new_format)
        weights = read_weights(tmp_path / name)
        assert (value(weights), weights.origin) == (1.0, f"{tmp_path / name}{entry}")
        assert (weights.step, weights.config) == (content.get("step"), None)


def test_kind_asked_for_is_taken_where_a_torch_file_holds_several(tmp_path):
    content = {"model": {"a": torch.zeros(1)}, "ema": {"a": torch.ones(1)}, "optimizer": {"state": {}}}
    torch.save(content, tmp_path / "w.pt")
    assert value(read_weights(tmp_path / "w.pt", "ema")) == 1.0
    assert value(read_weights(tmp_path / "w.pt", "model")) == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_prc_04_weights_in_half_are_float32_once_read(tmp_path, dtype, name):
    state = {"a": torch.tensor([1.5, -2.0], dtype=dtype), "n": torch.tensor([3])}
    torch.save(state, tmp_path / name) if name == "w.pt" else save_file(state, tmp_path / name)
    weights = read_weights(tmp_path / name)
    assert weights.tensors["a"].dtype == torch.float32
    assert weights.tensors["a"].tolist() == [1.5, -2.0]
    assert weights.tensors["n"].dtype == torch.int64


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_res_10_names_are_bare_wherever_they_come_from(tmp_path, prefix):
    state = {f"{prefix}out.weight": torch.ones(2)}
    torch.save(state, tmp_path / "w.pt")
    save_file(state, tmp_path / "w.safetensors")
    for name in ("w.pt", "w.safetensors"):
        assert list(read_weights(tmp_path / name).tensors) == ["out.weight"]


def test_res_09_tensors_saved_on_a_gpu_are_read_on_the_cpu(tmp_path, monkeypatch):
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        torch.save({"a": torch.ones(2)}, tmp_path / "w.pt")
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.load(tmp_path / "w.pt", weights_only=True)
    assert read_weights(tmp_path / "w.pt").tensors["a"].device.type == "cpu"


def test_res_09_every_load_names_the_cpu():
    """The name of the device stands at every call that reads tensors; `torch.load` never runs code."""
    asked = {"load_file": "device", "safe_open": "device", "torch.load": "map_location"}
    calls = []
    for file in Path(iddpm.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in asked:
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                calls.append((name, given.get(asked[name]), given.get("weights_only")))
    assert {name for name, _, _ in calls} == set(asked)
    assert all(device == "'cpu'" for _, device, _ in calls), calls
    assert all(weights_only == "True" for name, _, weights_only in calls if name == "torch.load")


class Command:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.mark.parametrize("new_format", [True, False])
def test_code_in_a_file_is_refused_and_not_run(tmp_path, new_format):
    marker = str(tmp_path / "ran")
    torch.save({"a": Command(marker)}, tmp_path / "w.pt", _use_new_zipfile_serialization=new_format)
    with pytest.raises(RunError, match=r"pickled objects \(posix\.mkdir\)") as refused:
        read_weights(tmp_path / "w.pt")
    assert "\n" not in refused.value.what
    assert not os.path.exists(marker)
    torch.save(torch.nn.Linear(2, 2), tmp_path / "w.pt", _use_new_zipfile_serialization=new_format)
    with pytest.raises(RunError, match="pickled objects"):
        read_weights(tmp_path / "w.pt")


def make_damaged(folder, kind):
    torch.save({"a": torch.ones(2)}, folder / "w.pt", _use_new_zipfile_serialization=kind != "old")
    save_file({"a": torch.ones(50)}, folder / "w.safetensors")
    file = folder / ("w.safetensors" if kind == "safetensors" else "w.pt")
    content = {"empty": b"", "text": b"hello world"}.get(kind, file.read_bytes()[:-100])
    file.write_bytes(content)
    return file


@pytest.mark.parametrize("kind", ["new", "old", "safetensors", "empty", "text"])
def test_damaged_file_is_one_line_that_names_it(tmp_path, kind):
    file = make_damaged(tmp_path, kind)
    with pytest.raises(RunError, match=f"{file} is damaged") as refused:
        read_weights(file)
    assert "\n" not in refused.value.what
    assert "\n" not in refused.value.fix


def test_what_holds_no_weights_is_told_apart(run, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("")
    torch.save({"epoch": 3, "lr": 0.1}, tmp_path / "none.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({}, tmp_path / "nothing.pt")
    new = start_run_dir(tmp_path / "new", CONFIG, {})
    for path, told in (
        (tmp_path / "missing", "missing does not exist"),
        (tmp_path / "empty", "empty holds no weights"),
        (tmp_path / "notes.txt", "no file of weights that is known by its name"),
        (tmp_path / "none.pt", "holds no state dict; it holds: epoch, lr"),
        (tmp_path / "list.pt", "holds no state dict; it holds: list"),
        (tmp_path / "nothing.pt", "holds no state dict; it holds: nothing"),
        (new.path, "no checkpoint yet"),
    ):
        with pytest.raises(RunError, match=told) as refused:
            read_weights(path)
        assert "\n" not in refused.value.what
    with pytest.raises(RunError, match=r"no 'ema-0\.5' weights") as refused:
        read_weights(run.path, "ema-0.5")
    assert refused.value.fix == "it holds: ema-0.99, ema-0.9999, model, power-0.1"
    with pytest.raises(RunError, match="no 'optimizer' weights"):
        read_weights(run.path, "optimizer")


def test_damaged_checkpoint_asked_for_is_named(run):
    file = run.checkpoints / "000000010" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RunError, match=r"000000010/model\.safetensors is damaged"):
        read_weights(run.checkpoints / "000000010")
    for step in (10, 20):
        (run.checkpoints / f"{step:09d}" / "state.json").unlink()
    with pytest.raises(RunError, match=r"no checkpoint in .* is whole"):
        read_weights(run.checkpoints)


def test_metadata_of_others_is_no_step(tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "w.safetensors", metadata={"step": "7", "format": "pt"})
    assert (read_weights(tmp_path / "w.safetensors").step, read_weights(tmp_path / "w.safetensors").config) == (
        None,
        None,
    )
    save_file({"a": torch.ones(1)}, tmp_path / "w.safetensors", metadata={"step": "x", "config": json.dumps({})})
    assert read_weights(tmp_path / "w.safetensors").step is None

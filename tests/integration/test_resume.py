import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open

from iddpm.artifacts.checkpoint import list_checkpoints, load_state, load_tensors, save_checkpoint
from iddpm.artifacts.run_dir import locked, open_run_dir
from iddpm.commands.draw import SampleRequest
from iddpm.commands.sample import sample
from iddpm.commands.train import train
from iddpm.data.preparing import prepare
from iddpm.diffusion.samplers import Ancestral
from iddpm.diffusion.spacing import EvenSteps
from iddpm.experiment.identity import config_to_json
from iddpm.experiment.open_run import open_run
from iddpm.experiment.recipes import recipe
from iddpm.runtime.errors import ConfigError, DataError, InputError, OutputError, RunError
from iddpm.training.settings import AdamW
from tiny import Interrupting, Lines, cut, journalled, same, tensors_of, tiny_config


@pytest.fixture(scope="module")
def config(small_digits):
    return tiny_config(small_digits, train_steps=4, checkpoint_every=2, keep_checkpoints=5)


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """The uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    train(config, out)
    return out


@pytest.fixture
def run(whole, tmp_path):
    """A copy of it to harm."""
    return shutil.copytree(whole, tmp_path / "run")


def with_train(config, **settings):
    return replace(config, train=replace(config.train, **settings))


def content(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 5},
        {"steps": 5, "micro_batch_size": 3},
        {"log_every": 3, "checkpoint_every": 3, "keep_checkpoints": 1, "channels_last": "yes"},
    ],
)
def test_what_may_change_is_journalled_and_the_config_stays(config, run, changes):
    before = (run / "config.json").read_bytes()
    result = train(with_train(config, **changes), run)
    assert result.resumed_from == 4
    assert result.step == changes.get("steps", 4)
    told = journalled(run, "resume")[0]["changes"]
    assert told == {f"train.{name}": [getattr(config.train, name), value] for name, value in changes.items()}
    assert (run / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    ("path", "make"),
    [
        ("train.lr", lambda c: with_train(c, lr=2e-3)),
        ("train.batch_size", lambda c: with_train(c, batch_size=16)),
        ("train.seed", lambda c: with_train(c, seed=1)),
        ("train.ema", lambda c: with_train(c, ema=(0.9,))),
        ("net.dropout", lambda c: replace(c, net=replace(c.net, dropout=0.1))),
        (
            "diffusion.schedule.timesteps",
            lambda c: tiny_config(c.data.source, timesteps=30, train_steps=4, checkpoint_every=2),
        ),
        ("optimizer.kind", lambda c: replace(c, optimizer=AdamW())),
    ],
)
def test_what_may_not_change_is_refused_by_path_and_nothing_is_touched(config, run, path, make):
    before = content(run)
    with pytest.raises(ConfigError, match=path) as refused:
        train(make(config), run)
    assert "\n" not in refused.value.what
    assert content(run) == before


def other_store(folder, size=8):
    images = np.random.default_rng(1).integers(0, 256, (40, size, size, 3), dtype=np.uint8)
    np.savez(folder / "other.npz", images, np.arange(40) % 10)
    return prepare(folder / "other.npz", size, folder / "other", channels=1).store.path


def test_store_of_another_content_is_refused(config, run, tmp_path, small_digits):
    store = shutil.copytree(small_digits, tmp_path / "store")
    own = replace(config, data=replace(config.data, source=str(store)))
    train(own, tmp_path / "own")
    shutil.rmtree(store)
    other_store(tmp_path).rename(store)
    before = content(tmp_path / "own")
    with pytest.raises(ConfigError, match=r"data\.content_hash"):
        train(with_train(own, steps=8), tmp_path / "own")
    assert content(tmp_path / "own") == before


def test_another_size_is_refused(config, run, tmp_path):
    bigger = replace(config, data=replace(config.data, source=str(other_store(tmp_path, 16)), size=16))
    with pytest.raises(ConfigError, match=r"data\.size: 8 -> 16"):
        train(bigger, run)
    with pytest.raises(DataError, match="size 8"):
        train(replace(config, data=replace(config.data, size=16)), run)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "ema-0.99.safetensors", "state.json", "manifest.json"]
)
def test_checkpoint_cut_in_half_is_told_and_the_one_before_used(config, whole, run, name):
    cut(run / "checkpoints" / "000000004" / name)
    told = Lines()
    result = train(config, run, listener=told)
    assert (result.resumed_from, result.step) == (2, 4)
    warnings = [line for line in told.lines if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert "000000004" in warnings[0]
    assert "step 2" in warnings[0]
    assert same(tensors_of(run, 4), tensors_of(whole, 4))


def test_damaged_checkpoint_does_not_push_out_a_good_one(config, run):
    cut(run / "checkpoints" / "000000004" / "model.safetensors")
    train(with_train(config, steps=3, keep_checkpoints=1), run)
    assert 3 in [checkpoint.step for checkpoint in list_checkpoints(run / "checkpoints")]
    assert train(config, run).resumed_from == 3


def test_run_whose_checkpoints_are_all_damaged_is_refused_and_left_as_it_is(config, run):
    for checkpoint in list_checkpoints(run / "checkpoints"):
        cut(checkpoint.path / "model.safetensors")
    before = content(run)
    with pytest.raises(RunError, match=r"no checkpoint of .* is whole"):
        train(config, run)
    assert content(run) == before


def test_run_stopped_before_its_first_checkpoint_starts_anew(config, whole, run):
    shutil.rmtree(run / "checkpoints")
    journal = (run / "journal.jsonl").read_text().splitlines(keepends=True)
    (run / "journal.jsonl").write_text("".join(line for line in journal if '"checkpoint"' not in line))
    result = train(config, run)
    assert (result.resumed_from, result.steps_done) == (None, 4)
    assert same(tensors_of(run, 4), tensors_of(whole, 4))


def test_res_01_run_whose_checkpoints_are_gone_does_not_start_anew_in_silence(config, run):
    shutil.rmtree(run / "checkpoints")
    before = content(run)
    with pytest.raises(RunError, match=r"has written checkpoints \(the last of step 4\)"):
        train(config, run)
    assert content(run) == before


def test_res_01_renamed_checkpoint_resumes_at_its_stored_step_and_stays(config, whole, run):
    shutil.rmtree(run / "checkpoints" / "000000004")
    (run / "checkpoints" / "000000002").rename(run / "checkpoints" / "best.pt")
    told = Lines()
    result = train(with_train(config, keep_checkpoints=1), run, listener=told)
    assert (result.resumed_from, result.steps_done) == (2, 2)
    assert f"resumed step 2 from {run / 'checkpoints' / 'best.pt'}" in told.lines
    assert same(tensors_of(run, 4), tensors_of(whole, 4))
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["000000004", "best.pt"]


def rewritten(run, step, groups):
    """The same checkpoint with other tensors, by group."""
    (checkpoint,) = [one for one in list_checkpoints(run / "checkpoints") if one.step == step]
    state, config = load_state(checkpoint), json.loads((run / "config.json").read_text())
    save_checkpoint(run / "checkpoints", step, groups, state, config)


def groups_of(run, step):
    (checkpoint,) = [one for one in list_checkpoints(run / "checkpoints") if one.step == step]
    return {file.stem: load_tensors(checkpoint, file.stem) for file in checkpoint.path.glob("*.safetensors")}


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_res_10_wrapped_names_load_strictly_sample_the_same_and_resume(config, whole, run, prefix):
    groups = groups_of(run, 4)
    rewritten(run, 4, {name: {prefix + key: t for key, t in tensors.items()} for name, tensors in groups.items()})
    with safe_open(run / "checkpoints" / "000000004" / "model.safetensors", "pt", device="cpu") as file:
        assert all(key.startswith(prefix) for key in file.keys())  # noqa: SIM118
    request = SampleRequest(num=2, steps=EvenSteps(4), sampler=Ancestral(), batch_size=2, seed=0)
    one, other = (sample(path, request, None, Lines()) for path in (whole, run))
    with np.load(f"{one['path']}/samples.npz") as a, np.load(f"{other['path']}/samples.npz") as b:
        assert np.array_equal(a["arr_0"], b["arr_0"])
    longer = with_train(config, steps=5)
    train(longer, run)
    train(longer, shutil.copytree(whole, run.parent / "whole"))
    assert same(tensors_of(run, 5), tensors_of(run.parent / "whole", 5))


@pytest.mark.parametrize("group", ["model", "ema-0.99"])
def test_res_10_a_name_that_is_missing_is_named(config, run, group):
    groups = groups_of(run, 4)
    del groups[group]["out.2.bias"]
    rewritten(run, 4, groups)
    with pytest.raises(RunError, match=r"out\.2\.bias"):
        open_run(run, device=torch.device("cpu"), weights=group)
    with pytest.raises(RunError, match=r"out\.2\.bias"):
        train(with_train(config, steps=5), run)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_prc_04_half_checkpoint_resumes_with_master_weights_in_float32(config, run, dtype):
    halves = {
        name: {key: t.to(dtype) if t.ndim else t for key, t in tensors.items()}
        for name, tensors in groups_of(run, 4).items()
    }
    rewritten(run, 4, halves)
    result = train(with_train(config, steps=5, precision="bf16"), run)
    assert (result.resumed_from, result.step) == (4, 5)
    after = tensors_of(run, 5)
    assert {tensor.dtype for tensor in after.values()} == {torch.float32}
    assert not torch.equal(after["model/out.2.weight"], halves["model"]["out.2.weight"].float())
    assert {p.dtype for p in open_run(run, device=torch.device("cpu")).denoiser.net.net.parameters()} == {torch.float32}


def test_res_09_checkpoint_is_opened_where_there_is_no_gpu(run):
    program = f"""
import torch
from pathlib import Path
from iddpm.experiment.open_run import open_run
assert not torch.cuda.is_available()
opened = open_run(Path({str(run)!r}), device=torch.device("cpu"))
print(opened.step, {{p.device.type for p in opened.denoiser.net.net.parameters()}})
"""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, "4 {'cpu'}\n"), done.stderr


def test_damaged_config_is_refused_by_name(config, run):
    value = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(value | {"warp": 9}))
    with pytest.raises(RunError, match="warp"):
        train(config, run)
    cut(run / "config.json")
    with pytest.raises(RunError, match=r"config\.json cannot be read"):
        train(config, run)


def test_as_many_checkpoints_are_kept_as_asked(config, tmp_path):
    train(with_train(config, checkpoint_every=1, keep_checkpoints=2), tmp_path / "run")
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path / "run" / "checkpoints")] == [3, 4]


def test_every_so_many_steps_a_checkpoint_is_kept_for_good(config, tmp_path):
    train(with_train(config, steps=7, checkpoint_every=1, keep_checkpoints=2, keep_every=3), tmp_path / "run")
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path / "run" / "checkpoints")] == [3, 6, 7]


def test_a_file_named_stop_saves_and_stops_and_the_next_start_goes_on(config, tmp_path):
    class Asking(Lines):
        def progress(self, task, done, total, detail=""):
            super().progress(task, done, total, detail)
            if task == "training" and done == 2:
                (tmp_path / "run" / "stop").touch()

    told = Asking()
    result = train(with_train(config, checkpoint_every=1000), tmp_path / "run", listener=told)
    assert (result.step, result.stopped_by) == (2, str(tmp_path / "run" / "stop"))
    assert "at step 2 of 4" in told.text
    assert not (tmp_path / "run" / "stop").exists()
    assert journalled(tmp_path / "run", "interrupt")[0]["stopped_by"] == result.stopped_by
    assert train(with_train(config, checkpoint_every=1000), tmp_path / "run").step == 4
    train(with_train(config, checkpoint_every=1000), tmp_path / "whole")
    assert same(tensors_of(tmp_path / "run"), tensors_of(tmp_path / "whole"))


def test_the_time_limit_saves_and_stops(config, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    class Passing(Lines):
        def progress(self, task, done, total, detail=""):
            super().progress(task, done, total, detail)
            now[0] += 1000.0 if task == "training" and done else 0.0

    result = train(config, tmp_path / "run", time_limit_hours=0.8, listener=Passing())
    assert (result.step, result.stopped_by) == (3, "the time limit")
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path / "run" / "checkpoints")][-1] == 3
    for hours in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="allowed: a number above 0"):
            train(config, tmp_path / "run", time_limit_hours=hours)


def test_folder_with_something_else_in_it_is_refused(config, tmp_path):
    (tmp_path / "diary.txt").write_text("dear")
    with pytest.raises(OutputError, match="not empty"):
        train(config, tmp_path)
    assert content(tmp_path) == {"diary.txt": b"dear"}


def test_place_that_cannot_be_written_is_refused_before_training(config, tmp_path):
    (tmp_path / "file").write_text("")
    told = Lines()
    with pytest.raises(OutputError, match="file"):
        train(config, tmp_path / "file" / "run", listener=told)
    assert told.progressed == []


def test_run_says_where_it_came_from(config, whole, small_digits):
    provenance = json.loads((whole / "provenance.json").read_text())
    assert provenance["store"] == str(small_digits.resolve())
    assert {"iddpm", "torch", "python", "device", "threads", "command", "started", "git_commit"} <= provenance.keys()
    written = json.loads((whole / "config.json").read_text())
    assert written["data"]["classes"] == 10
    assert written["data"]["class_names"] == [str(digit) for digit in range(10)]
    assert written["train"] == json.loads(json.dumps(config_to_json(config)))["train"]


def moments_apart(one, other):
    """Relative distance of the optimizer's moments of the convolutions, which a wrong layout would permute."""
    names = [name for name in one if name.startswith("optimizer/") and one[name].ndim == 4]
    apart = sum(float((one[name] - other[name]).square().sum()) for name in names)
    return (apart / sum(float(one[name].square().sum()) for name in names)) ** 0.5


def test_channels_last_run_resumes_bit_for_bit(config, tmp_path):
    laid_out = with_train(config, channels_last="yes", steps=6)
    train(laid_out, tmp_path / "whole")
    train(with_train(laid_out, steps=3), tmp_path / "parts")
    train(laid_out, tmp_path / "parts")
    assert same(tensors_of(tmp_path / "parts"), tensors_of(tmp_path / "whole"))


def test_memory_layout_may_change_on_resume_and_the_moments_follow(config, tmp_path):
    longer = with_train(config, steps=6)
    train(longer, tmp_path / "whole")
    train(with_train(longer, steps=3), tmp_path / "parts")
    train(with_train(longer, channels_last="yes"), tmp_path / "parts")
    assert moments_apart(tensors_of(tmp_path / "parts"), tensors_of(tmp_path / "whole")) < 1e-3


def test_second_training_in_a_run_directory_is_refused_while_the_first_lasts(config, run):
    with locked(run), pytest.raises(OutputError, match="another process"):
        train(with_train(config, steps=5), run)
    assert train(with_train(config, steps=5), run).step == 5


def test_what_a_killed_save_left_is_removed(config, run):
    left = [run / folder / ".000000005.abc.part" for folder in ("checkpoints", "averages")]
    for folder in left:
        folder.mkdir(parents=True)
    train(with_train(config, steps=5), run)
    assert not any(folder.exists() for folder in left)


def test_store_may_move_and_later_commands_find_it(config, run, small_digits, tmp_path):
    moved = shutil.copytree(small_digits, tmp_path / "moved")
    train(with_train(replace(config, data=replace(config.data, source=str(moved))), steps=5), run)
    assert open_run_dir(run).store == str(moved)


def test_recipe_of_the_paper_asks_for_its_pictures(tmp_path):
    with pytest.raises(DataError, match="brings no pictures") as refused:
        train(recipe("imagenet64").config(), tmp_path / "run")
    assert "--data" in str(refused.value.fix)
    assert not (tmp_path / "run").exists()


def test_refused_start_leaves_no_run_behind(config, tmp_path):
    for refused in (
        replace(config, init=str(tmp_path / "missing")),
        with_train(config, precision="tf32"),
    ):
        with pytest.raises(InputError):
            train(refused, tmp_path / "run")
        assert not (tmp_path / "run" / "config.json").exists()
    assert train(config, tmp_path / "run").step == 4


def test_run_that_was_stopped_before_its_first_step_goes_on(config, tmp_path):
    stopped = train(config, tmp_path / "run", time_limit_hours=1e-9)
    assert (stopped.step, stopped.stopped_by) == (0, "the time limit")
    assert train(config, tmp_path / "run").resumed_from == 0
    train(config, tmp_path / "whole")
    assert same(tensors_of(tmp_path / "run"), tensors_of(tmp_path / "whole"))


def test_run_from_other_weights_goes_on_from_its_step_0(config, run, tmp_path):
    fine = replace(config, init=str(run))
    with pytest.raises(KeyboardInterrupt):
        train(with_train(fine, checkpoint_every=100), tmp_path / "fine", listener=Interrupting(2, times=2))
    shutil.rmtree(run)
    assert train(with_train(config, checkpoint_every=100), tmp_path / "fine").resumed_from == 0
    assert journalled(tmp_path / "fine", "init")[0]["loaded"] > 0


def test_what_a_start_that_was_killed_left_is_in_nobodys_way(config, tmp_path):
    (tmp_path / "run").mkdir()
    for left in ("provenance.json", ".config.json.ab12cd", ".lock"):
        (tmp_path / "run" / left).write_text("{")
    assert train(config, tmp_path / "run").step == 4
    assert not list((tmp_path / "run").glob(".config*"))


@pytest.mark.parametrize("manifest", ["{}", '{"schema": 1, "step": 4}', '{"schema": 1, "step": 4, "files": 7}'])
def test_manifest_that_says_nothing_is_damage(config, run, manifest):
    (run / "checkpoints" / "000000004" / "manifest.json").write_text(manifest)
    told = Lines()
    assert train(config, run, listener=told).resumed_from == 2
    assert "warning: " in told.text


def test_lost_provenance_is_said_and_written_anew(config, run):
    (run / "provenance.json").unlink()
    told = Lines()
    assert train(config, run, listener=told).resumed_from == 4
    assert sum("has lost its provenance.json" in line for line in told.lines) == 1
    assert open_run_dir(run).provenance["store"] == config.data.source


@pytest.mark.parametrize("left", [0, 1])
def test_journal_that_ends_before_the_checkpoint_is_said(config, run, left):
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (run / "journal.jsonl").write_bytes(b"".join(lines[:left]))
    told = Lines()
    assert train(config, run, listener=told).resumed_from == 4
    assert sum("ends before step 4" in line for line in told.lines) == 1


def test_whole_journal_and_snapshots_need_no_word(config, tmp_path):
    tracked = replace(config, train=replace(config.train, ema_widths=(0.1, 0.05)))
    train(tracked, tmp_path / "run")
    told = Lines()
    more = replace(tracked, train=replace(tracked.train, steps=5))
    train(more, tmp_path / "run", listener=told)
    assert "warning" not in told.text
    shutil.rmtree(tmp_path / "run" / "averages" / "000000002")
    train(replace(more, train=replace(more.train, steps=6)), tmp_path / "run", listener=told)
    assert "lacks 1 of 2 snapshots" in told.text


def test_checkpoints_without_a_config_are_not_called_foreign(config, run):
    (run / "config.json").unlink()
    with pytest.raises(OutputError, match=r"not its config\.json") as refused:
        train(config, run)
    assert "--init" in str(refused.value.fix)


def test_run_that_is_at_its_end_has_nothing_to_do_and_takes_a_stop_file_along(config, tmp_path):
    run, told = tmp_path / "run", Lines()
    train(config, run)
    (run / "stop").touch()
    (run / "checkpoints" / "000000004").rename(run / "checkpoints" / "best")
    fewer = replace(config, train=replace(config.train, steps=3))
    assert train(fewer, run, listener=told).stopped_by is None
    assert f"nothing to do: the run is at step 4 of 3; checkpoint in {run / 'checkpoints' / 'best'}" in told.text
    assert not (run / "stop").exists()
    assert told.progressed == []


def test_other_weights_that_are_not_finite_are_refused_by_name(config, run, tmp_path):
    tensors = load_tensors(list_checkpoints(run / "checkpoints")[-1], "ema-0.99")
    tensors["out.2.bias"][0] = float("nan")
    torch.save(tensors, tmp_path / "nan.pt")
    with pytest.raises(RunError, match=r"not finite, in out\.2\.bias"):
        train(replace(config, init=str(tmp_path / "nan.pt")), tmp_path / "new")
    assert not (tmp_path / "new" / "checkpoints").exists()


def test_loss_that_runs_away_is_said(config, tmp_path):
    told = Lines()
    train(replace(config, train=replace(config.train, lr=3.0, steps=8)), tmp_path / "run", listener=told)
    assert "times that of earlier in this session" in told.text

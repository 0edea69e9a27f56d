"""Public reports about training, each case by its id: totals, conditions, rates, order, places, what must not be needed."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from iddpm.cli.main import main
from iddpm.commands.store import store_for
from iddpm.commands.train import train
from iddpm.data.loader import Batches
from iddpm.data.preparing import prepare
from iddpm.data.store import Store
from iddpm.diffusion.objective import Hybrid, Terms, Vlb
from iddpm.diffusion.timesteps import SecondMoment
from iddpm.experiment.build import DiffusionTask
from iddpm.experiment.conditioning import low_resolution
from iddpm.experiment.config import DataConfig
from iddpm.networks.unet import UNet
from iddpm.training.settings import ConstantRate
from tiny import Interrupting, Lines, journalled, tensors_of, tiny_config

SRC = str(Path(__file__).parents[2] / "src")
NO_CLASSES = ("--data.classes", "None", "--diffusion.label-drop", "0")


def numbered(folder, count, size=8):
    """A store of `count` different pictures, some held out."""
    images = np.random.default_rng(count).integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    np.savez(folder / "numbered.npz", images, np.arange(count) % 10)
    return prepare(folder / "numbered.npz", size, folder / "store", channels=1).store


@pytest.fixture
def watched(monkeypatch):
    """Everything that a network on the CPU is told, one entry a forward pass."""
    told, forward = [], UNet.forward

    def recording(self, x, time, **named):
        if x.device.type == "cpu":
            told.append({"x": x, **named})
        return forward(self, x, time, **named)

    monkeypatch.setattr(UNet, "forward", recording)
    return told


def words_for(folder, *more):
    small = ["--net.multipliers", "1", "1", "--diffusion.schedule.timesteps", "10"]
    return ["train", "digits-8", "--data", str(folder), *NO_CLASSES, *small, *more]


@pytest.fixture
def three_pictures(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "three.npz", images)
    return tmp_path / "three.npz"


def test_trn_01_training_ends_at_the_total_with_a_checkpoint_that_loads(three_pictures, tmp_path, capsys):
    size = ["--data.size", "16", "--train.batch-size", "3", "--train.checkpoint-every", "1000"]
    words = words_for(three_pictures, *size, "--train-steps", "20", "--out", str(tmp_path / "run"))
    assert main(words) == 0
    assert "20 steps of 3 images" in capsys.readouterr().err
    counts = {float(tensor) for name, tensor in tensors_of(tmp_path / "run").items() if name.endswith("/step")}
    assert counts == {20.0}
    assert [folder.name for folder in (tmp_path / "run" / "checkpoints").iterdir()] == ["000000020"]
    assert main(["sample", str(tmp_path / "run"), "--num", "1", "--steps", "2"]) == 0
    assert "step20" in capsys.readouterr().out


def test_trn_01_without_a_total_the_recipes_is_said(small_digits, tmp_path, capsys):
    moment = ["--time-limit", "1e-9"]
    assert main(["train", "digits-8", "--data", str(small_digits), "--out", str(tmp_path / "run"), *moment]) == 0
    assert "300 steps of 64 images" in capsys.readouterr().err


@pytest.mark.parametrize("objective", [Hybrid(), Vlb()])
def test_trn_07_one_forward_a_step_and_it_is_told_the_label(digits, tmp_path, watched, objective):
    config = replace(tiny_config(digits.path, train_steps=3), objective=objective, timestep_sampling=SecondMoment())
    train(config, tmp_path / "run")
    assert len(watched) == 3
    for step, told in enumerate(watched):
        assert torch.equal(told["label"], Batches(digits, "train", 8, config.train.seed).at(step).labels)


@pytest.mark.parametrize("objective", [Hybrid(), Vlb()])
def test_trn_07_an_upsamplers_every_forward_is_told_the_small_picture(digits, tmp_path, watched, objective):
    store, _ = store_for(DataConfig(source="digits", size=16, channels=1))
    config = replace(tiny_config(store.path, train_steps=2), objective=objective)
    train(replace(config, data=replace(config.data, size=16, low_res=8)), tmp_path / "run")
    assert len(watched) == 2
    for step, told in enumerate(watched):
        batch = Batches(store, "train", 8, config.train.seed).at(step)
        small = low_resolution(batch.images.float() / 127.5 - 1, 8)
        assert torch.equal(told["label"], batch.labels)
        torch.testing.assert_close(told["low_res"], small)
        assert told["x"].shape == (8, 1, 16, 16)


def test_trn_09_rate_in_the_journal_is_the_one_asked_for_and_the_whole_batch_is_said(small_digits, tmp_path):
    told = Lines()
    warm = ConstantRate(warmup_steps=2)
    config = tiny_config(small_digits, train_steps=4, lr=1e-4, lr_schedule=warm, batch_size=8, micro_batch_size=4)
    train(config, tmp_path / "run", listener=told)
    assert [entry["lr"] for entry in journalled(tmp_path / "run", "step")] == [5e-5, 1e-4, 1e-4, 1e-4]
    assert "4 steps of 8 images" in told.text
    assert "learning rate 0.0001" in told.text


@pytest.fixture
def seen(monkeypatch):
    """The pictures of each step and when it began, oldest first. The loss is none, and quickly made."""
    steps = []

    def loss_of_nothing(self, batch, draws):
        steps.append((time.monotonic(), batch.index.tolist()))
        nothing = sum(parameter.sum() for parameter in self.module.parameters()) * torch.zeros(len(batch))
        return Terms(loss=nothing, parts={}, t=torch.zeros(len(batch), dtype=torch.int64))

    monkeypatch.setattr(DiffusionTask, "__call__", loss_of_nothing)
    return steps


# 16 batches an epoch: 21 is five batches into the second, 32 its end.
@pytest.mark.parametrize("stopped_at", [21, 32])
def test_res_05_order_after_a_resume_is_that_of_a_run_left_alone(tmp_path, seen, stopped_at):
    store = numbered(tmp_path, 67)
    assert len(store.train) == 64
    config = tiny_config(store.path, train_steps=stopped_at + 27, batch_size=4, log_every=100)
    train(config, tmp_path / "whole")
    whole = [pictures for _, pictures in seen]
    seen.clear()
    train(config, tmp_path / "parts", listener=Interrupting(stopped_at))
    assert len(seen) == stopped_at
    train(config, tmp_path / "parts")
    parts = [pictures for _, pictures in seen]
    assert parts == whole
    assert sorted(index for pictures in parts[16:32] for index in pictures) == store.train.tolist()


def test_tim_06_resume_reads_nothing_of_what_was_seen_and_the_bar_starts_there(tmp_path, monkeypatch, seen):
    store = numbered(tmp_path, 2000)
    config = tiny_config(store.path, train_steps=500, log_every=500)
    train(config, tmp_path / "run", listener=Interrupting(400))
    seen.clear()
    read = Store.read

    def slowly(self, index):
        pictures = read(self, index)
        time.sleep(0.02 * len(pictures))
        return pictures

    monkeypatch.setattr(Store, "read", slowly)
    told, began = Interrupting(401), time.monotonic()
    result = train(config, tmp_path / "run", listener=told)
    assert (result.resumed_from, result.step) == (400, 401)
    assert seen[0][0] - began < 3
    bar = [entry for entry in told.progressed if entry[0] == "training"]
    assert bar == [("training", 400, 500), ("training", 401, 500)]


WITHOUT_MPI = """
import importlib.abc, sys

class Refusing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0].lower() in ("mpi4py", "mpi"):
            raise AssertionError(f"{name} is wanted")

sys.meta_path.insert(0, Refusing())
import torch.distributed

def refused(*args, **named):
    raise AssertionError("a process group is wanted")

torch.distributed.init_process_group = refused
from iddpm.cli.main import main

data, run = sys.argv[1:]
status = main(["train", "digits-8", "--data", data, "--out", run, "--train-steps", "2", "--train.batch-size", "4"])
sys.exit(status or main(["sample", run, "--num", "1", "--steps", "2"]))
"""


def test_ins_01_one_device_needs_no_mpi_and_no_process_group(small_digits, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MPI, str(small_digits), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": SRC},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "run" / "samples").glob("*/samples.npz"))) == 1


def test_cli_01_without_a_place_the_run_lies_in_the_current_folder_and_is_named(
    small_digits, tmp_path, monkeypatch, capsys
):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert (
        main(["train", "digits-8", "--data", str(small_digits), "--train-steps", "5", "--train.batch-size", "4"]) == 0
    )
    run = tmp_path / "empty" / "runs" / "digits-8"
    out, err = capsys.readouterr()
    lines = err.splitlines()
    first_step = next(place for place, line in enumerate(lines) if line.startswith("training: "))
    assert any(str(run) in line for line in lines[:first_step])
    assert str(run / "checkpoints" / "000000005") in lines[-1]
    assert out == f"{run}\n"
    assert tensors_of(run, 5)
    assert [entry.name for entry in (tmp_path / "empty").iterdir()] == ["runs"]


@pytest.mark.parametrize(
    "place", ["file/run", pytest.param("/proc/run", marks=pytest.mark.skipif("sys.platform != 'linux'"))]
)
def test_cli_01_a_place_that_cannot_be_written_is_refused_before_training(
    small_digits, tmp_path, monkeypatch, capsys, watched, place
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert main(["train", "digits-8", "--data", str(small_digits), "--train-steps", "5", "--out", place]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert place.split("/")[1] in err
    assert len(err.splitlines()) == 2
    assert watched == []

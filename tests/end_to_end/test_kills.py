"""Real processes, stopped in every way: kill -9 at random moments, one Ctrl-C, two, SIGTERM."""

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from iddpm.artifacts.checkpoint import (
    Checkpoint,
    check_checkpoint,
    checkpoint_name,
    list_checkpoints,
    load_tensors,
)
from iddpm.artifacts.journal import read_journal
from iddpm.commands.train import train
from iddpm.diffusion.objective import Vlb
from iddpm.diffusion.timesteps import SecondMoment
from iddpm.experiment.config import RunConfig
from tiny import journalled, same, tensors_of, tiny_config

# Imports once for all, and has no threads: its children start in a moment.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["iddpm.commands.train", "scipy", "torch._dynamo"])


@pytest.fixture
def config(small_digits):
    """Everything that a step depends on and leaves behind: dropout, hidden labels, importance sampling, four averages."""
    config = tiny_config(small_digits, dropout=0.3, label_drop=0.3, timesteps=3, train_steps=5000)
    return replace(
        config,
        objective=Vlb(),
        timestep_sampling=SecondMoment(history=2),
        train=replace(
            config.train, ema=(0.5, 0.99), ema_widths=(0.05, 0.1), keep_checkpoints=2, checkpoint_every=1, grad_clip=1.0
        ),
    )


def with_steps(config: RunConfig, steps: int, **settings: int) -> RunConfig:
    return replace(config, train=replace(config.train, steps=steps, **settings))


def train_quietly(config: RunConfig, out: Path) -> None:
    import torch

    torch.set_num_threads(1)
    train(config, out)


def sessions(run: Path) -> int:
    return len(journalled(run, "start")) + len(journalled(run, "resume")) if (run / "journal.jsonl").exists() else 0


def killed(config: RunConfig, run: Path, seconds: float) -> None:
    """Start training, and kill it so many seconds after it has begun."""
    before = sessions(run)
    process = PROCESSES.Process(target=train_quietly, args=(config, run))
    process.start()
    deadline = time.monotonic() + 60
    while sessions(run) == before:
        assert process.is_alive(), "it ended by itself"
        assert time.monotonic() < deadline, "it did not begin"
        time.sleep(0.01)
    time.sleep(seconds)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL


def survive(config: RunConfig, run: Path, kills: int) -> None:
    """Kill it over and over; each time what is there is whole, and the next start goes on from it."""
    moments = random.Random(0)
    for _ in range(kills):
        there = newest_step(run)
        killed(config, run, moments.uniform(0, 0.6))
        for checkpoint in list_checkpoints(run / "checkpoints") + list_checkpoints(run / "averages"):
            check_checkpoint(checkpoint)
        events = read_journal(run / "journal.jsonl")
        begun = [event for event in events if event["event"] in ("start", "resume")][-1]
        assert begun["step"] == there
        assert newest_step(run) >= there
    last = newest_step(run) + 3
    assert train(with_steps(config, last), run).step == last
    whole = run.parent / "whole"
    train(with_steps(config, last, checkpoint_every=10_000, snapshot_every=1), whole)
    assert same(tensors_of(run, last), tensors_of(whole, last))
    snapshots = {checkpoint.step for checkpoint in list_checkpoints(run / "averages")}
    # A kill may fall between a checkpoint and its snapshot: that one is missing then.
    assert len(snapshots) >= last - kills
    for step in snapshots:
        assert same(snapshot_of(run, step), snapshot_of(whole, step))
    left = [path for folder in ("checkpoints", "averages") for path in (run / folder).glob(".*")]
    assert left == []
    assert len(list_checkpoints(run / "checkpoints")) == 2
    assert [entry["step"] for entry in journalled(run, "step")][-1] == last


def snapshot_of(run: Path, step: int) -> dict[str, Tensor]:
    snapshot = Checkpoint(run / "averages" / checkpoint_name(step), step)
    groups = {name: load_tensors(snapshot, name) for name in ("power-0.05", "power-0.1")}
    return {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}


def test_res_06_three_kills_change_nothing(config, tmp_path):
    survive(config, tmp_path / "run", kills=3)


@pytest.mark.slow
def test_res_06_fifty_kills_change_nothing(config, tmp_path):
    survive(config, tmp_path / "run", kills=50)


COMMAND = (
    "train", "digits-8", "--train-steps", "100000", "--train.checkpoint-every", "1", "--train.batch-size", "8",
    "--net.multipliers", "1", "1", "--train.keep-checkpoints", "2",
)  # fmt: skip


def newest_step(run: Path) -> int:
    return max((checkpoint.step for checkpoint in list_checkpoints(run / "checkpoints")), default=0)


def signalled(run: Path, *numbers: signal.Signals) -> subprocess.CompletedProcess[str]:
    """The real command, sent signals once it has written its first checkpoints."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    process = subprocess.Popen(
        [sys.executable, "-m", "iddpm", *COMMAND, "--out", str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    there, deadline = newest_step(run), time.monotonic() + 60
    while newest_step(run) < there + 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    for number in numbers:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        time.sleep(0.002)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(COMMAND, process.returncode, out, err)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_res_06_one_signal_saves_and_ends_well(tmp_path, number):
    done = signalled(tmp_path / "run", number)
    assert done.returncode == 0
    assert done.stdout.strip() == str(tmp_path / "run")
    assert f"stopped by {number.name} at step" in done.stderr
    assert "Traceback" not in done.stderr
    newest = list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    check_checkpoint(newest)
    assert journalled(tmp_path / "run", "interrupt")[-1]["step"] == newest.step


def test_res_06_second_ctrl_c_ends_at_once_and_leaves_what_is_whole(tmp_path):
    done = signalled(tmp_path / "run", signal.SIGINT, signal.SIGINT)
    if not journalled(tmp_path / "run", "interrupt"):  # else the first was served before the second came
        assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "terminate called" not in done.stderr
    checkpoints = list_checkpoints(tmp_path / "run" / "checkpoints")
    for checkpoint in checkpoints:
        check_checkpoint(checkpoint)
    again = signalled(tmp_path / "run", signal.SIGINT)
    assert again.returncode == 0
    assert f"resumed step {checkpoints[-1].step} from" in again.stderr

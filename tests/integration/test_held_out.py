"""Bits per dim while training: the command's own figures, and nothing in training is different for it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from iddpm.artifacts.run_dir import RunDir
from iddpm.commands import averaged, held_out
from iddpm.commands.entering import config_for_store
from iddpm.commands.held_out import held_out_hook
from iddpm.commands.likelihood import LikelihoodRequest, likelihood
from iddpm.commands.preview import preview_hook
from iddpm.commands.store import store_for
from iddpm.commands.train import train
from iddpm.data.preparing import prepare
from iddpm.data.store import open_store
from iddpm.diffusion.spacing import EvenSteps
from iddpm.experiment.build import build_net, build_task
from iddpm.experiment.config import DataConfig
from iddpm.runtime.errors import ConfigError
from iddpm.runtime.world import World
from iddpm.training.state import new_state
from tiny import journalled, losses_of, same, tensors_of, tiny_config

CPU = torch.device("cpu")
ALONE = World(rank=0, size=1, device=CPU)


def evaluated(source, **train):
    """A config with dropout and hidden labels that measures every second step."""
    asked = {"evaluate_every": 2, "evaluate_num": 40, "evaluate_steps": 5, "checkpoint_every": 2, "keep_checkpoints": 9}
    return tiny_config(source, dropout=0.3, label_drop=0.3, train_steps=4, **(asked | train))


def enlarging(digits):
    store, _ = store_for(DataConfig(source="digits", size=16, channels=1))
    config = evaluated(store.path, evaluate_num=3)
    return replace(config, data=replace(config.data, size=16, low_res=8))


def recomputing(digits):
    return evaluated(digits.path, activation_checkpointing="blocks")


@pytest.mark.parametrize("make", [lambda digits: evaluated(digits.path), recomputing, enlarging])
def test_it_is_what_the_command_says_of_the_checkpoint_of_that_step(digits, tmp_path, make):
    config = make(digits)
    train(config, tmp_path / "run")
    events = journalled(tmp_path / "run", "evaluation")
    assert [event["step"] for event in events] == [2, 4]
    request = LikelihoodRequest(num=config.train.evaluate_num, steps=EvenSteps(5))
    for event in events:
        said = likelihood(tmp_path / "run", replace(request, step=event["step"]))
        for name in ("bits_per_dim", "standard_error_bits_per_dim", "num_images", "num_steps", "weights"):
            assert event[name] == said[name], name
        assert event["seconds"] > 0
    assert events[0]["bits_per_dim"] != events[1]["bits_per_dim"]


@pytest.mark.parametrize("again", ["none", "norms"])
def test_trn_05_measuring_changes_nothing_in_training(digits, tmp_path, again):
    train(evaluated(digits.path, evaluate_every=None, activation_checkpointing=again), tmp_path / "plain")
    train(evaluated(digits.path, evaluate_every=1, activation_checkpointing=again), tmp_path / "measured")
    assert len(journalled(tmp_path / "measured", "evaluation")) == 4
    assert same(tensors_of(tmp_path / "plain"), tensors_of(tmp_path / "measured"))
    assert losses_of(tmp_path / "plain") == losses_of(tmp_path / "measured")


def test_its_time_is_a_phase_of_its_own(digits, tmp_path):
    train(evaluated(digits.path, evaluate_every=2), tmp_path / "run")
    told = [entry["seconds"].get("evaluation", 0.0) for entry in journalled(tmp_path / "run", "step")]
    events = journalled(tmp_path / "run", "evaluation")
    assert sum(told) == pytest.approx(sum(event["seconds"] for event in events), rel=0.2, abs=0.05)


def test_data_without_held_out_pictures_are_refused_before_the_first_step(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "one.npz", images, np.zeros(1, dtype=np.int64))
    store = prepare(tmp_path / "one.npz", 8, tmp_path / "store", channels=1).store
    assert len(store.held_out) == 0
    with pytest.raises(ConfigError, match=r"train\.evaluate_every is 2.*holds out none of its 1 pictures") as refused:
        train(evaluated(store.path), tmp_path / "run")
    assert "--train.evaluate-every" in str(refused.value.fix)
    assert not journalled(tmp_path / "run", "step")


@pytest.fixture
def world(digits, tmp_path):
    """A config on the digits, its state before the first step, and the run directory it would have."""
    config = config_for_store(evaluated(digits.path), digits)
    task = build_task(config, build_net(config, CPU), CPU)
    return config, new_state(task, config.optimizer, config.train), RunDir(tmp_path / "run")


def test_it_is_due_at_multiples_alone(world, digits):
    config, state, run = world
    hook = held_out_hook(config, run, digits, ALONE)
    state.step = 3
    assert hook(state) is None
    state.step = 6
    assert hook(state)["step"] == 6


def test_all_pictures_and_all_steps_where_there_are_fewer(world, small_digits):
    config, state, run = world
    store = open_store(small_digits)
    config = replace(config, train=replace(config.train, evaluate_num=500, evaluate_steps=1000))
    event = held_out_hook(config, run, store, ALONE)(state)
    assert event["num_images"] == len(store.held_out)
    assert event["num_steps"] == config.diffusion.schedule.timesteps


@pytest.mark.parametrize("make", [held_out_hook, lambda config, run, store, world: preview_hook(config, run, world)])
def test_one_network_is_built_and_the_trained_one_is_never_asked(world, digits, monkeypatch, make):
    config, state, run = world
    config = replace(config, train=replace(config.train, preview_every=2))
    built, build = [], averaged.build_net
    monkeypatch.setattr(averaged, "build_net", lambda *args: built.append(build(*args)) or built[-1])
    state.task.module.forward = None
    hook = make(config, run, digits, ALONE)
    assert built == []
    assert hook(state)["step"] == 0
    state.step = 2
    hook(state)
    (net,) = built
    assert not {id(p) for p in net.parameters()} & {id(p) for p in state.task.module.parameters()}


def test_nothing_that_all_of_torch_shares_is_moved(world, digits):
    config, state, run = world
    module = state.task.module
    layout = [parameter.stride() for parameter in module.parameters()]
    before = (
        torch.get_rng_state(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
    )
    averages = {name: tensor.clone() for name, tensor in state.ema.state_dict("ema-0.99").items()}
    held_out_hook(config, run, digits, ALONE)(state)
    after = (
        torch.get_rng_state(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
    )
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert module.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in module.parameters())
    assert [parameter.stride() for parameter in module.parameters()] == layout
    assert same(averages, state.ema.state_dict("ema-0.99"))


def test_newer_weights_are_measured_each_time(world, digits):
    config, state, run = world
    hook = held_out_hook(config, run, digits, ALONE)
    first = hook(state)["bits_per_dim"]
    assert hook(state)["bits_per_dim"] == first
    with torch.no_grad():
        for parameter in state.task.module.parameters():
            parameter.add_(0.01)
    state.ema.update(1000)
    assert hook(state)["bits_per_dim"] != first


def test_a_bound_that_is_not_finite_can_be_journalled(world, digits, monkeypatch):
    config, state, run = world
    measure = held_out.likelihood

    def broken(*args):
        result = measure(*args)
        return replace(result, total_bits_per_dim=result.total_bits_per_dim * math.nan)

    monkeypatch.setattr(held_out, "likelihood", broken)
    event = held_out_hook(config, run, digits, ALONE)(state)
    assert (event["bits_per_dim"], event["standard_error_bits_per_dim"]) == (None, None)

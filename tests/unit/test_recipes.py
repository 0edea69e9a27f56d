import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from iddpm.commands.show import counts_of
from iddpm.diffusion.objective import Hybrid, Vlb
from iddpm.diffusion.timesteps import SecondMoment, Uniform
from iddpm.experiment.build import build_net, net_inputs
from iddpm.experiment.config import DiffusionConfig, RunConfig
from iddpm.experiment.recipes import RECIPES, recipe
from iddpm.runtime.errors import ConfigError
from iddpm.training.settings import Adam, TrainConfig

REFERENCE = Path(os.environ.get("IDDPM_REFERENCE", Path(__file__).parents[1] / "conformance" / "reference"))

# Million parameters and billion multiply-accumulates of one forward, as published.
FIGURES = {
    "cifar10": (52.546, 8.387),
    "cifar10-vlb": (52.546, 8.387),
    "imagenet64": (121.064, 39.736),
    "imagenet64-vlb": (121.064, 39.736),
    "imagenet64-cond": (273.049, 89.086),
    "imagenet64-c64": (30.304, 10.041),
    "imagenet64-c96": (68.127, 22.432),
    "imagenet64-c128": (121.064, 39.736),
    "imagenet64-c192": (272.281, 89.086),
    "lsun-bedroom": (113.677, 248.740),
    "lsun-bedroom-bs64": (113.677, 248.740),
    "upsample-64-256": (279.792, 560.039),
}

# Our recipe of each published checkpoint.
PUBLISHED = {
    "imagenet64_uncond_100M_1500K": "imagenet64",
    "imagenet64_uncond_vlb_100M_1500K": "imagenet64-vlb",
    "imagenet64_cond_270M_250K": "imagenet64-cond",
    "cifar10_uncond_50M_500K": "cifar10",
    "cifar10_uncond_vlb_50M_500K": "cifar10-vlb",
    "lsun_uncond_100M_1200K_bs128": "lsun-bedroom",
    "lsun_uncond_100M_2400K_bs64": "lsun-bedroom-bs64",
    "upsample_cond_500K": "upsample-64-256",
}


def published():
    path = REFERENCE / "published_checkpoints.json"
    return json.loads(path.read_text()) if path.is_file() else None


needs_reference = pytest.mark.skipif(
    published() is None, reason="the reference folder has no published_checkpoints.json"
)


@cache
def counted(net, data, label_drop):
    """Counts of a network; several recipes share one."""
    diffusion = DiffusionConfig(label_drop=label_drop)
    return counts_of(RunConfig(recipe="", data=data, net=net, diffusion=diffusion, train=TrainConfig(steps=1)))


def counts_for(name):
    config = recipe(name).config()
    assert config.diffusion.variance == "learned_range"
    return counted(config.net, replace(config.data, source=""), config.diffusion.label_drop)


@pytest.mark.parametrize("name", FIGURES)
def test_recipe_builds_with_the_published_parameters_and_work(name):
    counts = counts_for(name)
    parameters, macs = FIGURES[name]
    # The published 30.304 M is 30.303494 M rounded up; the others are rounded to the nearest.
    assert counts.parameters / 1e6 == pytest.approx(parameters, abs=6e-4)
    assert counts.macs_per_image / 1e9 == pytest.approx(macs, abs=6e-4)
    assert counts.flops_per_image == 2 * counts.macs_per_image


def test_every_recipe_has_figures_or_is_small():
    small = set(RECIPES) - set(FIGURES)
    assert small == {"demo", "digits-8"}
    for name in small:
        assert 1e5 < counts_for(name).parameters < 5e6


@pytest.mark.parametrize("name", ["demo", "digits-8", "upsample-64-256"])
def test_recipe_runs_on_the_meta_device_at_any_batch(name):
    config = recipe(name).config()
    meta = torch.device("meta")
    out = build_net(config, meta)(**net_inputs(config, 3, meta))
    assert out.shape == (3, 2 * config.data.channels, config.data.size, config.data.size)


@needs_reference
def test_every_published_checkpoint_has_a_recipe():
    assert set(published()) <= set(PUBLISHED)


@needs_reference
@pytest.mark.parametrize("checkpoint", PUBLISHED)
def test_settings_are_those_of_the_published_checkpoint(checkpoint):
    entry = published().get(checkpoint)
    if entry is None:
        pytest.skip(f"the reference folder has no {checkpoint}")
    config = recipe(PUBLISHED[checkpoint]).config()
    net, diffusion = entry["net"], config.diffusion
    assert config.data.size == net["image_size"]
    assert config.data.low_res == net.get("low_res_size")
    assert config.data.classes == net["num_classes"]
    assert config.net.channels == net["num_channels"]
    assert config.net.multipliers == tuple(net["channel_mult"])
    assert config.net.blocks == net["num_res_blocks"]
    assert set(config.net.attention_at) == set(net["attention_resolutions"])
    assert (config.net.heads, config.net.head_channels) == (net["num_heads"], None)
    assert config.net.scale_shift_norm == net["scale_shift_norm"]
    assert config.net.dropout == net["dropout"]
    assert (diffusion.variance == "learned_range") == net["learned_variance"]
    assert diffusion.schedule.timesteps == entry["T"]
    assert type(diffusion.schedule).__name__.lower() == entry["schedule"]
    assert (diffusion.time_scale == "thousand") == entry["rescale_timesteps"]
    assert diffusion.label_drop == 0
    assert config.train.lr == entry["lr"]
    assert config.train.steps == entry["steps"]
    assert config.train.batch_size == (64 if checkpoint.endswith("bs64") else entry["batch"])


@needs_reference
@pytest.mark.parametrize("checkpoint", PUBLISHED)
def test_objective_is_that_of_the_published_checkpoint(checkpoint):
    entry = published().get(checkpoint)
    if entry is None:
        pytest.skip(f"the reference folder has no {checkpoint}")
    config = recipe(PUBLISHED[checkpoint]).config()
    if "importance" in entry["objective"]:
        assert config.objective == Vlb()
        assert config.timestep_sampling == SecondMoment(history=10, uniform_part=0.001)
    else:
        weight = "scaled" if entry["rescale_learned_sigmas"] else "unscaled"
        assert config.objective == Hybrid(bound_weight=weight)
        assert config.timestep_sampling == Uniform()
    assert isinstance(config.optimizer, Adam)
    assert config.train.ema == (0.9999,)


def test_initial_weights_are_a_function_of_the_seed_and_disturb_no_one():
    config = recipe("digits-8").config()
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, two = (build_net(config, torch.device("cpu")).state_dict() for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_unknown_recipe_names_the_nearest():
    with pytest.raises(ConfigError, match="'cifar'") as refused:
        recipe("cifar")
    assert "cifar10" in str(refused.value.fix)

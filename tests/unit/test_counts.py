"""Parameters and multiply-accumulates against the published figures and against hand counts."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from iddpm.cost.counts import counts
from iddpm.networks.unet import UNet, UNetConfig

IMAGENET_64 = UNetConfig()
LSUN = UNetConfig(blocks=2, heads=1, attention_at=(16,), scale_shift_norm=False)
UPSAMPLER = UNetConfig(channels=192, blocks=2)

# Parameters in millions and forward multiply-accumulates in billions.
PUBLISHED = {
    "cifar10": (UNetConfig(dropout=0.3), {"size": 32}, 52.546, 8.387),
    "imagenet64": (IMAGENET_64, {"size": 64}, 121.064, 39.736),
    "imagenet64_64": (UNetConfig(channels=64), {"size": 64}, 30.304, 10.041),
    "imagenet64_96": (UNetConfig(channels=96), {"size": 64}, 68.127, 22.432),
    "imagenet64_192": (UNetConfig(channels=192), {"size": 64}, 272.281, 89.086),
    "imagenet64_cond": (UNetConfig(channels=192), {"size": 64, "num_classes": 1000}, 273.049, 89.086),
    "lsun": (LSUN, {"size": 256}, 113.677, 248.740),
    "upsampler": (UPSAMPLER, {"size": 256, "num_classes": 1000, "low_res_channels": 3}, 279.792, 560.039),
    "adm64": (
        UNetConfig(
            channels=192,
            heads=None,
            head_channels=64,
            attention_at=(32, 16, 8),
            resample="resblock",
            attention_order="qkv_first",
        ),
        {"size": 64, "num_classes": 1000},
        295.904,
        109.678,
    ),
}


def counted(config, options, batch_size=1):
    with torch.device("meta"):
        net = UNet(config, out_channels=6, **options)
        inputs = {"x": torch.empty(batch_size, 3, options["size"], options["size"]), "time": torch.empty(batch_size)}
        if "num_classes" in options:
            inputs["label"] = torch.zeros(batch_size, dtype=torch.int64)
        if "low_res_channels" in options:
            inputs["low_res"] = torch.empty(batch_size, 3, 64, 64)
    return counts(net, batch_size=batch_size, **inputs)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures(name):
    config, options, parameters, macs = PUBLISHED[name]
    counted_here = counted(config, options)
    assert counted_here.parameters / 1e6 == pytest.approx(parameters, abs=6e-4)  # one of them was rounded twice
    assert counted_here.macs_per_image / 1e9 == pytest.approx(macs, abs=5e-4)
    assert counted_here.flops_per_image == 2 * counted_here.macs_per_image
    assert counted_here.macs.other == 0


def test_counts_are_per_image():
    config = UNetConfig(channels=32, blocks=1)
    assert counted(config, {"size": 32}, batch_size=4) == counted(config, {"size": 32})


def test_a_real_module_is_counted_by_kind_and_left_as_it_is():
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 5))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    counted_here = counts(module, torch.zeros(2, 3, 6, 6), batch_size=2)
    assert counted_here.macs.conv == 8 * 3 * 9 * 36
    assert counted_here.macs.linear == 8 * 36 * 5
    assert counted_here.macs.attention == 0
    assert counted_here.parameters == 8 * 3 * 9 + 8 + 8 * 36 * 5 + 5
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_attention_products_are_counted():
    config = UNetConfig(channels=32, multipliers=(1,), blocks=1, attention_at=(8,), heads=2)
    attended = counted(config, {"size": 8})
    plain = counted(replace(config, attention_at=()), {"size": 8})
    # Attention in the middle, in one block down and two up; each two products of positions x positions x channels.
    assert plain.macs.attention == 2 * 64 * 64 * 32
    assert attended.macs.attention == 4 * plain.macs.attention


def test_frozen_parameters_are_not_counted():
    module = nn.Linear(4, 4)
    module.bias.requires_grad_(False)
    assert counts(module, torch.zeros(1, 4)).parameters == 16

"""Cases MOD-01 and MOD-02: which sides a net can be built for."""

import time

import pytest
import torch

from iddpm.networks.unet import UNet, UNetConfig
from iddpm.runtime.errors import ConfigError

THREE_HALVINGS = (1, 1, 1, 1)


def built(size, multipliers=None):
    return UNet(UNetConfig(channels=32, multipliers=multipliers, blocks=1), size=size, out_channels=3)


@pytest.mark.parametrize(
    ("size", "multipliers", "nearest"),
    [
        (100, THREE_HALVINGS, ("96", "104")),
        (100, None, ("96", "104")),
        (17, THREE_HALVINGS, ("16", "24")),
        (23, THREE_HALVINGS, ("16", "24")),
        (1, THREE_HALVINGS, ("8",)),
    ],
)
def test_mod_01_side_that_does_not_divide_is_refused_with_the_nearest_that_do(size, multipliers, nearest):
    start = time.perf_counter()
    with pytest.raises(ConfigError) as error:
        built(size, multipliers)
    assert time.perf_counter() - start < 1
    message = str(error.value)
    assert f"size {size} " in message
    assert "by 8 " in message
    assert all(f" {side}" in message for side in nearest)
    assert message.count("\n") == 1


@pytest.mark.parametrize("size", [96, 104])
def test_mod_01_the_sides_named_work(size):
    with torch.device("meta"):
        net = built(size, THREE_HALVINGS)
        assert net(torch.empty(1, 3, size, size), torch.empty(1)).shape == (1, 3, size, size)


@pytest.mark.parametrize(
    ("height", "width", "named"), [(100, 96, "100"), (96, 100, "100"), (17, 23, "17"), (1, 1, "1")]
)
def test_mod_01_images_that_do_not_divide_are_refused_by_a_net_built_for_others(height, width, named):
    net = built(8, THREE_HALVINGS)
    with pytest.raises(ConfigError, match=f"size {named} does not divide by 8"):
        net(torch.zeros(1, 3, height, width), torch.zeros(1))


@pytest.mark.parametrize("size", [8, 16, 28, 32, 48, 96, 128])
def test_mod_02_every_side_has_a_default_layout(size):
    net = built(size)
    with torch.no_grad():
        out = net(torch.zeros(1, 3, size, size), torch.zeros(1))
    assert out.shape == (1, 3, size, size)
    assert 4 <= net.widths[-1] <= 8


@pytest.mark.parametrize("size", [256, 512, 1024])
def test_mod_02_large_sides_too(size):
    with torch.device("meta"):
        net = built(size)
        assert net(torch.empty(1, 3, size, size), torch.empty(1)).shape == (1, 3, size, size)
    assert net.widths[-1] == 8

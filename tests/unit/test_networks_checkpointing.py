"""What the backward pass computes again: the same gradients, less memory, and no convolution that is not needed."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from iddpm.cost.memory import peak_bytes
from iddpm.networks.unet import UNet, UNetConfig

MODES = ["none", "norms", "blocks"]
CPU, META = torch.device("cpu"), torch.device("meta")
SMALL = UNetConfig(channels=32, multipliers=(1, 2), blocks=1, attention_at=(4,), heads=2, dropout=0.3)
CONFIGS = {
    "published": SMALL,
    "shift_only": replace(SMALL, scale_shift_norm=False),
    "resblocks": replace(SMALL, resample="resblock", attention_order="qkv_first"),
}
DEMO = UNetConfig(channels=32, multipliers=(1, 1, 2, 4), blocks=1, attention_at=(8,))
CIFAR10 = UNetConfig(multipliers=(1, 2, 2, 2), blocks=1, dropout=0.3)


def net_of(config, memory_format=torch.contiguous_format, size=8):
    torch.manual_seed(0)
    net = UNet(config, size=size, out_channels=6, num_classes=3)
    for parameter in net.parameters():
        if parameter.device.type == "cpu" and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.05)
    return net.use_memory_format(memory_format)


def step(net, batch, size=8):
    device = next(net.parameters()).device
    generator = None if device == META else torch.Generator().manual_seed(1)
    x = torch.randn(batch, 3, size, size, generator=generator, device=device)
    time = torch.linspace(0, 999, batch, device=device)
    out = net(x, time, torch.arange(batch, device=device) % 3)
    out.float().square().mean().backward()
    return out.detach()


def gradients(net):
    found = {name: parameter.grad for name, parameter in net.named_parameters()}
    net.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("config", CONFIGS)
def test_values_and_gradients_are_the_same_to_the_bit(config, memory_format, half):
    net, results = net_of(CONFIGS[config], memory_format), {}
    for mode in MODES:
        net.use_activation_checkpointing(mode)
        torch.manual_seed(2)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            results[mode] = step(net, 3), gradients(net), torch.rand(1)
    out, expected, next_draw = results.pop("none")
    assert all(gradient.any() for gradient in expected.values())
    for other, found, draw in results.values():
        assert torch.equal(other, out)
        assert torch.equal(draw, next_draw)
        assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


class Operators(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[func.name().partition("::")[2].partition(".")[0]] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("config", CONFIGS)
def test_norms_cost_no_convolution_and_blocks_about_half_of_them(config):
    net, convolutions, flops = net_of(CONFIGS[config]), {}, {}
    for mode in MODES:
        net.use_activation_checkpointing(mode)
        with Operators() as operators:
            step(net, 2)
        with FlopCounterMode(display=False) as counter:
            step(net, 2)
        convolutions[mode], flops[mode] = operators.seen["convolution"], counter.get_total_flops()
    blocks = sum(name.endswith("in_layers") for name, _ in net.named_modules())
    skips = sum(name.endswith("skip_connection") and bool(list(m.parameters())) for name, m in net.named_modules())
    assert convolutions["norms"] == convolutions["none"]
    assert convolutions["none"] + blocks <= convolutions["blocks"] <= convolutions["none"] + blocks + skips
    assert flops["norms"] == flops["none"]
    assert 1.1 < flops["blocks"] / flops["none"] < 1.25


@pytest.mark.parametrize("how", ["eval", "no_grad"])
def test_nothing_is_checkpointed_where_nothing_is_trained(how, monkeypatch):
    monkeypatch.setattr("iddpm.networks.blocks.checkpoint", lambda *_, **__: pytest.fail("checkpointed"))
    for mode in ("norms", "blocks"):
        net = net_of(SMALL).use_activation_checkpointing(mode)
        if how == "eval":
            net.eval()
        with torch.set_grad_enabled(how == "eval"):
            net(torch.zeros(1, 3, 8, 8), torch.zeros(1), torch.zeros(1, dtype=torch.int64))


def test_random_numbers_are_kept_for_dropout_alone(monkeypatch):
    kept = []
    monkeypatch.setattr(
        "iddpm.networks.blocks.checkpoint",
        lambda part, *inputs, preserve_rng_state, **_: kept.append(preserve_rng_state) or part(*inputs),
    )
    for dropout in (0.0, 0.3):
        for mode in ("norms", "blocks"):
            kept.clear()
            net_of(replace(SMALL, dropout=dropout)).use_activation_checkpointing(mode)(
                torch.zeros(1, 3, 8, 8), torch.zeros(1), torch.zeros(1, dtype=torch.int64)
            )
            assert any(kept) == (dropout > 0)


def peaks(net, batch, size):
    def step_and_forget():
        step(net, batch, size)
        net.zero_grad(set_to_none=True)

    device = next(net.parameters()).device
    return [peak_bytes(step_and_forget, device) for _ in map(net.use_activation_checkpointing, MODES)]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_demo_needs_less_memory(memory_format):
    none, norms, blocks = peaks(net_of(DEMO, memory_format, 32), 8, 32)
    assert blocks < 0.9 * norms
    assert norms < 0.7 * none


def test_a_net_as_wide_as_that_of_cifar10_needs_a_fraction_of_the_memory():
    with META:
        net = net_of(CIFAR10, size=32)
    none, norms, blocks = peaks(net, 16, 32)
    assert blocks < 0.38 * none
    assert norms < 0.6 * none

"""The U-Net as a module: gradients, conditioning, types, layouts, refusals."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from iddpm.networks.blocks import Attention, Upsample, resampled
from iddpm.networks.embedding import time_embedding
from iddpm.networks.layout import default_multipliers, level_widths
from iddpm.networks.unet import UNet, UNetConfig
from iddpm.runtime.errors import ConfigError

SMALL = UNetConfig(channels=32, multipliers=(1, 2), blocks=1, attention_at=(4,), heads=2)
CONFIGS = {
    "published": SMALL,
    "shift_only": replace(SMALL, scale_shift_norm=False, heads=1),
    "followers": replace(SMALL, resample="resblock", heads=None, head_channels=16, attention_order="qkv_first"),
    "dropout": replace(SMALL, dropout=0.1, attention_at=(), resample="resblock"),
}
CONDITIONS = {
    "plain": {},
    "labels": {"num_classes": 3},
    "null_label": {"num_classes": 3, "null_label": True},
    "low_res": {"low_res_channels": 3, "num_classes": 2},
}


def net_of(config, seed=0, size=8, out_channels=6, **options):
    """A net whose last layers are not zero."""
    torch.manual_seed(seed)
    net = UNet(config, size=size, out_channels=out_channels, **options)
    for parameter in net.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.05)
    return net


def inputs_of(net, batch=3, size=8):
    torch.manual_seed(1)
    inputs = {"x": torch.randn(batch, 3, size, size), "time": torch.rand(batch) * 1000}
    if net.num_labels:
        inputs["label"] = torch.arange(batch) % net.num_labels
    if net.low_res_channels:
        inputs["low_res"] = torch.randn(batch, 3, size // 2, size // 2)
    return inputs


@pytest.mark.parametrize("conditions", CONDITIONS)
@pytest.mark.parametrize("config", CONFIGS)
def test_every_parameter_gets_a_gradient(config, conditions):
    net = net_of(CONFIGS[config], **CONDITIONS[conditions])
    net(**inputs_of(net)).square().mean().backward()
    without = [name for name, parameter in net.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert without == []


def test_a_new_net_puts_out_zero():
    net = UNet(SMALL, size=8, out_channels=6)
    assert not net(**inputs_of(net)).any()
    assert not any(layer.proj_out.weight.any() for layer in net.modules() if isinstance(layer, Attention))


def test_the_null_label_is_the_last_row():
    net = net_of(SMALL, num_classes=3, null_label=True)
    assert net.label_emb.weight.shape[0] == 4
    inputs = inputs_of(net)
    before = [net(**inputs | {"label": torch.full((3,), label)}).detach() for label in range(4)]
    with torch.no_grad():
        net.label_emb.weight[3] += 1
    after = [net(**inputs | {"label": torch.full((3,), label)}).detach() for label in range(4)]
    assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [True, True, True, False]


@pytest.mark.parametrize("conditions", CONDITIONS)
@pytest.mark.parametrize("config", CONFIGS)
def test_channels_last_changes_no_value_and_no_gradient(config, conditions):
    results = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        net = net_of(replace(CONFIGS[config], dropout=0.0), **CONDITIONS[conditions]).double()
        net.use_memory_format(memory_format)
        inputs = {name: v.double() if v.is_floating_point() else v for name, v in inputs_of(net).items()}
        out = net(**inputs)
        out.square().mean().backward()
        results.append((out.detach(), {name: p.grad for name, p in net.named_parameters()}))
    (out, grads), (other_out, other_grads) = results
    torch.testing.assert_close(out, other_out, rtol=0, atol=1e-12)
    torch.testing.assert_close(grads, other_grads, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("config", CONFIGS)
def test_autocast_to_bfloat16_stays_near_float32(config, memory_format):
    net = net_of(CONFIGS[config], num_classes=3).use_memory_format(memory_format).eval()
    inputs = inputs_of(net)
    with torch.no_grad():
        exact = net(**inputs)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = net(**inputs)
    assert rounded.dtype == torch.bfloat16
    error = (rounded.float() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert 1e-5 < error < 0.03


def test_autocast_trains_every_parameter_in_float32():
    net = net_of(SMALL, num_classes=3)
    with torch.autocast("cpu", torch.bfloat16):
        loss = net(**inputs_of(net)).float().square().mean()
    loss.backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in net.parameters())


class Operators(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[func.name().split("::")[1].split(".")[0]] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("config", ["published", "shift_only", "followers"])
def test_attention_is_always_the_fused_kernel(config, memory_format):
    net = net_of(CONFIGS[config]).use_memory_format(memory_format)
    layers = sum(isinstance(layer, Attention) for layer in net.modules())
    with Operators() as operators:
        net(**inputs_of(net)).square().mean().backward()
    assert layers == 4
    assert operators.seen["_scaled_dot_product_flash_attention_for_cpu"] == layers
    assert operators.seen["_scaled_dot_product_flash_attention_for_cpu_backward"] == layers
    assert not {"_softmax", "bmm", "baddbmm"} & set(operators.seen)


def test_dropout_acts_in_training_alone():
    net, inputs = net_of(CONFIGS["dropout"]), None
    inputs = inputs_of(net)
    assert not torch.equal(net(**inputs), net(**inputs))
    net.eval()
    assert torch.equal(net(**inputs), net(**inputs))
    plain = net_of(replace(CONFIGS["dropout"], dropout=0.0))
    assert torch.equal(plain(**inputs), net(**inputs))


def test_examples_do_not_see_one_another():
    net = net_of(SMALL, num_classes=3).double()
    inputs = {name: v.double() if v.is_floating_point() else v for name, v in inputs_of(net).items()}
    alone = [net(**{name: v[[row]] for name, v in inputs.items()}) for row in range(3)]
    torch.testing.assert_close(net(**inputs), torch.cat(alone), rtol=0, atol=1e-12)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_upsampling_is_nearest_neighbours_then_the_convolution(memory_format):
    torch.manual_seed(0)
    layer = Upsample(4).double().to(memory_format=memory_format)
    x = torch.randn(2, 4, 5, 3, dtype=torch.float64).contiguous(memory_format=memory_format)
    torch.testing.assert_close(layer(x), layer.conv(resampled(x, "up")), rtol=0, atol=1e-13)


def test_time_embedding_is_float32_cosines_then_sines():
    time = torch.tensor([0.0, 1.0, 999.75], dtype=torch.float64)
    frequencies = torch.exp(-torch.log(torch.tensor(10000.0, dtype=torch.float64)) * torch.arange(16) / 16)
    angles = time[:, None] * frequencies
    embedding = time_embedding(time, 32)
    assert embedding.dtype == torch.float32
    torch.testing.assert_close(embedding.double(), torch.cat([angles.cos(), angles.sin()], 1), rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    ("built_with", "missing", "surplus"),
    [
        ({}, [], {"label": torch.zeros(3, dtype=torch.int64)}),
        ({}, [], {"low_res": torch.zeros(3, 3, 4, 4)}),
        ({}, [], {"noise_level": torch.zeros(3)}),
        ({"num_classes": 2}, ["label"], {}),
        ({"low_res_channels": 3}, ["low_res"], {}),
    ],
)
def test_conditioning_that_does_not_fit_the_net_is_refused(built_with, missing, surplus):
    net = net_of(SMALL, **built_with)
    inputs = {name: value for name, value in inputs_of(net).items() if name not in missing} | surplus
    with pytest.raises(ConfigError, match="built with"):
        net(**inputs)


@pytest.mark.parametrize(
    "wrong",
    [
        {"channels": 48},
        {"channels": 0},
        {"multipliers": ()},
        {"multipliers": (1, 0)},
        {"blocks": 0},
        {"dropout": 1.0},
        {"heads": None},
        {"head_channels": 32},
    ],
)
def test_configurations_that_cannot_be_are_refused(wrong):
    with pytest.raises(ConfigError, match=str(next(iter(wrong)))) as error:
        replace(SMALL, **wrong)
    assert str(error.value).count("\n") == 1


@pytest.mark.parametrize("heads", [{"heads": 3}, {"heads": None, "head_channels": 48}, {"heads": 0}])
def test_heads_that_do_not_divide_are_refused(heads):
    with pytest.raises(ConfigError, match="heads"):
        UNet(replace(SMALL, **heads), size=8, out_channels=3)


def test_labels_that_cannot_be_are_refused():
    for options in ({"num_classes": 0}, {"null_label": True}):
        with pytest.raises(ConfigError, match="num_classes"):
            UNet(SMALL, size=8, out_channels=3, **options)


@pytest.mark.parametrize(
    ("size", "multipliers"),
    [(32, (1, 2, 2, 2)), (64, (1, 2, 3, 4)), (256, (1, 1, 2, 2, 4, 4)), (28, (1, 2, 2)), (7, (1,))],
)
def test_default_layouts(size, multipliers):
    assert default_multipliers(size) == multipliers


def test_every_side_has_a_layout_or_names_those_that_do():
    for size in range(1, 1025):
        try:
            multipliers = default_multipliers(size)
        except ConfigError as error:
            named = [int(word) for word in str(error).split("nearest ")[1].split("\n")[0].split(" and ")]
            assert all(default_multipliers(side) for side in named)
            assert all(abs(side - size) < 64 for side in named)
        else:
            assert level_widths(size, len(multipliers))[-1] <= 16


def test_widths_that_the_net_does_not_have_get_no_attention():
    with torch.device("meta"):
        attended = UNet(UNetConfig(attention_at=(16, 8, 7)), size=64, out_channels=3)
        published = UNet(UNetConfig(attention_at=(16, 8)), size=64, out_channels=3)
    assert attended.state_dict().keys() == published.state_dict().keys()

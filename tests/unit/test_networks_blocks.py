"""Blocks in half types: large values, large logits, neighbouring times."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from iddpm.networks import blocks
from iddpm.networks.blocks import Attention, ResidualBlock
from iddpm.networks.embedding import autocast_type, time_embedding
from iddpm.networks.norm import GroupNorm
from iddpm.networks.unet import UNet, UNetConfig

HALVES = [torch.float16, torch.bfloat16]
FORMATS = [torch.contiguous_format, torch.channels_last]
SHAPE = (2, 64, 8, 8)
LARGE = 3e4


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def filled(kind, dtype, memory_format):
    """3e4 everywhere; with signs; with the last bits of the type set or not."""
    signs = drawn(*SHAPE).sign()
    values = {"same": torch.ones(SHAPE), "signs": signs, "near": 1 + 2 * torch.finfo(dtype).eps * signs}[kind]
    return (LARGE * values).to(dtype).contiguous(memory_format=memory_format)


def lively(module, std=0.1):
    """The module with parameters that are neither zeros nor ones."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        if not parameter.any() or (parameter == 1).all():
            nn.init.normal_(parameter, parameter.mean().item(), std)
    return module


def assert_near(got, exact, dtype, roundings=4.0, slack=0.0):
    """As near as so many roundings to the type."""
    assert got.isfinite().all()
    tolerance = roundings * torch.finfo(dtype).eps
    torch.testing.assert_close(
        got.double(), exact.double(), rtol=tolerance, atol=slack + tolerance * exact.abs().max().clamp(min=1).item()
    )


def rounding_of_means(x):
    """What float32 leaves of x less its mean, in units of the standard deviation: 4 roundings of x."""
    spread = (x.double().reshape(SHAPE[0], 32, -1).var(dim=2, correction=0) + 1e-5).sqrt()
    return 4 * torch.finfo(torch.float32).eps * LARGE / spread.min().item()


@pytest.mark.parametrize(
    ("kind", "dtype", "memory_format", "silu", "embedded"),
    list(itertools.product(["same", "signs", "near"], HALVES, FORMATS, [False, True], [False, True])),
)
def test_prc_03_norms_of_large_half_maps_have_float32_sums(kind, dtype, memory_format, silu, embedded):
    norm, x = lively(GroupNorm(SHAPE[1], silu=silu)), filled(kind, dtype, memory_format)
    scale, shift = (drawn(*SHAPE[:2], seed=seed).to(dtype) if embedded else None for seed in (1, 2))
    exact = F.group_norm(x.double(), norm.num_groups, norm.weight.double(), norm.bias.double(), norm.eps)
    if embedded:
        exact = exact * (1 + scale.double()[:, :, None, None]) + shift.double()[:, :, None, None]
    with torch.no_grad(), torch.autocast("cpu", dtype):
        got = norm(x, scale, shift)
    assert got.dtype == dtype
    assert_near(got, F.silu(exact) if silu else exact, dtype, slack=2 * rounding_of_means(x))


@pytest.mark.parametrize(
    ("kind", "dtype", "memory_format", "scale_shift_norm"),
    list(itertools.product(["same", "signs"], HALVES, FORMATS, [False, True])),
)
def test_prc_03_residual_blocks_of_large_half_maps(kind, dtype, memory_format, scale_shift_norm):
    block = ResidualBlock(64, 64, embedding_channels=32, scale_shift_norm=scale_shift_norm, dropout=0.0)
    block, x = lively(block).to(memory_format=memory_format), filled(kind, dtype, memory_format)
    embedding = drawn(SHAPE[0], 32).requires_grad_()
    with torch.autocast("cpu", dtype):
        whole = block(x, embedding)
        branch = block._branch(embedding, x)
    branch.float().mean().backward()
    assert whole.isfinite().all()
    assert embedding.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in block.parameters())
    exact = block.double()._branch(embedding.double(), x.double()).detach()
    assert_near(branch, exact, dtype, roundings=8, slack=20 * rounding_of_means(x))


@pytest.mark.parametrize(
    ("kind", "dtype", "memory_format", "order"),
    list(itertools.product(["same", "signs"], HALVES, FORMATS, ["heads_first", "qkv_first"])),
)
def test_prc_03_attention_over_large_half_maps(kind, dtype, memory_format, order):
    block, x = lively(Attention(64, heads=4, order=order)), filled(kind, dtype, memory_format)
    with torch.no_grad(), torch.autocast("cpu", dtype):
        whole, branch = block(x), block._branch(x)
    assert whole.isfinite().all()
    assert_near(
        branch, block.double()._branch(x.double()).detach(), dtype, roundings=8, slack=20 * rounding_of_means(x)
    )


def in_float64(q, k, v):
    """Attention from the same half q, k and v, one product after the other."""
    q, k, v = q.double(), k.double(), v.double()
    logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    assert logits.max() > 1e5  # beyond float16
    return logits.softmax(dim=-1) @ v


@pytest.mark.parametrize("dtype", HALVES)
def test_prc_03_softmax_of_large_logits_is_that_of_float64(dtype, monkeypatch):
    block, x = lively(Attention(64, heads=4, order="heads_first")), drawn(*SHAPE).to(dtype)
    with torch.no_grad():
        block.qkv.weight.view(4, 3, 16, 64)[:, :2] *= 500  # q and k, not v
    with torch.no_grad(), torch.autocast("cpu", dtype):
        got = block(x)
        monkeypatch.setattr(blocks.F, "scaled_dot_product_attention", lambda q, k, v: in_float64(q, k, v).to(q.dtype))
        exact = block(x)
    assert (got - x).abs().max() > 0.1
    assert_near(got, exact, dtype)


def net_of_times(**options):
    return lively(UNet(UNetConfig(channels=32, multipliers=(1,), blocks=1, heads=2), size=8, out_channels=3, **options))


def embeddings(net, times, label=None):
    """What the blocks are told."""
    seen = []
    hook = net.middle_block[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1]))
    with torch.no_grad():
        net(torch.zeros(len(times), 3, 8, 8), torch.tensor(times), label)
    hook.remove()
    return seen[0]


@pytest.mark.parametrize("dtype", HALVES)
def test_prc_03_neighbouring_times_stay_apart_in_half_types(dtype):
    assert time_embedding(torch.tensor([999.0]), 32).dtype == torch.float32
    net = net_of_times(num_classes=2)
    times, label = [998.0, 999.0], torch.tensor([1, 1])
    with torch.autocast("cpu", dtype):
        half = embeddings(net, times, label)
    exact = embeddings(net, times, label)
    assert exact.dtype == torch.float32
    assert half.dtype == dtype
    assert torch.equal(half, exact.to(dtype))  # rounded once, at the end
    assert (half[0] != half[1]).any(dim=-1).all()


def test_the_type_of_autocast_is_known_where_there_is_such_a_thing():
    cpu = torch.device("cpu")
    assert autocast_type(cpu) is None
    with torch.autocast("cpu", torch.float16):
        assert autocast_type(cpu) == torch.float16
        assert autocast_type(torch.device("meta")) is None

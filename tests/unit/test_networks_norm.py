"""Group norm with scale, shift and SiLU: both ways through memory, in every type."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from iddpm.networks.norm import GroupNorm

FORMATS = [torch.contiguous_format, torch.channels_last]
EXAMPLES, CHANNELS, SIDE = 2, 64, 6


def drawn(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def norm_of(dtype=torch.float64, silu=True):
    norm = GroupNorm(CHANNELS, silu=silu).to(dtype)
    nn.init.normal_(norm.weight, 1, 0.3)
    nn.init.normal_(norm.bias, 0, 0.3)
    return norm


def in_steps(x, norm, scale, shift, silu):
    y = F.group_norm(x, norm.num_groups, norm.weight, norm.bias, norm.eps)
    if scale is not None:
        y = y * (1 + scale[:, :, None, None]) + shift[:, :, None, None]
    return F.silu(y) if silu else y


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize("silu", [False, True])
def test_values_and_gradients_are_those_of_the_steps_one_by_one(memory_format, embedded, silu):
    norm = norm_of(silu=silu)
    x = (3 + drawn(EXAMPLES, CHANNELS, SIDE, SIDE)).contiguous(memory_format=memory_format).requires_grad_()
    scale, shift = (
        (drawn(EXAMPLES, CHANNELS).requires_grad_(), drawn(CHANNELS, EXAMPLES).T.requires_grad_())
        if embedded
        else (None, None)
    )
    leaves = [x, norm.weight, norm.bias, *([scale, shift] if embedded else [])]
    ours, expected = norm(x, scale, shift), in_steps(x, norm, scale, shift, silu)
    assert ours.is_contiguous(memory_format=memory_format)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)
    weights = drawn(*x.shape)
    for got, want in zip(
        torch.autograd.grad((ours * weights).sum(), leaves),
        torch.autograd.grad((expected * weights).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("memory_format", FORMATS)
def test_gradients_are_those_of_finite_differences(memory_format):
    norm = GroupNorm(32).double()
    x = drawn(2, 32, 2, 1).contiguous(memory_format=memory_format).requires_grad_()
    scale, shift = drawn(2, 32).requires_grad_(), drawn(2, 32).requires_grad_()
    weight, bias = drawn(32).requires_grad_(), drawn(32).requires_grad_()

    def call(x, scale, shift, weight, bias):
        return torch.func.functional_call(norm, {"weight": weight, "bias": bias}, (x, scale, shift))

    assert torch.autograd.gradcheck(call, (x, scale, shift, weight, bias))


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("embedded", [False, True])
def test_half_types_near_their_limit_stay_finite_and_accurate(memory_format, dtype, embedded):
    """Squares of 3e4 overflow float16: the sums are taken in float32."""
    norm = norm_of(torch.float32)
    x = (3e4 * drawn(EXAMPLES, CHANNELS, SIDE, SIDE).tanh()).to(dtype).contiguous(memory_format=memory_format)
    scale, shift = (
        (drawn(EXAMPLES, CHANNELS).to(dtype), drawn(EXAMPLES, CHANNELS).to(dtype)) if embedded else (None, None)
    )
    y = norm(x.requires_grad_(), scale, shift)
    y.float().square().sum().backward()
    assert y.dtype == dtype
    assert y.isfinite().all()
    assert x.grad.dtype == dtype
    assert x.grad.isfinite().all()
    assert norm.weight.grad.dtype == torch.float32
    wide = [None if part is None else part.float() for part in (scale, shift)]
    torch.testing.assert_close(y.float(), in_steps(x.float(), norm, *wide, silu=True), rtol=0.02, atol=0.05)


@pytest.mark.parametrize("memory_format", FORMATS)
def test_autocast_does_not_change_the_type(memory_format):
    x = drawn(EXAMPLES, CHANNELS, SIDE, SIDE).to(torch.bfloat16).contiguous(memory_format=memory_format)
    with torch.autocast("cpu", torch.bfloat16):
        assert norm_of(torch.float32)(x).dtype == torch.bfloat16


@pytest.mark.parametrize("memory_format", FORMATS)
def test_a_large_mean_does_not_swallow_the_variance(memory_format):
    x = 1000 + drawn(EXAMPLES, CHANNELS, SIDE, SIDE)
    y = GroupNorm(CHANNELS, silu=False)(x.float().contiguous(memory_format=memory_format))
    exact = nn.GroupNorm(32, CHANNELS).double()(x)
    torch.testing.assert_close(y.double(), exact, rtol=0, atol=2e-3)

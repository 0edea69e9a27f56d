"""Group norm with what surrounds it in a U-Net: a scale and shift per example, and SiLU.

Two ways to the same values, chosen by how the map lies in memory, because torch's kernel is quick on contiguous maps and
its backward pass several times slower than the sum of its parts on channels_last ones.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

__all__ = ["GROUPS", "GroupNorm"]

GROUPS = 32


class GroupNorm(nn.GroupNorm):
    """Group norm of 32 groups, then times `1 + scale`, plus `shift`, then SiLU; in the type of its input.

    Sums are taken in float32 or better. Neither way goes through F.group_norm, for which autocast would cast the whole
    map to float32 and back.

    Args:
        channels: Width of the map, a multiple of 32.
        silu: Whether SiLU follows.
    """

    def __init__(self, channels: int, *, silu: bool = True):
        super().__init__(GROUPS, channels)
        self.silu = silu

    def forward(
        self,
        input: Float[Tensor, "b c h w"],
        scale: Float[Tensor, "b c"] | None = None,
        shift: Float[Tensor, "b c"] | None = None,
    ) -> Float[Tensor, "b c h w"]:
        """The map, normalized."""
        x, weight, bias = input, self.weight[None], self.bias[None]
        if scale is not None and shift is not None:
            weight, bias = weight * (1 + scale), torch.addcmul(shift, bias, 1 + scale)
        if _is_channels_last(x):
            return _ChannelsLastNorm.apply(x, weight, bias, self.num_groups, self.eps, self.silu)
        y = _contiguous_norm(x.contiguous(), weight.to(x.dtype), bias.to(x.dtype), self.num_groups, self.eps)
        return F.silu(y) if self.silu else y


def _is_channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def _contiguous_norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    """The kernel of F.group_norm, in one pass over the map.

    It takes one weight a channel. Where each example has its own, the batch is folded into the channels: one example
    of b x c channels in b x groups groups.
    """
    b, c, h, w = x.shape
    folds = len(weight)
    y = x.view(b // folds, c * folds, h, w)
    weight, bias = weight.flatten(), bias.flatten()
    y, _, _ = torch.native_group_norm(y, weight, bias, b // folds, c * folds, h * w, groups * folds, eps)
    return y.view(x.shape)


class _ChannelsLastNorm(torch.autograd.Function):
    """The norm as sums over positions and element-wise steps, which run at the speed of memory on channels_last maps.

    Only the input is kept for the backward pass; what comes before SiLU is computed again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, silu: bool) -> Tensor:
        precise = x.to(torch.promote_types(x.dtype, torch.float32))
        mean, rstd = _moments(precise, groups, eps)
        weight, bias = weight.to(precise.dtype), bias.to(precise.dtype)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.groups, ctx.silu = groups, silu
        y = _affine(precise, weight, bias, mean, rstd)
        return (F.silu(y, inplace=True) if silu else y).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # its stub names ctx as a keyword
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        x_dtype, x = x.dtype, x.to(mean.dtype)
        grad = grad_outputs[0].to(mean.dtype)
        if ctx.silu:
            grad = torch.ops.aten.silu_backward(grad, _affine(x, weight, bias, mean, rstd))
        grad_bias = grad.sum((2, 3))
        grad_weight = ((grad * x).sum((2, 3)) - mean * grad_bias) * rstd
        # With z the normalized map: dx = rstd (w grad - mean of w grad - z mean of (w grad z)), means over a group.
        through_mean = _group_mean(weight * grad_bias, x, ctx.groups)
        through_std = _group_mean(weight * grad_weight, x, ctx.groups)
        slope = -through_std * rstd.square()
        dx = torch.addcmul(_per_map(-slope * mean - through_mean * rstd), x, _per_map(slope))
        dx = dx.addcmul_(grad, _per_map(weight * rstd))
        shared = len(weight) == 1
        return (
            dx.to(x_dtype),
            grad_weight.sum(0, keepdim=True) if shared else grad_weight,
            grad_bias.sum(0, keepdim=True) if shared else grad_bias,
            None,
            None,
            None,
        )


def _moments(x: Float[Tensor, "b c h w"], groups: int, eps: float) -> tuple[Float[Tensor, "b c"], Float[Tensor, "b c"]]:
    """Mean and 1 / std of the group of each channel, from differences to the mean."""
    mean = _group_mean(x.sum((2, 3)), x, groups)
    variance = _group_mean((x - _per_map(mean)).square_().sum((2, 3)), x, groups)
    return mean, (variance + eps).rsqrt()


def _group_mean(sums: Float[Tensor, "b c"], x: Float[Tensor, "b c h w"], groups: int) -> Float[Tensor, "b c"]:
    """For each channel the mean over its group, from the sums over positions."""
    b, c, h, w = x.shape
    means = sums.view(b, groups, c // groups).sum(2, keepdim=True) / (h * w * c // groups)
    return means.expand(-1, -1, c // groups).reshape(b, c)


def _affine(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    slope = weight * rstd
    return torch.addcmul(_per_map(bias - mean * slope), x, _per_map(slope))


def _per_map(values: Float[Tensor, "b c"]) -> Float[Tensor, "b c 1 1"]:
    return values[:, :, None, None]

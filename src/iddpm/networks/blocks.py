"""The parts of the U-Net: residual blocks, attention, resampling.

Parameter names are those of the published checkpoints, hence the sequences whose activations hold no parameters.
"""

from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from iddpm.networks.norm import GroupNorm

__all__ = [
    "Attention",
    "AttentionOrder",
    "Downsample",
    "Resampling",
    "ResidualBlock",
    "Upsample",
    "resampled",
    "zeroed",
]

AttentionOrder = Literal["heads_first", "qkv_first"]
Resampling = Literal["up", "down"]

_M = TypeVar("_M", bound=nn.Module)


def zeroed(module: _M) -> _M:
    """The module with all its parameters at zero."""
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


class ResidualBlock(nn.Module):
    """norm, SiLU, conv; the embedding; norm, SiLU, dropout, conv; plus the input [ND21 App. A].

    Args:
        channels: Width of the input.
        out_channels: Width of the output; where it differs, the skip is a 1x1 convolution.
        embedding_channels: Width of the embedding.
        scale_shift_norm: The embedding scales and shifts the second norm; else it is added before it.
        dropout: Probability, before the last convolution.
        resampling: Whether branch and skip are resampled by two before the first convolution.
    """

    def __init__(
        self,
        channels: int,
        out_channels: int,
        *,
        embedding_channels: int,
        scale_shift_norm: bool,
        dropout: float,
        resampling: Resampling | None = None,
    ):
        super().__init__()
        self.scale_shift_norm = scale_shift_norm
        self.dropout = dropout
        self.resampling: Resampling | None = resampling
        embedded = 2 * out_channels if scale_shift_norm else out_channels
        self.in_layers = nn.Sequential(GroupNorm(channels), nn.SiLU(), nn.Conv2d(channels, out_channels, 3, padding=1))
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(embedding_channels, embedded))
        self.out_layers = nn.Sequential(
            GroupNorm(out_channels),
            nn.SiLU(),
            nn.Dropout(dropout),
            zeroed(nn.Conv2d(out_channels, out_channels, 3, padding=1)),
        )
        same = channels == out_channels
        self.skip_connection = nn.Identity() if same else nn.Conv2d(channels, out_channels, 1)

    def forward(self, x: Float[Tensor, "b c h w"], embedding: Float[Tensor, "b e"]) -> Float[Tensor, "b d i j"]:
        """`embedding` has been through SiLU already: it is the same for every block."""
        in_norm, _, in_conv = self.in_layers
        out_norm, _, _, out_conv = self.out_layers
        _, project = self.emb_layers
        h = in_norm(x)
        if self.resampling:
            h, x = resampled(h, self.resampling), resampled(x, self.resampling)
        h = in_conv(h)
        if self.scale_shift_norm:
            h = out_norm(h, *project(embedding).chunk(2, dim=1))
        else:
            h = out_norm(h + project(embedding).to(h.dtype)[:, :, None, None])
        if self.dropout and self.training:
            h = F.dropout(h, self.dropout)
        return self.skip_connection(x) + out_conv(h)


class Attention(nn.Module):
    """Self-attention over the positions of a map, with a residual.

    Args:
        channels: Width of the map.
        heads: Number of heads.
        order: How the 3 x width outputs of `qkv` are laid out: within each head q, k, v (`heads_first`), or all of
            q, then k, then v, each with its heads (`qkv_first`) [DN21].
    """

    def __init__(self, channels: int, *, heads: int, order: AttentionOrder):
        super().__init__()
        self.heads = heads
        self.order: AttentionOrder = order
        self.norm = GroupNorm(channels, silu=False)
        self.qkv = nn.Conv1d(channels, 3 * channels, 1)
        self.proj_out = zeroed(nn.Conv1d(channels, channels, 1))

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Positions are rows here and channels columns, so that q, k and v are contiguous where attention is fused."""
        tokens = self.norm(x).flatten(2).transpose(1, 2)
        b, positions, channels = tokens.shape
        qkv = F.linear(tokens, self.qkv.weight.squeeze(2), self.qkv.bias)
        if self.order == "heads_first":
            q, k, v = qkv.view(b, positions, self.heads, 3, -1).permute(3, 0, 2, 1, 4)
        else:
            q, k, v = qkv.view(b, positions, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, positions, channels)
        out = F.linear(attended, self.proj_out.weight.squeeze(2), self.proj_out.bias)
        return x + out.transpose(1, 2).unflatten(2, x.shape[2:])


class Downsample(nn.Module):
    """Half the side: a 3x3 convolution of stride 2."""

    def __init__(self, channels: int):
        super().__init__()
        self.op = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c i j"]:
        return self.op(x)


class Upsample(nn.Module):
    """Twice the side: nearest neighbours, then a 3x3 convolution."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c i j"]:
        if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
            return F.conv_transpose2d(x, _upsampling_kernel(self.conv.weight), self.conv.bias, stride=2, padding=1)
        return self.conv(resampled(x, "up"))


def _upsampling_kernel(kernel: Float[Tensor, "o i 3 3"]) -> Float[Tensor, "i o 4 4"]:
    """The transposed convolution of stride 2 that equals doubling by nearest neighbours, then `kernel`.

    A pixel and its three copies meet `kernel` at four offsets, whose sum is one kernel of 4x4. It needs 4/9 of the
    products and no doubled map: half the time on CPU, forward and backward.
    """
    padded = F.pad(kernel, (1, 1, 1, 1))
    rows = padded[:, :, 1:] + padded[:, :, :-1]
    return (rows[..., 1:] + rows[..., :-1]).flip(2, 3).transpose(0, 1)


def resampled(x: Float[Tensor, "b c h w"], resampling: Resampling) -> Float[Tensor, "b c i j"]:
    """Twice the side by nearest neighbours, or half of it by 2x2 averages."""
    if resampling == "up":
        return F.interpolate(x, scale_factor=2, mode="nearest")
    return F.avg_pool2d(x, 2)

"""The parts of the U-Net: residual blocks, attention, resampling.

Parameter names are those of the published checkpoints, hence the sequences whose activations hold no parameters.
"""

from collections.abc import Callable
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from iddpm.networks.norm import GroupNorm
from iddpm.runtime.memory import ActivationCheckpointing

__all__ = [
    "Attention",
    "AttentionOrder",
    "Checkpointed",
    "Downsample",
    "Resampling",
    "ResidualBlock",
    "Stage",
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


class Checkpointed(nn.Module):
    """A module that may compute parts of itself again in the backward pass.

    "norms": what goes into a convolution, a norm of what is kept; "blocks": all of a block but what goes into it. A part
    is run again only up to its last operation, whose inputs are all that its backward pass needs: a norm and the
    convolution after it cost one more norm, and no convolution.
    """

    activation_checkpointing: ActivationCheckpointing = "none"

    @property
    def checkpointing(self) -> ActivationCheckpointing:
        """What is computed again of what is run now: nothing where no gradient is wanted."""
        return self.activation_checkpointing if self.training and torch.is_grad_enabled() else "none"

    def recomputed(
        self,
        part: Callable[..., Tensor],
        *inputs: Tensor,
        when: tuple[ActivationCheckpointing, ...] = ("norms", "blocks"),
        random: bool = False,
    ) -> Tensor:
        """`part(*inputs)`, of which only the inputs are kept in these modes.

        `random` parts are computed again with the same random numbers.
        """
        if self.checkpointing not in when:
            return part(*inputs)
        return checkpoint(part, *inputs, use_reentrant=False, preserve_rng_state=random)


class ResidualBlock(Checkpointed):
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

    def forward(
        self,
        x: Float[Tensor, "b c h w"],
        embedding: Float[Tensor, "b e"],
        beside: Float[Tensor, "b s h w"] | None = None,
    ) -> Float[Tensor, "b d i j"]:
        """The input is `x`, or `x` with the channels of `beside` after its own.

        `embedding` has been through SiLU already: it is the same for every block.
        """
        maps = (x,) if beside is None else (x, beside)
        if self.checkpointing == "none":
            maps = (_joined(*maps),)
        # Two maps stay apart where the backward pass can join them again: the way down keeps one of them already.
        skip = self._skip(*maps) if len(maps) == 1 else self.recomputed(self._skip, *maps)
        return skip + self.recomputed(self._branch, embedding, *maps, when=("blocks",), random=self.dropout > 0)

    def _skip(self, *maps: Tensor) -> Tensor:
        x = _joined(*maps)
        return self.skip_connection(resampled(x, self.resampling) if self.resampling else x)

    def _branch(self, embedding: Tensor, *maps: Tensor) -> Tensor:
        _, project = self.emb_layers
        h = self.recomputed(self._first, *maps, when=("norms",))
        embedded = project(embedding)
        if self.scale_shift_norm:
            scale_shift = embedded.chunk(2, dim=1)
        else:
            h, scale_shift = h + embedded.to(h.dtype)[:, :, None, None], ()
        return self.recomputed(self._second, h, *scale_shift, when=("norms",), random=self.dropout > 0)

    def _first(self, *maps: Tensor) -> Tensor:
        norm, _, conv = self.in_layers
        h = norm(_joined(*maps))
        return conv(resampled(h, self.resampling) if self.resampling else h)

    def _second(self, h: Tensor, *scale_shift: Tensor) -> Tensor:
        norm, _, _, conv = self.out_layers
        h = norm(h, *scale_shift)
        return conv(F.dropout(h, self.dropout) if self.dropout and self.training else h)


class Attention(Checkpointed):
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
        return x + self.recomputed(self._branch, x, when=("blocks",))

    def _branch(self, x: Tensor) -> Tensor:
        qkv = self.recomputed(self._project, x, when=("norms",))
        b, positions, _ = qkv.shape
        if self.order == "heads_first":
            q, k, v = qkv.view(b, positions, self.heads, 3, -1).permute(3, 0, 2, 1, 4)
        else:
            q, k, v = qkv.view(b, positions, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        out = F.linear(attended, self.proj_out.weight.squeeze(2), self.proj_out.bias)
        return out.transpose(1, 2).unflatten(2, x.shape[2:])

    def _project(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).flatten(2).transpose(1, 2)
        return F.linear(tokens, self.qkv.weight.squeeze(2), self.qkv.bias)


class Stage(nn.ModuleList):
    """Layers in sequence, the residual blocks among them given the embedding too."""

    def forward(
        self,
        x: Float[Tensor, "b c h w"],
        embedding: Float[Tensor, "b e"],
        beside: Float[Tensor, "b s h w"] | None = None,
    ) -> Float[Tensor, "b d i j"]:
        """`beside` goes into the first layer, which is then a residual block."""
        for layer in self:
            x = layer(x, embedding, beside) if isinstance(layer, ResidualBlock) else layer(x)
            beside = None
        return x


class Downsample(nn.Module):
    """Half the side: a 3x3 convolution of stride 2."""

    def __init__(self, channels: int):
        super().__init__()
        self.op = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c i j"]:
        return self.op(x)


class Upsample(Checkpointed):
    """Twice the side: nearest neighbours, then a 3x3 convolution."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c i j"]:
        if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
            return F.conv_transpose2d(x, _upsampling_kernel(self.conv.weight), self.conv.bias, stride=2, padding=1)
        return self.recomputed(self._doubled, x)

    def _doubled(self, x: Tensor) -> Tensor:
        return self.conv(resampled(x, "up"))


def _upsampling_kernel(kernel: Float[Tensor, "o i 3 3"]) -> Float[Tensor, "i o 4 4"]:
    """The transposed convolution of stride 2 that equals doubling by nearest neighbours, then `kernel`.

    A pixel and its three copies meet `kernel` at four offsets, whose sum is one kernel of 4x4. It needs 4/9 of the
    products and no doubled map: half the time on CPU, forward and backward.
    """
    padded = F.pad(kernel, (1, 1, 1, 1))
    rows = padded[:, :, 1:] + padded[:, :, :-1]
    return (rows[..., 1:] + rows[..., :-1]).flip(2, 3).transpose(0, 1)


def _joined(*maps: Tensor) -> Tensor:
    return maps[0] if len(maps) == 1 else torch.cat(maps, dim=1)


def resampled(x: Float[Tensor, "b c h w"], resampling: Resampling) -> Float[Tensor, "b c i j"]:
    """Twice the side by nearest neighbours, or half of it by 2x2 averages."""
    if resampling == "up":
        return F.interpolate(x, scale_factor=2, mode="nearest")
    return F.avg_pool2d(x, 2)

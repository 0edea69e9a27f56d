"""The U-Net of Improved DDPM and its followers, with every published option [ND21 App. A; DN21].

Parameter names are those of the published checkpoints: a published state dict loads strictly.
"""

import contextlib
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from iddpm.networks.blocks import (
    Attention,
    AttentionOrder,
    Checkpointed,
    Downsample,
    Resampling,
    ResidualBlock,
    Stage,
    Upsample,
    zeroed,
)
from iddpm.networks.embedding import autocast_type, time_embedding
from iddpm.networks.layout import default_multipliers, level_widths
from iddpm.networks.norm import GROUPS, GroupNorm
from iddpm.runtime.errors import ConfigError
from iddpm.runtime.memory import ActivationCheckpointing

__all__ = ["UNet", "UNetConfig"]


@dataclass(frozen=True, kw_only=True)
class UNetConfig:
    """The shape of a U-Net, whatever it is trained on.

    Attributes:
        channels: Width of the finest level, a multiple of 32 (the group norms have 32 groups).
        multipliers: Width of each level in units of `channels`, finest first; None: the default for the side.
        blocks: Residual blocks a level on the way down; the way up has one more.
        attention_at: Widths in pixels of the maps that get attention. The middle of the net always has it. Widths that
            a net does not have are passed over, so that one list serves every side, as in the published configurations.
        heads: Number of attention heads at every width; None where `head_channels` says it.
        head_channels: Channels of each head; None where `heads` says it.
        scale_shift_norm: The embedding scales and shifts the norms; else it is added before them.
        dropout: Probability inside the residual blocks.
        resample: Between levels a convolution, or a residual block that resamples.
        attention_order: Layout of the attention weights: q, k, v within each head, or heads within q, k, v.

    Raises:
        ConfigError: A value is not possible.
    """

    channels: int = 128
    multipliers: tuple[int, ...] | None = None
    blocks: int = 3
    attention_at: tuple[int, ...] = (16, 8)
    heads: int | None = 4
    head_channels: int | None = None
    scale_shift_norm: bool = True
    dropout: float = 0.0
    resample: Literal["conv", "resblock"] = "conv"
    attention_order: AttentionOrder = "heads_first"

    def __post_init__(self):
        if self.channels < GROUPS or self.channels % GROUPS:
            raise ConfigError(
                f"channels={self.channels}: allowed are multiples of {GROUPS} (group norm has {GROUPS} groups)",
                f"set channels to {max(round(self.channels / GROUPS), 1) * GROUPS}",
            )
        if self.multipliers is not None and (not self.multipliers or min(self.multipliers) < 1):
            raise ConfigError(
                f"multipliers={self.multipliers}: allowed are whole numbers from 1", "for example 1 2 2 2"
            )
        if self.blocks < 1:
            raise ConfigError(f"blocks={self.blocks}: allowed are whole numbers from 1", "set blocks to 1, 2 or 3")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout={self.dropout}: allowed is 0 <= dropout < 1", "0 turns it off")
        if (self.heads is None) == (self.head_channels is None):
            raise ConfigError(
                f"heads={self.heads}, head_channels={self.head_channels}: exactly one of them is given",
                "set the other to None",
            )

    def heads_for(self, width: int) -> int:
        """Number of attention heads of a map with `width` channels."""
        heads = self.heads if self.head_channels is None else width // self.head_channels
        if not heads or heads < 1 or width % heads or (self.head_channels and width % self.head_channels):
            raise ConfigError(
                f"{width} channels do not split into heads (heads={self.heads}, head_channels={self.head_channels})",
                f"choose a divisor of {width}",
            )
        return heads


class UNet(Checkpointed):
    """A U-Net over square images, told the time and, where built so, a label and a low-resolution image.

    Args:
        config: The shape.
        size: Side of the images in pixels.
        in_channels: Channels of `x`, without those of `low_res`.
        out_channels: Channels of the output (twice those of `x` where a variance is learned).
        num_classes: Number of labels; None for a net without them.
        null_label: Whether the label table has one more row, the last, that means "no label".
        low_res_channels: Channels of a low-resolution image shown beside `x`; 0 for none.

    Attributes:
        multipliers: The width of each level in units of `config.channels`, finest first.
        widths: The map width of each level, finest first.
        memory_format: How maps lie in memory; see `use_memory_format`.

    Raises:
        ConfigError: The side does not divide, or the heads do not.
    """

    def __init__(
        self,
        config: UNetConfig,
        *,
        size: int,
        in_channels: int = 3,
        out_channels: int,
        num_classes: int | None = None,
        null_label: bool = False,
        low_res_channels: int = 0,
    ):
        super().__init__()
        self.config = config
        self.multipliers = config.multipliers or default_multipliers(size)
        self.widths = level_widths(size, len(self.multipliers))
        self.num_labels = _num_labels(num_classes, null_label)
        self.low_res_channels = low_res_channels
        self.memory_format = torch.contiguous_format
        width = config.channels * self.multipliers[0]
        embedding_channels = 4 * config.channels
        self.time_embed = nn.Sequential(
            nn.Linear(config.channels, embedding_channels),
            nn.SiLU(),
            nn.Linear(embedding_channels, embedding_channels),
        )
        if self.num_labels:
            self.label_emb = nn.Embedding(self.num_labels, embedding_channels)
        self.input_blocks, skips = self._way_down(in_channels + low_res_channels)
        self.middle_block = self._middle()
        self.output_blocks = self._way_up(skips)
        self.out = nn.Sequential(GroupNorm(width), nn.SiLU(), zeroed(nn.Conv2d(width, out_channels, 3, padding=1)))

    def forward(
        self,
        x: Float[Tensor, "b c h w"],
        time: Float[Tensor, "b"],
        label: Int[Tensor, "b"] | None = None,
        low_res: Float[Tensor, "b l i j"] | None = None,
        noise_level: Float[Tensor, "b"] | None = None,
    ) -> Float[Tensor, "b o h w"]:
        """The net's raw output. `time` is the model time, used as given.

        Raises:
            ConfigError: What is given is not what the net was built for, or a side does not divide.
        """
        self._check_conditioning(label, low_res, noise_level)
        for side in x.shape[2:]:
            level_widths(side, len(self.widths))
        embedding = self._embedding(time, label)
        if low_res is not None:
            x = torch.cat([x, F.interpolate(low_res.to(x.dtype), x.shape[2:], mode="bilinear")], dim=1)
        h = x.contiguous(memory_format=self.memory_format)
        skips: list[Tensor] = []
        for stage in self.input_blocks:
            h = stage(h, embedding)
            skips.append(h)
        h = self.middle_block(h, embedding)
        for stage in self.output_blocks:
            h = stage(h, embedding, skips.pop())
        return self.recomputed(self._last, h)

    def _last(self, h: Tensor) -> Tensor:
        norm, _, conv = self.out
        return conv(norm(h))

    def units(self) -> list[nn.Module]:
        """Parts of some size that are called as a whole: residual blocks, attention, resampling."""
        kinds = (ResidualBlock, Attention, Downsample, Upsample)
        return [module for module in self.modules() if isinstance(module, kinds)]

    def float32_parameters(self) -> list[nn.Parameter]:
        """Parameters that compute in float32 whatever the precision: of norms, the time embedding and labels."""
        kinds = (GroupNorm, nn.Embedding)
        found = [p for module in self.modules() if isinstance(module, kinds) for p in module.parameters()]
        return [*found, *self.time_embed.parameters()]

    def use_memory_format(self, memory_format: torch.memory_format) -> "UNet":
        """Lays maps and convolution weights out in `memory_format` from now on; the values stay."""
        self.memory_format = memory_format
        return self.to(memory_format=memory_format)  # pyright: ignore[reportCallIssue]  # documented, not in its stubs

    def use_activation_checkpointing(self, mode: ActivationCheckpointing) -> "UNet":
        """Keeps less for the backward pass from now on, at the price of computing it again; values and gradients stay."""
        for module in self.modules():
            if isinstance(module, Checkpointed):
                module.activation_checkpointing = mode
        return self

    def _embedding(self, time: Tensor, label: Tensor | None) -> Tensor:
        """Computed in the type of the weights, and handed to the blocks in that of autocast."""
        dtype = next(self.time_embed.parameters()).dtype
        half = autocast_type(time.device)
        with torch.autocast(time.device.type, enabled=False) if half else contextlib.nullcontext():
            embedding = self.time_embed(time_embedding(time, self.config.channels).to(dtype))
            if label is not None:
                embedding = embedding + self.label_emb(label)
            embedding = F.silu(embedding)
        return embedding.to(half) if half else embedding

    def _check_conditioning(self, label: Tensor | None, low_res: Tensor | None, noise_level: Tensor | None) -> None:
        for name, given, built in (
            ("label", label is not None, self.num_labels > 0),
            ("low-resolution image", low_res is not None, self.low_res_channels > 0),
            ("noise level", noise_level is not None, False),
        ):
            if given != built:
                raise ConfigError(
                    f"the net was {'given' if given else 'not given'} a {name} and was built {'with' if built else 'without'} one",
                    f"call it {'with' if built else 'without'} a {name}, or build it {'with' if given else 'without'} one",
                )

    def _way_down(self, in_channels: int) -> tuple[nn.ModuleList, list[int]]:
        """The stages of the way down, and the width of what each leaves for the way up."""
        width = self.config.channels * self.multipliers[0]
        stages = [Stage([nn.Conv2d(in_channels, width, 3, padding=1)])]
        skips = [width]
        for level, multiplier in enumerate(self.multipliers):
            for _ in range(self.config.blocks):
                stages.append(Stage(self._block(width, self.config.channels * multiplier, level)))
                width = self.config.channels * multiplier
                skips.append(width)
            if level < len(self.multipliers) - 1:
                stages.append(Stage([self._resample(width, "down")]))
                skips.append(width)
        return nn.ModuleList(stages), skips

    def _middle(self) -> Stage:
        width = self.config.channels * self.multipliers[-1]
        return Stage([self._residual(width, width), self._attention(width), self._residual(width, width)])

    def _way_up(self, skips: list[int]) -> nn.ModuleList:
        skips = list(skips)
        width = skips[-1]
        stages: list[Stage] = []
        for level, multiplier in reversed(list(enumerate(self.multipliers))):
            for index in range(self.config.blocks + 1):
                layers = self._block(width + skips.pop(), self.config.channels * multiplier, level)
                width = self.config.channels * multiplier
                if level and index == self.config.blocks:
                    layers.append(self._resample(width, "up"))
                stages.append(Stage(layers))
        return nn.ModuleList(stages)

    def _block(self, channels: int, out_channels: int, level: int) -> list[nn.Module]:
        layers: list[nn.Module] = [self._residual(channels, out_channels)]
        if self.widths[level] in self.config.attention_at:
            layers.append(self._attention(out_channels))
        return layers

    def _residual(self, channels: int, out_channels: int, resampling: Resampling | None = None) -> ResidualBlock:
        return ResidualBlock(
            channels,
            out_channels,
            embedding_channels=4 * self.config.channels,
            scale_shift_norm=self.config.scale_shift_norm,
            dropout=self.config.dropout,
            resampling=resampling,
        )

    def _attention(self, channels: int) -> Attention:
        return Attention(channels, heads=self.config.heads_for(channels), order=self.config.attention_order)

    def _resample(self, channels: int, resampling: Resampling) -> nn.Module:
        if self.config.resample == "resblock":
            return self._residual(channels, channels, resampling)
        return Downsample(channels) if resampling == "down" else Upsample(channels)


def _num_labels(num_classes: int | None, null_label: bool) -> int:
    if num_classes is None:
        if null_label:
            raise ConfigError(
                "a null label without classes: allowed only where num_classes is given", "give num_classes"
            )
        return 0
    if num_classes < 1:
        raise ConfigError(
            f"num_classes={num_classes}: allowed are whole numbers from 1", "None for a net without labels"
        )
    return num_classes + null_label

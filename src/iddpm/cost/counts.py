"""What a module is made of and what a forward pass costs, counted on the meta device: no memory, no arithmetic."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

__all__ = ["Counts", "Macs", "counts"]

KINDS = {
    "convolution": "conv",
    "_convolution": "conv",
    "cudnn_convolution": "conv",
    "addmm": "linear",
    "mm": "linear",
    "bmm": "attention",  # on the meta device attention runs as two batched matrix products; nothing else here is one
    "baddbmm": "attention",
}


@dataclass(frozen=True, kw_only=True)
class Macs:
    """Multiply-accumulates of one image, by kind of layer. One is two FLOPs."""

    conv: float = 0.0
    linear: float = 0.0
    attention: float = 0.0
    other: float = 0.0

    @property
    def total(self) -> float:
        """Of all kinds."""
        return self.conv + self.linear + self.attention + self.other


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The size of a module and the cost of one image.

    Attributes:
        parameters: Trainable parameters.
        macs: Multiply-accumulates of a forward pass, an image. Additions, norms and activations are not counted, as in the
            published figures (a paper's "39B FLOPs" are these).
    """

    parameters: int
    macs: Macs

    @property
    def macs_per_image(self) -> float:
        """Multiply-accumulates of a forward pass."""
        return self.macs.total

    @property
    def flops_per_image(self) -> float:
        """Floating-point operations of a forward pass: two for each multiply-accumulate."""
        return 2 * self.macs.total

    @property
    def training_flops_per_image(self) -> float:
        """Floating-point operations of a forward and a backward pass, which has two products for each of the forward's."""
        return 3 * self.flops_per_image


def counts(module: nn.Module, *inputs: Any, batch_size: int = 1, **named: Any) -> Counts:
    """Count a module on inputs of these shapes; neither is changed.

    Args:
        module: On any device, also built on the meta device.
        inputs: Positional arguments of one call.
        batch_size: Images in these inputs.
        named: Named arguments.
    """
    by_kind: dict[str, float] = {}
    for operator, flops in _flops_by_operator(module, _on_meta(inputs), _on_meta(named)).items():
        kind = KINDS.get(operator, "other")
        by_kind[kind] = by_kind.get(kind, 0.0) + flops / 2 / batch_size
    return Counts(parameters=sum(p.numel() for p in module.parameters() if p.requires_grad), macs=Macs(**by_kind))


def _flops_by_operator(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> dict[str, int]:
    state = _on_meta(dict(module.named_parameters()) | dict(module.named_buffers()))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        functional_call(module, state, inputs, named)
    operators = counter.get_flop_counts()["Global"].items()
    return {str(operator).rpartition(".")[2]: int(flops) for operator, flops in operators}


def _on_meta(tree: Any) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor.to("meta"), tree)

"""Which arithmetic the network runs in."""

import contextlib
from typing import Literal

import torch

__all__ = ["Precision", "autocast", "fast_bf16", "resolve_precision"]

Precision = Literal["auto", "float32", "bf16"]


def fast_bf16(device: torch.device) -> bool:
    """Whether bf16 is faster than float32 there: tensor cores on a GPU, AMX or AVX512-bf16 on a CPU.

    A CPU without either emulates bf16, up to hundreds of times slower than it computes float32. (torch's own check for
    oneDNN asks for AVX512 alone.)
    """
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def resolve_precision(precision: Precision, device: torch.device) -> Literal["float32", "bf16"]:
    """What "auto" means on a device: bf16 where it is fast, else float32."""
    if precision != "auto":
        return precision
    return "bf16" if fast_bf16(device) else "float32"


def autocast(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """The context in which the network's forward pass runs."""
    if resolve_precision(precision, device) == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)

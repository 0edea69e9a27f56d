"""Memory that has run out, and ways to need less of it."""

import gc
from typing import Literal

import torch

__all__ = ["ActivationCheckpointing", "first_line", "is_out_of_memory", "release_unused"]

ActivationCheckpointing = Literal["none", "norms", "blocks"]
"""What a network computes again in the backward pass instead of keeping it."""

_SIGNS = (
    "can't allocate memory",  # CPU
    "not enough memory",  # CPU, on Windows
    "std::bad_alloc",
    "could not create a primitive",  # oneDNN, where there is no room for what it needs inside
    "could not create a memory",
    "out of memory",  # MPS, and the CUDA driver where torch did not ask
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, whatever raised it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def first_line(error: BaseException) -> str:
    """What an error says, without the pages that torch adds to it."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def release_unused(device: torch.device) -> None:
    """Give back what nobody holds, so that smaller pieces fit where large ones lay."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()

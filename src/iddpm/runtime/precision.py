"""Which arithmetic the network runs in."""

import contextlib
import functools
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch

from iddpm.runtime.errors import ConfigError

__all__ = ["Arithmetic", "Precision", "arithmetic", "autocast", "fast_bf16", "resolve_precision"]

Arithmetic = Literal["float32", "tf32", "bf16", "fp16"]
Precision = Literal["auto", "float32", "tf32", "bf16", "fp16"]

_TENSOR_CORES = (8, 0)  # the first compute capability with TF32 and bf16
_HALF_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def fast_bf16(device: torch.device) -> bool:
    """Whether bf16 is faster than float32 there: tensor cores on a GPU, AMX or AVX512-bf16 on a CPU.

    A CPU without either emulates bf16, up to hundreds of times slower than it computes float32. (torch's own check for
    oneDNN asks for AVX512 alone.)
    """
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= _TENSOR_CORES
    return device.type == "cpu" and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def resolve_precision(precision: Precision, device: torch.device) -> Arithmetic:
    """What "auto" means on a device: bf16 where it is fast, else float32. Anything else is what it is.

    On a CPU bf16 and fp16 may be emulated, slowly: for trying.

    Raises:
        ConfigError: The device has no such arithmetic.
    """
    if precision == "auto":
        return "bf16" if fast_bf16(device) else "float32"
    if not _has(precision, device):
        allowed = ["auto", *(name for name in ("float32", "tf32", *_HALF_TYPES) if _has(name, device))]
        raise ConfigError(
            f"precision {precision} on {device}: allowed there are {', '.join(allowed)}",
            "tf32 wants a CUDA device of capability 8.0 or more; auto takes what is fast"
            if precision == "tf32"
            else "auto takes what is fast there",
        )
    return precision


@contextlib.contextmanager
def autocast(precision: Precision, device: torch.device) -> Iterator[None]:
    """The context in which the network's forward pass runs: `arithmetic`, and half types where asked for."""
    resolved = resolve_precision(precision, device)
    half = _HALF_TYPES.get(resolved)
    with arithmetic(resolved, device), torch.autocast(device.type, dtype=half) if half else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def arithmetic(precision: Precision, device: torch.device) -> Iterator[None]:
    """The context of a stretch of training: float32 is TF32 in it if asked for, and float32 if not.

    It holds the backward pass too, which `autocast` does not. Without it torch runs float32 convolutions in TF32 on a
    GPU. Flags are put back as they were.
    """
    tf32 = resolve_precision(precision, device) == "tf32"
    if device.type != "cuda" or all((getattr(*flag) == "tf32") == tf32 for flag in _FLAGS):
        yield
        return
    before = [(*flag, value) for flag in (*_OLD_FLAGS, *_FLAGS) if (value := _read(*flag)) is not None]
    _set([(*flag, tf32) for flag in _OLD_FLAGS] + [(*flag, "tf32" if tf32 else "ieee") for flag in _FLAGS])
    try:
        yield
    finally:
        _set(before)


def _has(precision: str, device: torch.device) -> bool:
    if precision == "tf32":
        return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _TENSOR_CORES
    return precision == "float32" or device.type in ("cpu", "cuda") or _autocasts(device.type, _HALF_TYPES[precision])


@functools.cache
def _autocasts(device_type: str, dtype: torch.dtype) -> bool:
    """What torch says of a kind of device that the project does not know: it raises, or warns that it will not."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            torch.autocast(device_type, dtype=dtype)
        except (RuntimeError, UserWarning):
            return False
    return True


# Two interfaces to the same flags, kept in step: where they differ, reading the old one raises, and parts of torch do
# (its compiler, cudnn.flags). Setting an old one sets the new ones, hence the old ones first.
_OLD_FLAGS: tuple[tuple[Any, str], ...] = (
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.backends.cudnn, "allow_tf32"),
)
_FLAGS: tuple[tuple[Any, str], ...] = tuple(
    (owner, "fp32_precision")
    for owner in (
        torch.backends.cuda.matmul,
        torch.backends.cudnn.conv,  # pyright: ignore[reportAttributeAccessIssue]  # set by torch as a module is replaced
        torch.backends.cudnn.rnn,
    )
)


def _read(owner: Any, attribute: str) -> bool | str | None:
    """A flag's value; None where the two interfaces were mixed before."""
    try:
        return getattr(owner, attribute)
    except RuntimeError:
        return None


def _set(values: Iterable[tuple[Any, str, Any]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.9 says that the old interface will go
        for owner, attribute, value in values:
            setattr(owner, attribute, value)

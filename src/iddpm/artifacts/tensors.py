"""Tensors in safetensors files: written as a stream, tensor by tensor, and hashed on the way.

The library's own writer wants all tensors contiguous at once, so that a channels-last network lies in memory twice, and
the file has to be read again for its hash. What this one writes is the same to the byte.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from iddpm.runtime.errors import RunError

__all__ = ["CHUNK_BYTES", "bare_names", "write_tensors"]

CHUNK_BYTES = 16 * 1024**2
"""What is hashed and written at a time: large, so that the interpreter's lock is rarely asked for."""

# In the order of the library, which puts the widest first so that all are aligned.
_NAMES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_RANKS = {dtype: rank for rank, dtype in enumerate(_NAMES)}
# numpy knows no bfloat16: integers of the same width carry the bits.
_CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ALIGNMENT_BYTES = 8
_WRAPPED = re.compile(r"^(?:(?:module|_orig_mod)\.)+|(?<=\.)(?:_orig_mod\.)+")


def write_tensors(file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> tuple[int, str]:
    """Write a safetensors file. Tensors may lie anywhere and anyhow; memory for one of them is needed at most.

    Returns:
        The file's size in bytes and its SHA-256.

    Raises:
        OSError: The place cannot be written; who knows what the file is for says so to people.
    """
    ordered = sorted(tensors.items(), key=lambda item: (_RANKS[item[1].dtype], item[0]))
    digest = hashlib.sha256()
    size = 0
    with Path(file).open("wb", buffering=0) as out:
        for chunk in _chunks(ordered, metadata):
            digest.update(chunk)
            _write_all(out, chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def _chunks(ordered: list[tuple[str, Tensor]], metadata: Mapping[str, str]) -> Iterator[memoryview]:
    yield memoryview(_header(ordered, metadata))
    for _, tensor in ordered:
        content = _bytes_of(tensor)
        for start in range(0, len(content), CHUNK_BYTES):
            yield content[start : start + CHUNK_BYTES]


def _header(ordered: list[tuple[str, Tensor]], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _ALIGNMENT_BYTES)
    return len(header).to_bytes(8, "little") + header


def _bytes_of(tensor: Tensor) -> memoryview:
    """A tensor's values in order, little-endian; a view where they lie so already."""
    values = tensor.detach().cpu().view(_CARRIERS[tensor.element_size()]).numpy()
    values = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return values.reshape(-1).view(np.uint8).data


def _write_all(out: FileIO, chunk: memoryview) -> None:
    while chunk:  # a disk that fills up takes a part before it refuses
        chunk = chunk[out.write(chunk) :]


def bare_names(tensors: Mapping[str, Tensor], origin: str) -> dict[str, Tensor]:
    """The same tensors under the module's own names: without the "module." and "_orig_mod." of wrappers, however nested.

    Raises:
        RunError: Two names become the same.
    """
    bare: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        own = _WRAPPED.sub("", name)
        if own in bare:
            raise RunError(f"{origin} holds {own} twice, once as {name}", "keep one of the two in the file")
        bare[own] = tensor
    return bare

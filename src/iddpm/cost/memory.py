"""How much memory something needs, how much there is, and how many images fit."""

import ctypes
import functools
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from iddpm.runtime.errors import ConfigError
from iddpm.runtime.memory import is_out_of_memory, release_unused

__all__ = ["Fit", "fitting_micro_batch", "free_bytes", "peak_bytes", "predicted_peak_bytes"]

_USABLE = 0.9  # of what is free: the rest is for what is not seen, and for holes
_USABLE_ON_CPU = 0.5  # the C library's heap was seen to hold 1.8 times what is alive
_CHEAP = 4  # images; so many are tried whatever the first trial says
_GIB = 2**30
_ROOT = Path("/")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How many images a forward and backward pass can take.

    Attributes:
        micro_batch: Images.
        peak_bytes: What a pass of that many was seen to need.
        free_bytes: What there was.
        tried: The peak of each number of images that was tried; None where it ran out of memory.
    """

    micro_batch: int
    peak_bytes: int
    free_bytes: int
    tried: Mapping[int, int | None]


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """Bytes that a call needs on a device at its highest point, beyond what was there before.

    On CUDA torch's own count, which starts anew. Elsewhere, the meta device included, the tensors that are alive; this
    does not see what kernels use inside (scratch space of convolutions), nor what compiled code allocates, and of what was
    there before only that it is no part of the sum: freeing it is not taken off.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with _Alive(device) as alive:
        run()
    return alive.peak


class _Alive(TorchDispatchMode):
    """Sums the memory of the tensors that operators make on one kind of device, as long as they are alive."""

    def __init__(self, device: torch.device):
        super().__init__()
        self._device_type = device.type
        self._known: dict[int, weakref.ref[Any]] = {}
        self._now = 0
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        for tensor in self._tensors((args, kwargs)):
            self._add(tensor, counts=False)
        results = func(*args, **(kwargs or {}))
        for tensor in self._tensors(results):
            self._add(tensor, counts=True)
        self.peak = max(self.peak, self._now)
        return results

    def _tensors(self, tree: Any) -> list[Tensor]:
        return [
            leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.device.type == self._device_type
        ]

    def _add(self, tensor: Tensor, *, counts: bool) -> None:
        """Take in a tensor's memory unless it is known already, as that of a view or an in-place result is."""
        storage = tensor.untyped_storage()
        key = id(storage)  # torch keeps the Python object as long as the memory
        if key in self._known:
            return
        size = storage.nbytes() if counts else 0
        self._now += size
        self._known[key] = weakref.ref(storage, functools.partial(self._forget, key, size))

    def _forget(self, key: int, size: int, _: Any) -> None:
        self._now -= size
        del self._known[key]


def predicted_peak_bytes(tried: Mapping[int, int], size: int) -> int:
    """The peak of so many images, on the line through the two largest sizes that were tried; of one size, in proportion."""
    *_, (least, low), (most, high) = [(0, 0), *sorted(tried.items())]
    return round(high + (high - low) / (most - least) * (size - most))


def fitting_micro_batch(
    step: Callable[[int], object], batch: int, free: int, device: torch.device, reserve_bytes: int = 0
) -> Fit:
    """The largest micro-batch that fits, of those that split a batch into equal parts.

    A few images are tried, then twice as many for as long as it is not certain that what seems to fit does, and the
    answer itself. Twice the images need at most twice the memory, so no trial takes much more than there is. All of them
    together are fewer images than three batches; mostly not many more than one.

    Args:
        step: A forward and backward pass of so many images, as in training. It leaves nothing behind, gradients
            neither, also where it fails.
        batch: Images in all.
        free: Bytes there are, as `free_bytes` says.
        device: Where the step runs.
        reserve_bytes: What training needs besides and does not have yet, such as the optimizer's state.

    Raises:
        ConfigError: Not even one image fits.
    """
    room = int(_usable(device) * free) - reserve_bytes
    tried = {1: _trial(step, 1, device)}
    _check_one(tried[1], room, free, device, reserve_bytes)
    answer = _largest(batch, tried, room)
    while (size := _next_trial(answer, batch, tried, room)) is not None:
        tried[size] = _trial(step, size, device)
        answer = _largest(batch, tried, room)
    return Fit(micro_batch=answer, peak_bytes=_fitting(tried, room)[answer], free_bytes=free, tried=tried)


def _usable(device: torch.device) -> float:
    return _USABLE_ON_CPU if device.type == "cpu" else _USABLE


def _trial(step: Callable[[int], object], size: int, device: torch.device) -> int | None:
    """The peak of a step of so many images; None where memory runs out."""
    try:
        return peak_bytes(lambda: step(size), device)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    release_unused(device)  # not before the error is gone: it holds what the step had made
    return None


def _fitting(tried: Mapping[int, int | None], room: int) -> dict[int, int]:
    return {size: peak for size, peak in tried.items() if peak is not None and peak <= room}


def _largest(batch: int, tried: Mapping[int, int | None], room: int) -> int:
    """The largest equal part of the batch that may fit, as far as is known."""
    fitting = _fitting(tried, room)
    too_many = min(tried.keys() - fitting.keys(), default=batch + 1)
    parts = {-(-batch // number) for number in range(1, batch + 1)}
    return max(
        size
        for size in parts
        if size <= max(fitting) or (size < too_many and predicted_peak_bytes(fitting, size) <= room)
    )


def _next_trial(answer: int, batch: int, tried: Mapping[int, int | None], room: int) -> int | None:
    """How many images to try next; None where the answer has been tried."""
    fitting = _fitting(tried, room)
    most = max(fitting)
    if most == max(tried) and 2 * most <= min(batch, _CHEAP):
        return 2 * most
    if answer in tried:
        return None
    certain = fitting[most] * answer <= room * most
    return answer if certain or answer <= 2 * most else 2 * most


def _check_one(peak: int | None, room: int, free: int, device: torch.device, reserve_bytes: int) -> None:
    if peak is not None and peak <= room:
        return
    needs = "more than that" if peak is None else f"{peak / _GIB:.2f} GiB"
    besides = f" and training {reserve_bytes / _GIB:.2f} GiB besides" if reserve_bytes else ""
    raise ConfigError(
        f"{free / _GIB:.2f} GiB of memory are free on {device}, of which {_usable(device):.0%} may be used; "
        f"a pass of one image needs {needs}{besides}",
        "set --train.activation-checkpointing blocks, take a smaller net or smaller pictures, or free memory there",
    )


def free_bytes(device: torch.device) -> int:
    """Bytes that this process can still take there.

    On a CPU the least of what the system has available, what the control groups of the process leave, and what is left of its
    address space where that is limited.

    Raises:
        ConfigError: It cannot be found out.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    left = [_system_bytes(), _address_space_bytes(), *_control_group_bytes()] if device.type == "cpu" else []
    known = [number for number in left if number is not None]
    if not known:
        raise ConfigError(
            f"how much memory is free on {device} cannot be found out", "set --train.micro-batch-size to a number"
        )
    return max(min(known), 0)


def _system_bytes() -> int | None:
    """What Linux or Windows says is available; elsewhere half of what there is, for want of a better number."""
    for line in _lines(_ROOT / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        status = (ctypes.c_uint64 * 8)(64)  # MEMORYSTATUSEX: its length in bytes, all memory, available memory, ...
        return status[2] if ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)) else None
    if "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return None


def _address_space_bytes() -> int | None:
    try:
        import resource
    except ImportError:  # Windows has no such module
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    taken = _lines(_ROOT / "proc/self/statm")
    if limit == resource.RLIM_INFINITY or not taken:
        return None
    return limit - int(taken[0].split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _control_group_bytes() -> list[int]:
    """What is left in each control group that the process is in and that has a limit; of both versions."""
    left = []
    for line in _lines(_ROOT / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, files = _ROOT / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = _ROOT / "sys/fs/cgroup/memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = base / path.strip("/")
        for folder in [group, *group.parents]:
            if folder.is_relative_to(base):
                left += _left_in(folder, *files)
    return left


def _left_in(folder: Path, limit: str, used: str, reclaimable: str) -> list[int]:
    """The limit less what is used, not counting cached files that the system drops when asked."""
    limits, uses = _lines(folder / limit), _lines(folder / used)
    if not limits or not uses or limits[0] == "max":
        return []
    cached = [int(line.split()[1]) for line in _lines(folder / "memory.stat") if line.startswith(f"{reclaimable} ")]
    return [int(limits[0]) - int(uses[0]) + sum(cached)]


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []

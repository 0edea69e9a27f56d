"""The processes of a job and the device of this one. One process is a world of size 1 on the same path."""

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from iddpm.runtime.channel import Channel
from iddpm.runtime.errors import ConfigError, TrainingError
from iddpm.runtime.watch import Watch

__all__ = ["Parallel", "World", "close_world", "is_lost_contact", "is_open", "open_world"]

Parallel = Literal["ddp", "fsdp", "hsdp"]
"""How weights lie over several processes: whole on each; split over all; split over those of each machine."""

# Who hangs is found by the watch, long before.
_COLLECTIVE_TIMEOUT = timedelta(days=7)


@dataclass(frozen=True, kw_only=True)
class World:
    """This process's place among all: `rank` in [0, size), and its device.

    Attributes:
        channel: For what the main thread has to tell the others.
    """

    rank: int
    size: int
    device: torch.device
    channel: Channel = field(default_factory=Channel)
    _job: "_Job | None" = None

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files that are written once."""
        return self.rank == 0

    def rows(self, count: int) -> slice:
        """This process's part of so many examples: all parts in order make the whole, and differ by one at most."""
        each, left = divmod(count, self.size)
        first = self.rank * each + min(self.rank, left)
        return slice(first, first + each + (self.rank < left))

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def line(self, name: str) -> Channel:
        """Another channel, for one thread; every process opens those of one name in the same order."""
        return Channel() if self._job is None else self._job.line(name)

    @property
    def is_launched(self) -> bool:
        """Whether torchrun has started this process, be it alone."""
        return self._job is not None

    @property
    def size_of_machine(self) -> int:
        """Processes on this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    @property
    def watch(self) -> Watch | None:
        """Where there are several processes: what finds the one that hangs."""
        return None if self._job is None else self._job.watch

    def at(self, phase: str, step: int | None = None, patient: bool = False) -> None:
        """Say what this process does now; unless patient, it may stand still in it for as long as the watch allows."""
        if self._job is not None:
            self._job.watch.at(phase, step, patient)

    @contextlib.contextmanager
    def patient(self, phase: str) -> Iterator[None]:
        """A stretch that may take long."""
        if self._job is not None:
            self._job.watch.at(phase, None, patient=True)
        yield
        if self._job is not None:
            self._job.watch.at("start", None, patient=True)


class _Job:
    """The processes that torchrun has started; there is one a process, opened once."""

    def __init__(self, device: torch.device):
        store, self.rank, self.size = _rendezvous()
        self.store = _fresh(store, self.rank, self.size)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        more: dict[str, Any] = {"device_id": device} if device.type == "cuda" else {}
        self.watch = Watch(self.rank, self.size, self.store)
        self.watch.at("meeting")
        try:
            dist.init_process_group(
                backend, store=self.store, rank=self.rank, world_size=self.size, timeout=_COLLECTIVE_TIMEOUT, **more
            )
        except RuntimeError as error:
            raise _unconnected(self.rank, error) from error
        self.device = device
        self.watch.at("start", patient=True)
        self._lines: dict[str, int] = {}
        self.channel = self.line("main")

    def line(self, name: str) -> Channel:
        number = self._lines[name] = self._lines.get(name, 0) + 1
        return Channel(self.rank, self.size, self.store, f"{name}-{number}")


_jobs: list[_Job] = []


def is_lost_contact(error: BaseException) -> bool:
    """Whether an error of torch says that another process of the job cannot be reached any more."""
    return isinstance(error, RuntimeError) and any(name in str(error).lower() for name in ("gloo", "nccl"))


def is_open() -> bool:
    """Whether this process has met others."""
    return bool(_jobs)


def open_world(device: str | None = None) -> World:
    """The world of this process; where torchrun has started several, they meet here.

    Args:
        device: A torch device ("cpu", "cuda", "cuda:1", "mps"); None takes a CUDA device where there is one, else the CPU.
            Of several processes on a machine each takes the CUDA device of its number there.

    Raises:
        ConfigError: The device does not exist here, or the processes cannot meet.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return World(rank=0, size=1, device=_device(device))
    if not _jobs:
        try:
            own = _device(_of_many(device))
        except ConfigError as error:
            error.is_told_elsewhere = False  # it is this machine's
            raise
        if own.type == "cuda":
            torch.cuda.set_device(own)
        _jobs.append(_Job(own))
    job = _jobs[0]
    return World(rank=job.rank, size=job.size, device=job.device, channel=job.channel, _job=job)


def close_world() -> None:
    """Part from the other processes, once all have come to the end."""
    if _jobs:
        job = _jobs.pop()
        job.watch.close()
        job.channel.gather(None)  # who keeps the store must not leave before the others have read their last
        dist.destroy_process_group()


def _rendezvous() -> tuple[dist.Store, int, int]:
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, and {', '.join(missing)} is not set",
            "start several processes with torchrun: torchrun --nproc-per-node 2 -m iddpm train ...",
        )
    return next(iter(dist.rendezvous("env://")))  # pyright: ignore  # in torch's documentation of custom rendezvous


def _fresh(store: dist.Store, rank: int, size: int) -> dist.Store:
    """A part of the store that these processes alone use.

    After an elastic restart the store is the one of the processes before, with all that they have left; torch's own keys
    would be taken for news too. So each greets with a word of its own; the first answers each with its greeting and the
    word of this meeting, until all have repeated that.
    """
    own, others = secrets.token_hex(8), range(1, size)
    while rank == 0:
        for other in others:
            if store.check([f"greeting/{other}"]):
                store.set(f"answer/{other}", f"{store.get(f'greeting/{other}').decode()} {own}")
        if all(
            store.check([f"repeated/{other}"]) and store.get(f"repeated/{other}").decode() == own for other in others
        ):
            return dist.PrefixStore(own, store)
        time.sleep(0.02)
    store.set(f"greeting/{rank}", own)
    while True:
        greeting, _, word = (
            store.get(f"answer/{rank}").decode().partition(" ") if store.check([f"answer/{rank}"]) else ("",) * 3
        )
        if greeting == own:
            store.set(f"repeated/{rank}", word)
            return dist.PrefixStore(word, store)
        time.sleep(0.02)


def _unconnected(rank: int, error: RuntimeError) -> TrainingError:
    found = TrainingError(
        f"rank {rank} on {socket.gethostname()} cannot connect to the other processes: {str(error).splitlines()[0][:300]}",
        "where a machine has several networks, or its name leads to 127.0.0.1, name the interface that the others reach: "
        "GLOO_SOCKET_IFNAME=eth0, NCCL_SOCKET_IFNAME=eth0",
    )
    found.is_told_elsewhere = False
    return found


def _of_many(device: str | None) -> str:
    """The device of this process among those of its machine."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda":
        there = torch.cuda.device_count()
        if local >= there:
            raise ConfigError(
                f"process {local} of this machine has no CUDA device: it has {there}",
                f"start at most {there} a machine (--nproc-per-node {there}), or give --device cpu",
            )
        return f"cuda:{local}"
    if kind != "cpu":
        raise ConfigError(f"device {kind!r} for several processes", "allowed: cpu, cuda (each takes one of its own)")
    return kind


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # "meta" holds no values
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"device {name!r} cannot be used here: {reason}", "allowed: cpu, cuda, cuda:N, mps"
        ) from error
    return device

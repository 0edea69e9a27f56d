"""The processes of a job and the device of this one. One process is a world of size 1 on the same path."""

import os
from dataclasses import dataclass

import torch

from iddpm.runtime.errors import ConfigError

__all__ = ["World", "open_world"]


@dataclass(frozen=True, kw_only=True)
class World:
    """This process's place among all: `rank` in [0, size), and its device."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files that are written once."""
        return self.rank == 0


def open_world(device: str | None = None) -> World:
    """The world of this process.

    Args:
        device: A torch device ("cpu", "cuda", "cuda:1", "mps"); None takes a CUDA device where there is one, else the CPU.

    Raises:
        ConfigError: The device does not exist here, or several processes were started.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}: this version runs in one process",
            "start the command without torchrun; a large batch_size is reached with --train.micro-batch-size",
        )
    return World(rank=0, size=1, device=_device(device))


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

"""Small configs and runs for tests, and what is compared of them."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from iddpm.artifacts.checkpoint import list_checkpoints, load_tensors
from iddpm.artifacts.journal import read_journal
from iddpm.experiment.config import RunConfig
from iddpm.experiment.recipes import recipe

__all__ = ["Interrupting", "Lines", "cut", "journalled", "losses_of", "same", "tensors_of", "tiny_config"]


def tiny_config(
    source: Path | str,
    *,
    timesteps: int = 20,
    label_drop: float = 0.0,
    dropout: float = 0.0,
    train_steps: int = 6,
    **train: Any,
) -> RunConfig:
    """The recipe digits-8 on a store, with a short chain and few steps in float32; `train` are fields of TrainConfig."""
    config = recipe("digits-8").config()
    schedule = replace(config.diffusion.schedule, timesteps=timesteps)
    settings = {"batch_size": 8, "precision": "float32", "log_every": 1, "checkpoint_every": 1000} | train
    return replace(
        config,
        data=replace(config.data, source=str(source)),
        diffusion=replace(config.diffusion, schedule=schedule, label_drop=label_drop),
        net=replace(config.net, multipliers=(1, 1), dropout=dropout),
        train=replace(config.train, steps=train_steps, **settings),
    )


def tensors_of(run: Path, step: int | None = None) -> dict[str, Tensor]:
    """Every tensor of a checkpoint (None: the newest), as "group/name"."""
    found = {checkpoint.step: checkpoint for checkpoint in list_checkpoints(run / "checkpoints")}
    checkpoint = found[max(found) if step is None else step]
    return {
        f"{file.stem}/{name}": tensor
        for file in sorted(checkpoint.path.glob("*.safetensors"))
        for name, tensor in load_tensors(checkpoint, file.stem).items()
    }


def journalled(run: Path, event: str) -> list[dict[str, Any]]:
    """The events of one kind."""
    return [entry for entry in read_journal(run / "journal.jsonl") if entry["event"] == event]


def losses_of(run: Path) -> list[dict[str, Any]]:
    """What the journal says of the losses at each step, bit for bit; without what a clock or the memory says."""
    timed = (
        "time",
        "elapsed_seconds",
        "data_wait_seconds",
        "images_per_second",
        "seconds",
        "peak_memory_bytes",
        "spent",
    )
    return [{name: value for name, value in entry.items() if name not in timed} for entry in journalled(run, "step")]


def cut(file: Path) -> None:
    """Keep the first half of a file."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Lines:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.progressed: list[tuple[str, int, int]] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, task: str, done: int, total: int, detail: str = "") -> None:
        self.progressed.append((task, done, total))

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class Interrupting(Lines):
    """A listener that sends this process a signal once training has come to a step."""

    def __init__(self, step: int, number: signal.Signals = signal.SIGINT, times: int = 1):
        super().__init__()
        self._step, self._number, self._times = step, number, times

    def progress(self, task: str, done: int, total: int, detail: str = "") -> None:
        super().progress(task, done, total, detail)
        if task == "training" and done == self._step:
            for _ in range(self._times):
                signal.raise_signal(self._number)

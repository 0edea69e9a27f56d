"""Saving beside training: the state is copied, and a thread writes the copy while training goes on."""

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from iddpm.artifacts.checkpoint import Checkpoint, checkpoint_name, list_checkpoints, load_state, save_checkpoint
from iddpm.runtime.channel import ALONE, Channel
from iddpm.runtime.errors import OutputError, RunError
from iddpm.runtime.files import remove_folder, reported, to_json

__all__ = ["Retention", "Saved", "Saver", "is_good", "retain"]

Groups = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Which checkpoints are kept: a checkpoint goes when none of these keeps it.

    Attributes:
        last: The newest so many.
        every: Those of the multiples of this step; None: none for that reason.
        best: So many of the lowest `metrics["bits_per_dim"]` in their state; None: none for that reason.
    """

    last: int
    every: int | None = None
    best: int | None = None


@dataclass(frozen=True, kw_only=True)
class Saved:
    """How a save to one folder went. The path holds the checkpoint where `error` is None.

    Attributes:
        bytes: Size of the checkpoint's files; 0 where there is an error.
        copy_seconds: What training stood still for to copy the state; 0 for a second folder of the same copy.
        wait_seconds: What training stood still for because the save before was not done; likewise.
        write_seconds: What writing took, beside training.
    """

    step: int
    path: Path
    bytes: int
    copy_seconds: float
    wait_seconds: float
    write_seconds: float
    error: OutputError | None


class Saver:
    """Writes checkpoints in a thread, one at a time; memory for one spare copy of the state is all it takes.

    Groups of one name share the copy's memory, whatever folders they go to. The thread is a daemon: a process that leaves
    does not wait for it, and what it was writing has a hidden name still.

    Of several processes each writes some of the groups; all of them begin the same saves in the same order.

    Args:
        config: The run's config, stored in each tensor file.
        retention: By folder, what is kept there; a folder that is not named keeps all.
        line: To the other processes.
    """

    def __init__(self, config: Mapping[str, Any], retention: Mapping[Path, Retention], line: Channel = ALONE):
        self._line = line
        self._waited_seconds = 0.0
        self._config = dict(config)
        self._retention = dict(retention)
        self._copies: dict[tuple[str, str], Tensor] = {}
        self._thread: threading.Thread | None = None
        self._done: deque[Saved] = deque()
        self._fault: BaseException | None = None

    def begin(self, folders: Mapping[Path, Sequence[str]], step: int, groups: Groups, state: Mapping[str, Any]) -> None:
        """Copy the state of a step and have it written to folder/<step>; waits for the save before, if there is one.

        Args:
            folders: The names of the groups that are written, by folder (RUN/checkpoints, RUN/averages), in this order.
            step: Training steps done.
            groups: Tensors by group and name, on any device, of the groups that this process writes. They are free to change once this returns.
            state: What is not a tensor; must be JSON.
        """
        self._join()
        waited, self._waited_seconds = self._waited_seconds, 0.0
        began = time.perf_counter()
        scalars = json.loads(to_json(dict(state)))
        copies = self._copied(groups)
        seconds = (time.perf_counter() - began, waited)
        plan = {
            Path(folder): {name: copies[name] for name in names if name in copies} for folder, names in folders.items()
        }
        self._thread = threading.Thread(
            target=self._write, args=(plan, step, scalars, *seconds), name=f"save step {step}", daemon=True
        )
        self._thread.start()

    def finished(self) -> list[Saved]:
        """The saves that have ended since last asked, in order; does not wait."""
        self._raise_fault()
        done: list[Saved] = []
        while self._done:  # the thread may add one at any moment
            done.append(self._done.popleft())
        return done

    def wait(self) -> list[Saved]:
        """Wait for the save under way, then as `finished`."""
        self._join()
        return self.finished()

    def _join(self) -> None:
        if self._thread is not None:
            began = time.perf_counter()
            self._thread.join()
            self._waited_seconds += time.perf_counter() - began
            self._thread = None
        self._raise_fault()

    def _raise_fault(self) -> None:
        # What is no fault of the disk is a defect: it must not pass for a checkpoint.
        if self._fault is not None:
            raise self._fault

    def _copied(self, groups: Groups) -> dict[str, dict[str, Tensor]]:
        """The groups in buffers of ours, the same at every save."""
        sources = {(group, name): tensor for group, tensors in groups.items() for name, tensor in tensors.items()}
        for key, tensor in sources.items():
            if not _fits(self._copies.get(key), tensor):
                self._copies[key] = _buffer(tensor)
        _copy([self._copies[key] for key in sources], [tensor.detach() for tensor in sources.values()])
        return {group: {name: self._copies[group, name] for name in tensors} for group, tensors in groups.items()}

    def _write(
        self, plan: Mapping[Path, Groups], step: int, state: dict[str, Any], copy_seconds: float, wait_seconds: float
    ) -> None:
        try:
            for folder, groups in plan.items():
                began = time.perf_counter()
                size, error = self._write_one(folder, step, groups, state)
                self._done.append(
                    Saved(
                        step=step,
                        path=folder / checkpoint_name(step),
                        bytes=size,
                        copy_seconds=copy_seconds,
                        wait_seconds=wait_seconds,
                        write_seconds=time.perf_counter() - began,
                        error=error,
                    )
                )
                copy_seconds = wait_seconds = 0.0  # told once: the folders are written from one copy
        except BaseException as fault:
            self._fault = fault

    def _write_one(
        self, folder: Path, step: int, groups: Groups, state: dict[str, Any]
    ) -> tuple[int, OutputError | None]:
        """The size of what was written, or why it was not."""
        try:
            saved = save_checkpoint(folder, step, groups, state, self._config, self._line)
            size = self._line.first(lambda: self._settled(folder, saved))
        except OutputError as error:
            return 0, error
        return size, None

    def _settled(self, folder: Path, saved: Checkpoint) -> int:
        """The size of what was written; what nothing keeps any more is removed."""
        with reported(saved.path):
            size = sum(file.stat().st_size for file in saved.path.iterdir())
            if folder in self._retention:
                retain(folder, saved.step, self._retention[folder])
        return size


def _fits(buffer: Tensor | None, tensor: Tensor) -> bool:
    return buffer is not None and (buffer.shape, buffer.dtype) == (tensor.shape, tensor.dtype)


def _buffer(tensor: Tensor) -> Tensor:
    """Memory on the host for a tensor, laid out as it is: then a copy is one straight pass."""
    if tensor.is_cuda:
        with contextlib.suppress(
            RuntimeError
        ):  # of pinned memory, which a GPU can write to by itself, there may be too little
            return torch.empty_like(tensor, device="cpu", pin_memory=True, requires_grad=False)
    return torch.empty_like(tensor, device="cpu", requires_grad=False)


def _copy(buffers: list[Tensor], tensors: list[Tensor]) -> None:
    # One call for all: the interpreter's lock is let go once, and a GPU is waited for once.
    if buffers:
        # Only CUDA's copies are waited for below; any other device is to have copied before this returns.
        torch._foreach_copy_(buffers, tensors, non_blocking=all(tensor.is_cuda for tensor in tensors))
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.synchronize(device)


def retain(folder: Path, step: int, retention: Retention) -> None:
    """Remove the checkpoints of a folder that nothing keeps, now that the one of `step` is whole.

    A folder of another name is the user's, and a newer one is a damaged one that was passed over: both stay.
    """
    ours = [checkpoint for checkpoint in list_checkpoints(folder) if checkpoint.is_named_by_us]
    ours = [checkpoint for checkpoint in ours if checkpoint.step <= step]
    kept = {checkpoint.path for checkpoint in ours[-retention.last :] + _best(ours, retention.best or 0)}
    good = next((checkpoint for checkpoint in reversed(ours) if is_good(checkpoint)), None)
    if good is not None:  # what a run goes back to, however many were written in a bad stretch since
        kept.add(good.path)
    for checkpoint in ours:
        multiple = retention.every is not None and checkpoint.step > 0 and checkpoint.step % retention.every == 0
        if not multiple and checkpoint.path not in kept:
            with contextlib.suppress(OutputError):  # one too many harms nothing
                remove_folder(checkpoint.path)


def is_good(checkpoint: Checkpoint) -> bool:
    """Whether the last step before it was one that was not skipped; True where its state does not say."""
    return not (_state(checkpoint).get("guard") or {}).get("in_a_row")


def _best(checkpoints: list[Checkpoint], count: int) -> list[Checkpoint]:
    """Of those measured as the newest of them was, the `count` of the lowest value; of equal ones the newer."""
    known = [(metrics, c) for c in checkpoints if count and (metrics := _metrics(c)) is not None]
    if not known:
        return []
    protocol = known[-1][0] | {"bits_per_dim": None}
    alike = [(m["bits_per_dim"], -c.step, c) for m, c in known if m | {"bits_per_dim": None} == protocol]
    return [checkpoint for _, _, checkpoint in sorted(alike, key=lambda entry: entry[:2])[:count]]


def _metrics(checkpoint: Checkpoint) -> dict[str, Any] | None:
    metrics = _state(checkpoint).get("metrics")
    return metrics if isinstance(metrics, dict) and isinstance(metrics.get("bits_per_dim"), int | float) else None


def _state(checkpoint: Checkpoint) -> dict[str, Any]:
    try:
        return load_state(checkpoint)
    except RunError:
        return {}

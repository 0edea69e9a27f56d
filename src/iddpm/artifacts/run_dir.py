"""The run directory: the contract between commands.

RUN/config.json, provenance.json     written once, at the start
RUN/journal.jsonl                    events, appended
RUN/checkpoints/000010000/           see `iddpm.artifacts.checkpoint`
RUN/averages/000010000/              snapshots of power-function averages, in the same form
RUN/samples/<key>/                   pictures and `samples.json`
RUN/evaluations/<key>.json           likelihood and quality
RUN/forecast.json  RUN/report/index.html
"""

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iddpm.artifacts.checkpoint import Checkpoint, check_checkpoint, list_checkpoints
from iddpm.artifacts.journal import Journal, read_journal
from iddpm.runtime.errors import OutputError, RunError
from iddpm.runtime.files import check_writable, held, write_bytes, write_json

__all__ = ["RunDir", "locked", "newest_whole", "open_run_dir", "start_run_dir"]

_WRITTEN_ONCE = ("provenance.json", "config.json")


@dataclass(frozen=True)
class RunDir:
    """A run directory that exists. Paths are absolute."""

    path: Path

    @property
    def config(self) -> dict[str, Any]:
        """The run's config as written at the start."""
        return _read(self.path / "config.json")

    @property
    def provenance(self) -> dict[str, Any]:
        """Where, when and with what the run was started."""
        return _read(self.path / "provenance.json")

    def written_once(self) -> dict[str, bytes]:
        """The files that are written once, at the start, by name.

        Raises:
            RunError: One of them cannot be read.
        """
        return {name: _content(self.path / name) for name in _WRITTEN_ONCE}

    def restore(self, files: Mapping[str, bytes]) -> bool:
        """Write those of `written_once` that are gone; whether there were any.

        Raises:
            OutputError: The place cannot be written.
        """
        gone = [name for name in files if not (self.path / name).exists()]
        if gone:
            check_writable(self.path)
        for name in gone:
            write_bytes(self.path / name, files[name])
        return bool(gone)

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def averages(self) -> Path:
        """The folder of snapshots of averages."""
        return self.path / "averages"

    @property
    def journal_path(self) -> Path:
        """The journal's file."""
        return self.path / "journal.jsonl"

    @property
    def store(self) -> str:
        """Where the pictures lay when training last started."""
        told = [event["store"] for event in self.events() if "store" in event]
        return told[-1] if told else self.provenance["store"]

    def events(self) -> list[dict[str, Any]]:
        """The journal, oldest first."""
        return read_journal(self.journal_path)

    def open_journal(self) -> Journal:
        """The journal, for appending."""
        return Journal(self.journal_path)

    def samples(self, key: str) -> Path:
        """The folder of one set of samples."""
        return self.path / "samples" / key

    def evaluation(self, key: str) -> Path:
        """The file of one evaluation."""
        return self.path / "evaluations" / f"{key}.json"

    def newest_checkpoint(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is whole, and what was wrong with newer ones."""
        return newest_whole(self.checkpoints)

    def checkpoint_at(self, step: int | None) -> tuple[Checkpoint, list[str]]:
        """The checkpoint of a step, or the newest whole one, and what was wrong with newer ones.

        Raises:
            RunError: There is none, or it is damaged.
        """
        if step is None:
            newest, complaints = self.newest_checkpoint()
            if newest is None:
                if complaints:
                    raise RunError(f"no checkpoint of {self.path} is whole: {complaints[0]}", "restore one from a copy")
                raise RunError(f"{self.path} holds no checkpoint yet", "train first: iddpm train RECIPE --out RUN")
            return newest, complaints
        there = list_checkpoints(self.checkpoints)
        damages: list[RunError] = []
        for checkpoint in (one for one in reversed(there) if one.step == step):
            try:
                check_checkpoint(checkpoint)
            except RunError as error:
                damages.append(error)
            else:
                return checkpoint, [damage.what for damage in damages]
        if damages:
            raise damages[0]
        steps = ", ".join(str(checkpoint.step) for checkpoint in there) or "none"
        raise RunError(f"{self.path} holds no checkpoint of step {step}", f"it holds steps: {steps}")


def newest_whole(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint of a folder that is whole, and what was wrong with newer ones."""
    complaints: list[str] = []
    for checkpoint in reversed(list_checkpoints(folder)):
        try:
            check_checkpoint(checkpoint)
        except RunError as error:
            complaints.append(error.what)
        else:
            return checkpoint, complaints
    return None, complaints


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a run directory for training; what an earlier training that was killed left half-written is removed.

    The lock goes with the process, however it ends.

    Raises:
        OutputError: Another process trains there, or the place cannot be written.
    """
    check_writable(path)
    with (Path(path) / ".lock").open("a") as file:
        if not held(file):
            raise OutputError(f"another process is training in {path}", "wait for it, or give another --out")
        for folder in ("checkpoints", "averages"):
            for left in (Path(path) / folder).glob(".*"):
                shutil.rmtree(left, ignore_errors=True)
        for left in Path(path).glob(".*.json.*"):
            left.unlink(missing_ok=True)
        yield


def open_run_dir(path: Path) -> RunDir:
    """A run directory that a run was started in.

    Raises:
        RunError: The path is missing or holds no run.
    """
    path = Path(path)
    if not path.exists():
        raise RunError(f"{path} does not exist", "give the folder that `iddpm train --out` named")
    if not (path / "config.json").is_file():
        raise RunError(
            f"{path} is not a run directory: it holds no config.json",
            "give the folder that `iddpm train --out` named",
        )
    return RunDir(path.resolve())


def start_run_dir(path: Path, config: dict[str, Any], provenance: dict[str, Any]) -> RunDir:
    """Make a run directory and write what is written once.

    Raises:
        OutputError: The place cannot be written.
    """
    path = Path(path).resolve()
    check_writable(path)
    write_json(path / "provenance.json", provenance)
    write_json(path / "config.json", config)
    return RunDir(path)


def _read(file: Path) -> dict[str, Any]:
    try:
        return json.loads(_content(file))
    except ValueError as error:
        raise _unreadable(file, error) from error


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> RunError:
    return RunError(f"{file} cannot be read: {error}", "restore it from a copy, or start a new run")

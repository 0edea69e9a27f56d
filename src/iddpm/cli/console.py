"""What people see while a command works (on stderr), and what it prints at the end (on stdout)."""

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import takewhile
from types import TracebackType
from typing import Any, TypeVar

import tyro
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from iddpm.runtime.errors import ConfigError
from iddpm.runtime.telling import SILENT, Listener

__all__ = ["Told", "parse", "print_json", "telling"]

Arguments = TypeVar("Arguments")
_QUIET_SECONDS = 15.0
_CONFIG = (tyro.conf.AvoidSubcommands,)


class Told:
    """A listener on stderr: a bar on a terminal, a line now and then elsewhere.

    Time left comes from what this session has done: a task that starts at step 400 of 500 counts from 400.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[detail]}"),
            console=self._console,
        )
        self._tasks: dict[str, tuple[TaskID, float, int]] = {}
        self._spoke: dict[str, float] = {}

    def __enter__(self) -> "Told":
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def say(self, text: str) -> None:
        """Show one line, above the bars."""
        self._console.print(text, markup=False)

    def progress(self, task: str, done: int, total: int, detail: str = "") -> None:
        """Show progress; see `Listener`."""
        now = time.monotonic()
        if task not in self._tasks:
            # The first unit was done before this call, and the rate counts from here.
            identity = self._bars.add_task(task, total=total, completed=done, detail=detail)
            self._tasks[task] = (identity, now, done)
            self._spoke[task] = now
        identity, began, first = self._tasks[task]
        if self._console.is_terminal:
            self._bars.update(identity, completed=done, total=total, detail=detail)
        elif done >= total or now - self._spoke[task] > _QUIET_SECONDS:
            self._spoke[task] = now
            self.say(f"{task}: {done}/{total}{_left(now - began, done - first, total - done)}  {detail}".rstrip())
        if done >= total:
            self._tasks.pop(task)


def _left(seconds: float, done: int, rest: int) -> str:
    from iddpm.training.pace import duration

    return f", {duration(seconds / done * rest)} left" if done > 0 and rest > 0 else ""


@contextlib.contextmanager
def telling() -> Iterator[Listener]:
    """A listener for the length of a command; of several processes the first is the one that is seen."""
    if int(os.environ.get("RANK", "0")):
        yield SILENT
        return
    with Told() as told:
        yield told


def parse(arguments: type[Arguments], argv: list[str], *, prog: str, default: Arguments | None = None) -> Arguments:
    """Parse a command's flags into its dataclass. Help prints and leaves.

    Raises:
        ConfigError: A flag is unknown, missing or of another type.
    """
    complaint = io.StringIO()
    given: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(arguments, args=argv, prog=f"iddpm {prog}", config=_CONFIG, **given)
    except SystemExit as left:
        if left.code in (0, None):
            raise
        raise ConfigError(_plain(complaint.getvalue()), f"`iddpm {prog} --help` lists the flags") from None


def _plain(boxed: str) -> str:
    """The words of one of tyro's boxes, in one line."""
    lines = [line.strip("│╭╮╰╯─ ") for line in boxed.splitlines()]
    told = [line for line in takewhile(lambda line: "Argument helptext" not in line, lines) if line]
    told = [line for line in told if "full helptext" not in line and line not in ("Value error", "Parsing error")]
    words = "; ".join(dict.fromkeys(told)).replace("could be; instantiated", "could be instantiated")
    # What follows goes through the types of a union one by one.
    return words.partition("; Got errors")[0] or "the flags cannot be read"


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    json.dump(value, sys.stdout, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")

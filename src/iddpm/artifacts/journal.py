"""The journal of a run: one JSON object a line, appended as things happen, never rewritten.

A line cut short by a crash is dropped on reading and ended with a newline on writing.
"""

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iddpm.runtime.errors import OutputError, RunError

__all__ = ["MEMORY_BYTES", "Journal", "Unwritten", "read_journal"]

MEMORY_BYTES = 16 * 1024**2
"""Most that is kept of events that cannot be written."""

Event = dict[str, Any]
_UNWRITTEN = "\0 \t\r"  # a power cut can leave zeros where something was being written
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True, eq=False)
class _Line:
    event: str | None
    content: bytes


class Journal:
    """Appends events to RUN/journal.jsonl.

    Where the place cannot be written for a while, events stay in memory and are written as soon as it can, whole and in
    order. Of more than `MEMORY_BYTES` the oldest "step" events are given up first; an event "journal_gap" then says how many.

    Raises:
        OutputError: The file cannot be opened.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self._lines: list[_Line] = []  # not written yet, or not to the end
        self._begun_bytes = 0  # of the first of them, on the disk already
        self._dropped = 0
        self._error: OSError | None = None
        try:
            self._file = _opened(self.path)
            if _ends_cut(self.path):
                self._lines.append(_Line(None, b"\n"))
        except OSError as error:
            raise self._complaint(error) from error

    @property
    def pending(self) -> OutputError | None:
        """Why events are waiting in memory; None: all are written."""
        return None if self._error is None else self._complaint(self._error)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event with its time (seconds since 1970), and hand it to the system at once if it takes it."""
        self._lines.append(_line(event, **fields))
        self._try(self._flush)
        if self._error is not None:
            self._bound()

    def sync(self) -> None:
        """Have what was written on the disk, not only in the system's memory."""
        self._try(self._flush, lambda: os.fsync(self._file))

    def close(self) -> None:
        """Close the file.

        Raises:
            OutputError: Some events could not be written to the end.
        """
        self._try(self._flush)
        os.close(self._file)
        if self._lines:
            raise OutputError(
                f"the last {len(self._lines)} events are not in the journal: {self._reason}",
                "free the place; what else the run wrote is not touched by it",
            ) from self._error

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except OutputError:
            if kind is None:  # else what went wrong in the block is the news
                raise

    def _try(self, *works: Callable[[], object]) -> None:
        try:
            for work in works:
                work()
            self._error = None
        except OSError as error:
            self._error = error

    def _flush(self) -> None:
        self._find_file()
        while self._lines or self._dropped:
            if not self._lines:
                dropped, self._dropped = self._dropped, 0
                self._lines.append(_line("journal_gap", dropped=dropped))
            content = self._lines[0].content
            # A part may be taken; what follows it another time makes the line whole.
            self._begun_bytes += os.write(self._file, memoryview(content)[self._begun_bytes :])
            if self._begun_bytes == len(content):
                del self._lines[0]
                self._begun_bytes = 0

    def _find_file(self) -> None:
        """Make the file anew where it is gone or moved: writing on would succeed, and nobody would find it."""
        try:
            there = os.path.samestat(os.fstat(self._file), os.stat(self.path))
        except OSError:  # also of a network place that has forgotten the handle
            there = False
        if not there:
            file = _opened(self.path)
            os.close(self._file)
            self._file, self._begun_bytes = file, 0

    def _bound(self) -> None:
        """Keep what waits within `MEMORY_BYTES`; a line that is begun stays, so that it is never torn."""
        excess = sum(len(line.content) for line in self._lines) - MEMORY_BYTES
        if excess <= 0:
            return
        free = self._lines[bool(self._begun_bytes) :]
        for line in [line for line in free if line.event == "step"] + [line for line in free if line.event != "step"]:
            if excess <= 0:
                break
            excess -= len(line.content)
            self._lines.remove(line)
            self._dropped += 1

    @property
    def _reason(self) -> str:
        return (self._error.strerror or str(self._error)) if self._error is not None else "unknown"

    def _complaint(self, error: OSError) -> OutputError:
        return OutputError(
            f"cannot write the journal {self.path}: {error.strerror or error}", "free the place or take another"
        )


class Unwritten(Journal):
    """The journal of a process that is not the first of several: what happens is told by the first."""

    def __init__(self) -> None:
        self._error = None

    def write(self, event: str, **fields: Any) -> None:
        """Nothing."""

    def sync(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def _line(event: str, **fields: Any) -> _Line:
    value = {"event": event, "time": round(time.time(), 3), **fields}
    return _Line(event, json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)


def read_journal(path: Path) -> list[Event]:
    """All whole events, oldest first.

    Raises:
        RunError: A line before the last is damaged.
    """
    lines = _text(Path(path)).split("\n") if Path(path).exists() else []
    events: list[Event] = []
    for number, whole_line in enumerate(lines, start=1):
        line = whole_line.strip(_UNWRITTEN)
        if not line:
            continue
        try:
            event = json.loads(line)
        except json.JSONDecodeError as error:
            if number >= len(lines) - 1 or _is_cut(line):
                continue
            raise RunError(f"{path}, line {number}: not a journal event ({error.msg})", "remove that line") from error
        if isinstance(event, Mapping):
            events.append(dict(event))
    return events


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")  # a cut can fall inside a character


def _is_cut(line: str) -> bool:
    # What a kill leaves is the beginning of an event, in the middle of the file once a resumed run has written on.
    bare = _STRING.sub("", line)
    return line.startswith("{") and ('"' in bare or sum(map(bare.count, "{[")) > sum(map(bare.count, "}]")))


def _ends_cut(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"

"""The journal of a run: one JSON object a line, appended as things happen, never rewritten.

A line cut short by a crash is the last one at most; it is dropped on reading and completed with a newline on writing.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from iddpm.runtime.errors import OutputError, RunError

__all__ = ["Journal", "read_journal"]

Event = dict[str, Any]


class Journal:
    """Appends events to RUN/journal.jsonl.

    Raises:
        OutputError: The file cannot be opened or written.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        try:
            cut = _ends_cut(self.path)
            self._file = self.path.open("a", encoding="utf-8")
            if cut:
                self._file.write("\n")
        except OSError as error:
            raise OutputError(
                f"cannot write the journal {path}: {error.strerror}", "free the place or take another"
            ) from error

    def write(self, event: str, **fields: Any) -> None:
        """Append one event with its time (seconds since 1970), and hand it to the system at once."""
        line = json.dumps(
            {"event": event, "time": round(time.time(), 3), **fields}, ensure_ascii=False, allow_nan=False
        )
        try:
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            raise OutputError(
                f"cannot write the journal {self.path}: {error.strerror}",
                "free some space, then repeat the command",
            ) from error

    def sync(self) -> None:
        """Have what was written on the disk, not only in the system's memory."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_journal(path: Path) -> list[Event]:
    """All whole events, oldest first.

    Raises:
        RunError: A line before the last is damaged.
    """
    lines = _text(Path(path)).split("\n") if Path(path).exists() else []
    events: list[Event] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
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
    return line.startswith("{") and not line.rstrip().endswith("}")


def _ends_cut(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"

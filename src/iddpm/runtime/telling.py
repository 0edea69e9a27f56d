"""How long work tells what it does: a protocol that `cli` implements and that everything else only calls."""

from typing import Protocol, runtime_checkable

__all__ = ["SILENT", "Listener"]


@runtime_checkable
class Listener(Protocol):
    """Receives lines and progress. Both must be cheap: progress is told at every step."""

    def say(self, text: str) -> None:
        """Show one line."""

    def progress(self, task: str, done: int, total: int, detail: str = "") -> None:
        """Show that `done` of `total` units of `task` are done; `done == total` ends it. `done` may start above 0."""


class _Silent:
    def say(self, text: str) -> None:
        del text

    def progress(self, task: str, done: int, total: int, detail: str = "") -> None:
        del task, done, total, detail


SILENT: Listener = _Silent()

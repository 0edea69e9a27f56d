"""Stopping on purpose: a signal, a time limit or a file asks, the loop ends its step and saves."""

import contextlib
import os
import signal
import time
from pathlib import Path
from types import FrameType, TracebackType

__all__ = ["StopRequest"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """While open, the first SIGINT or SIGTERM only asks to stop; the second leaves at once.

    Args:
        file: Asks to stop as soon as it is there; it is removed then, so that the next start goes on.
        deadline: Asks to stop from this moment of `time.monotonic` on.
    """

    def __init__(self, file: Path | None = None, deadline: float | None = None) -> None:
        self._file, self._deadline = file, deadline
        self._signal: str | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopRequest":
        for number in _SIGNALS:
            try:
                self._before[number] = signal.signal(number, self._on_signal)
            except ValueError:
                break  # not in the main thread: signals are then the caller's affair
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def asked(self) -> str | None:
        """What asks to stop: a signal's name, "the time limit", the file's path; or None."""
        if self._signal is None and self._deadline is not None and time.monotonic() >= self._deadline:
            return "the time limit"
        if self._signal is None and self._file is not None and os.path.exists(self._file):
            with contextlib.suppress(OSError):  # on a disk that has turned read-only it stays
                self._file.unlink()
            self._signal = str(self._file)
        return self._signal

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # The handler stays in place: taking it away while another signal is on its way makes Python raise an OSError.
        if self._signal is None:
            self._signal = signal.Signals(number).name
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before = {}

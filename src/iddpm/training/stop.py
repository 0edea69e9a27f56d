"""Stopping on purpose: a signal, a time limit or a file asks, the loop ends its step and saves."""

import contextlib
import os
import signal
import time
from pathlib import Path
from types import FrameType, TracebackType

__all__ = ["StopRequest"]

# Ctrl-C; what clusters send before they kill, and what they can be told to send; a terminal that is closed.
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name))

_TIME_LIMIT = "the time limit"
_REASONS = (*(number.name for number in _SIGNALS), _TIME_LIMIT)


class StopRequest:
    """While open, SIGINT, SIGTERM, SIGUSR1 and SIGHUP only ask to stop; a second SIGINT leaves at once.

    Other signals may come as often as they like: schedulers and wrappers send them twice. One that is ignored, as SIGHUP is
    under nohup, stays so.

    Args:
        file: Asks to stop as soon as it is there; it is removed then, so that the next start goes on.
        deadline: Asks to stop from this moment of `time.monotonic` on.
        together_seconds: Signals so soon after the first one are the same one: torchrun sends on what the terminal has
            sent to all already.
    """

    def __init__(self, file: Path | None = None, deadline: float | None = None, together_seconds: float = 0.0) -> None:
        self._file, self._deadline, self._together_seconds = file, deadline, together_seconds
        self._first_at: float | None = None
        self._asked: str | None = None
        self._interrupts = 0
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopRequest":
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.SIG_IGN:
                continue
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
        if self._asked is None and self._deadline is not None and time.monotonic() >= self._deadline:
            self._asked = _TIME_LIMIT
        if self._asked is None and self._file is not None and os.path.exists(self._file):
            with contextlib.suppress(OSError):  # on a disk that has turned read-only it stays
                self._file.unlink()
            self._asked = str(self._file)
        return self._asked

    def code(self) -> int:
        """What asks to stop, as a number that `reason` turns back in any process; 0: nothing."""
        asked = self.asked()
        if asked is None:
            return 0
        return 1 + _REASONS.index(asked) if asked in _REASONS else 1 + len(_REASONS)

    @staticmethod
    def reason(code: int, file: Path) -> str | None:
        """What `asked` said in the process that gave the code, `file` being the one it looks for."""
        return None if code == 0 else (*_REASONS, str(file))[code - 1]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # The handler stays in place: taking it away while another signal is on its way makes Python raise an OSError.
        self._asked = self._asked or signal.Signals(number).name
        now = time.monotonic()
        self._first_at = self._first_at or now
        same = self._interrupts and now - self._first_at < self._together_seconds
        if number == signal.SIGINT and not same:
            self._interrupts += 1
            if self._interrupts > 1:
                raise KeyboardInterrupt

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before = {}

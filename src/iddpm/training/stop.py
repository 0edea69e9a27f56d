"""Stopping on purpose: a signal asks, the loop ends its step and saves."""

import signal
from types import FrameType, TracebackType

__all__ = ["StopRequest"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """While open, the first SIGINT or SIGTERM only sets `asked`; the second acts as it would have without this."""

    def __init__(self) -> None:
        self.asked: str | None = None
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

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.asked = signal.Signals(number).name
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before = {}

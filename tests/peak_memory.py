"""How much memory something took at its peak, what libraries take included."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@contextmanager
def at_most(mebibytes: float) -> Iterator[None]:
    """Fail where the block takes more on top of what is taken already. Nothing is measured but on Linux."""
    if not RESET.exists():
        yield
        return
    RESET.write_text("5")  # the peak is what is taken now
    before = _peak()
    yield
    grown = _peak() - before
    if grown > mebibytes:
        pytest.fail(f"{grown:.0f} MiB at the peak, more than {mebibytes}")


def _peak() -> float:
    return int(STATUS.read_text().partition("VmHWM:")[2].split()[0]) / 1024

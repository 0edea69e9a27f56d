"""What looks at a run while it trains."""

from typing import Any, Protocol, runtime_checkable

from iddpm.runtime.errors import OutputError
from iddpm.runtime.memory import first_line, is_out_of_memory
from iddpm.training.state import TrainState

__all__ = ["FAILED", "Hook", "call"]

FAILED = "hook_failed"


@runtime_checkable
class Hook(Protocol):
    """Called after every step; must change nothing in training."""

    def __call__(self, state: TrainState) -> dict[str, Any] | None:
        """Look at the state; return an event to journal (its fields, "event" among them), or None."""
        ...


def call(hook: Hook, state: TrainState) -> dict[str, Any] | None:
    """What a hook returns; an event `FAILED` where it could not write or had not the memory: that is no reason to stop."""
    try:
        return hook(state)
    except OutputError as error:
        reason = error.what
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = first_line(error)
    return {"event": FAILED, "step": state.step, "reason": reason}

"""What the trainer sees of what it trains."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from iddpm.data.loader import Batch
from iddpm.diffusion.objective import Terms
from iddpm.runtime.seeds import Draws

__all__ = ["Task"]


@runtime_checkable
class Task(Protocol):
    """A module and its loss. `experiment` builds one from an objective; another loss is another task, not another trainer."""

    @property
    def module(self) -> nn.Module:
        """The module whose parameters are trained."""
        ...

    @property
    def timesteps(self) -> int | None:
        """Length of the chain, for losses by quartile of t; None where there is no t."""
        ...

    def __call__(self, batch: Batch, draws: Draws) -> Terms:
        """The loss of each example, ready to be averaged and differentiated."""
        ...

    def after_step(self, terms: Sequence[Terms]) -> None:
        """Learn from the losses of one whole step (all its micro-batches, in order)."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """What `after_step` has learnt; may be empty."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Put back what `state_dict` gave."""
        ...

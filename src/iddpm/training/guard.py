"""Steps whose loss or gradient is not finite: found, skipped and counted on the device; and fp16's loss scale.

Nothing here waits for the device but `reading`, so a GPU's queue never runs dry for it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["Guard", "Reading"]

_FIRST_SCALE = 2.0**16
_LARGEST_SCALE = 2.0**24
_GROWTH_INTERVAL = 2000
_WINDOW = 10  # times the patience: the steps over which the share of bad ones is taken
_LARGEST_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a guard has seen: steps skipped in all, and in a row up to now; the loss scale, where there is one.

    Attributes:
        given_up: Every further step is skipped.
    """

    skipped: int
    in_a_row: int
    loss_scale: float | None
    given_up: bool


class Guard:
    """Judges each step, and says by what the loss is multiplied before the backward pass.

    After `patience` bad steps in a row, or where more than half of the last 10 x `patience` (exponentially weighted) were
    bad, it gives up: every further step is skipped, whatever its gradient, so that what happens does not depend on when
    somebody looks.

    The scale halves at a bad step and doubles after 2000 good ones, between 1 and 2^24 [MNA18].

    Args:
        device: Where the loss is.
        patience: Bad steps in a row that are borne.
        scaled: Whether the loss is scaled, for fp16.
    """

    def __init__(self, device: torch.device, patience: int, scaled: bool):
        self._patience = patience
        self.loss_scale: Float[Tensor, ""] | None = torch.tensor(_FIRST_SCALE, device=device) if scaled else None
        self._skipped, self._in_a_row, self._good = (torch.zeros((), device=device, dtype=torch.int64) for _ in "123")
        self._share = torch.zeros((), device=device)

    @torch.no_grad()
    def judge(self, loss: Float[Tensor, ""], grad_norm: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """1 where the step is to be skipped, else 0; counts it."""
        bad = ~(loss.isfinite() & grad_norm.isfinite()) | self._given_up()
        self._skipped = self._skipped + bad
        self._in_a_row = torch.where(bad, self._in_a_row + 1, 0)
        self._share = self._share + (bad.float() - self._share) / (_WINDOW * self._patience)
        if self.loss_scale is not None:
            self._good = torch.where(bad, 0, self._good + 1)
            grown = self._good >= _GROWTH_INTERVAL
            self._good = torch.where(grown, 0, self._good)
            factor = torch.where(bad, 0.5, torch.where(grown, 2.0, 1.0))
            self.loss_scale = (self.loss_scale * factor).clamp(1.0, _LARGEST_SCALE)
        return bad.to(torch.float32)

    def _given_up(self) -> Tensor:
        return (self._in_a_row >= self._patience) | (self._share > _LARGEST_SHARE)

    def reading(self) -> Reading:
        """The counts, once the device has come so far."""
        scale = torch.zeros_like(self._share) if self.loss_scale is None else self.loss_scale
        numbers = torch.stack([n.to(torch.float32) for n in (self._skipped, self._in_a_row, scale, self._given_up())])
        skipped, in_a_row, scale_now, given_up = numbers.tolist()
        return Reading(
            skipped=int(skipped),
            in_a_row=int(in_a_row),
            loss_scale=None if self.loss_scale is None else scale_now,
            given_up=bool(given_up),
        )

    def forgive(self) -> None:
        """Judge anew: what was skipped stays counted."""
        self._in_a_row, self._share = torch.zeros_like(self._in_a_row), torch.zeros_like(self._share)

    def state_dict(self) -> dict[str, Any]:
        """All of it, as plain numbers."""
        reading = self.reading()
        return {
            "skipped": reading.skipped,
            "in_a_row": reading.in_a_row,
            "share": float(self._share),
            "loss_scale": reading.loss_scale,
            "good_in_a_row": int(self._good),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave; a scale of another precision is passed over."""
        self._skipped = torch.full_like(self._skipped, state["skipped"])
        self._in_a_row = torch.full_like(self._in_a_row, state["in_a_row"])
        self._share = torch.full_like(self._share, state["share"])
        if self.loss_scale is not None and state["loss_scale"] is not None:
            self.loss_scale = torch.full_like(self.loss_scale, state["loss_scale"])
            self._good = torch.full_like(self._good, state["good_in_a_row"])

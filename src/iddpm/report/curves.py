"""The journal as arrays: which step events count, how they are smoothed, when the run was taken up again or went back."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from jaxtyping import Float

__all__ = [
    "Curve",
    "Resume",
    "Rollback",
    "at_path",
    "back_to",
    "curve",
    "kept_events",
    "kept_steps",
    "resumes",
    "rollbacks",
    "smoothed",
    "thinned",
    "when",
    "window",
]

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Curve:
    """Finite values against training steps, oldest first, and how many values were left out as not finite."""

    x: Float[np.ndarray, " n"]
    y: Float[np.ndarray, " n"]
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, kw_only=True)
class Resume:
    """A run taken up again.

    Attributes:
        step: Where it went on.
        gap_seconds: Between the last thing the run wrote and this, where the journal has times.
        lost_steps: Steps done before that had to be done again, as far as they were logged.
        lost_seconds: Their time.
        changes: Settings that differ from before, `{path: [before, now]}`.
    """

    step: int
    gap_seconds: float | None
    lost_steps: int
    lost_seconds: float
    changes: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Rollback:
    """A run that went back to a checkpoint by itself.

    Attributes:
        step: Where it stood.
        to_step: Where it went on.
        lr_factor: What the learning rate is multiplied by since; None where not told.
        reason: Why it went back; may be empty.
    """

    step: int
    to_step: int
    lr_factor: float | None
    reason: str


def back_to(event: Event) -> float | None:
    """The step that an event took the run back to; None where it is not of that kind."""
    where = {"resume": "step", "rollback": "to_step"}.get(event.get("event", ""))
    return None if where is None else float(event.get(where, math.inf))


def kept_steps(events: Sequence[Event]) -> list[Event]:
    """Step events that led to the run's present state: those that a resume or a rollback went back behind are left out."""
    return kept_events(events, ("step",))


def kept_events(events: Sequence[Event], kinds: Sequence[str]) -> list[Event]:
    """As `kept_steps`, for events of several kinds."""
    kept: list[Event] = []
    for event in events:
        if (back := back_to(event)) is not None:
            kept = [one for one in kept if one["step"] <= back]
        elif event.get("event") in kinds and "step" in event:
            kept.append(event)
    return kept


def resumes(events: Sequence[Event]) -> list[Resume]:
    """Each time the run was taken up again, oldest first."""
    found = []
    for position, event in enumerate(events):
        if event.get("event") != "resume":
            continue
        before = events[:position]
        step = int(event.get("step", 0))
        lost_steps, lost_seconds = _lost(kept_steps(before), step)
        found.append(
            Resume(
                step=step,
                gap_seconds=_gap(before, event),
                lost_steps=lost_steps,
                lost_seconds=lost_seconds,
                changes=event.get("changes") or {},
            )
        )
    return found


def rollbacks(events: Sequence[Event]) -> list[Rollback]:
    """Each time the run went back by itself, oldest first."""
    return [
        Rollback(
            step=int(event.get("step") or 0),
            to_step=int(event.get("to_step") or 0),
            lr_factor=event.get("lr_factor"),
            reason=str(event.get("reason") or ""),
        )
        for event in events
        if event.get("event") == "rollback"
    ]


def curve(steps: Sequence[Event], path: str) -> Curve:
    """One number of each step event (`loss`, `parts.mse`, `mse_by_quartile.0`) against its step.

    Events without the number, or with None, are passed over; values that are not finite are counted.
    """
    pairs = [(step["step"], at_path(step, path)) for step in steps]
    numbers = [(x, float(y)) for x, y in pairs if isinstance(y, int | float)]
    finite = [(x, y) for x, y in numbers if math.isfinite(y)]
    x, y = np.array(finite, dtype=np.float64).reshape(-1, 2).T
    return Curve(x, y, len(numbers) - len(finite))


def at_path(event: Any, path: str) -> Any:
    """The value at a dotted path of keys and list positions; None where there is none."""
    value = event
    for key in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, Sequence) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def window(n: int) -> int:
    """How many values a smoothed one is the mean of: odd, about a thirtieth of the curve, 1 if it is short."""
    return 2 * (n // 60) + 1


def smoothed(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Mean of the nearest `window` values; near the ends the window shrinks on both sides: nothing lags."""
    n, half = len(values), window(len(values)) // 2
    place = np.arange(n)
    reach = np.minimum(half, np.minimum(place, n - 1 - place))
    # Not by differences of running sums: after one huge spike those would have no digits left.
    means = [values[at - wide : at + wide + 1].mean() for at, wide in zip(place, reach, strict=True)]
    return np.array(means, dtype=np.float64)


def thinned(line: Curve, most: int) -> Curve:
    """At most `most` evenly spaced points of the curve, the first and the last among them."""
    if len(line) <= most:
        return line
    keep = np.unique(np.linspace(0, len(line) - 1, most).round().astype(int))
    return Curve(line.x[keep], line.y[keep], line.left_out)


def when(event: Event) -> float | None:
    """Seconds since 1970 of an event, where it has a time that can be read."""
    time = event.get("time")
    if isinstance(time, int | float):
        return float(time)
    try:
        return datetime.fromisoformat(time).timestamp() if isinstance(time, str) else None
    except ValueError:
        return None


def _gap(before: Sequence[Event], resume: Event) -> float | None:
    now = when(resume)
    times = [time for event in before if (time := when(event)) is not None]
    return None if now is None or not times else max(now - times[-1], 0.0)


def _lost(steps: Sequence[Event], resume_step: int) -> tuple[int, float]:
    lost = [step for step in steps if step["step"] > resume_step]
    if not lost:
        return 0, 0.0
    held = [step for step in steps if step["step"] <= resume_step]
    since = held[-1].get("elapsed_seconds", 0.0) if held else 0.0
    return int(lost[-1]["step"]) - resume_step, max(float(lost[-1].get("elapsed_seconds", since)) - since, 0.0)

"""Bits per dim of held-out pictures, as measured while training: the curve over steps, and the last of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from iddpm.report.curves import Curve, curve, kept_events
from iddpm.report.figures import Line, draw
from iddpm.report.learning import marks, run_keys
from iddpm.report.quantities import count
from iddpm.report.views import Chart, Key, Table

__all__ = ["held_out_chart", "last_measured", "measured_on"]

Event = Mapping[str, Any]
Runs = Sequence[tuple[str, Sequence[Event]]]
_TITLE, _UNIT = "Bits per dim, held out", "bits/dim"
_ROWS = 12


@dataclass(frozen=True, kw_only=True)
class _Series:
    """Measurements of one run by one protocol; `error` is None where one of them has none."""

    name: str
    protocol: str
    curve: Curve
    error: Float[np.ndarray, " n"] | None


def measured_on(event: Event) -> str:
    """How a measurement was made: `64 held-out pictures, 50 steps of the chain, weights ema-0.9999`."""
    told = [
        f"{count(event['num_images'])} held-out pictures" if event.get("num_images") is not None else "",
        f"{count(event['num_steps'])} steps of the chain" if event.get("num_steps") is not None else "",
        f"weights {event['weights']}" if event.get("weights") else "",
    ]
    return ", ".join(word for word in told if word) or "held-out pictures"


def last_measured(events: Sequence[Event]) -> Event | None:
    """The last measurement that counts and is a finite number; None without any."""
    return next((event for event in reversed(kept_events(events, ("evaluation",))) if _is_finite(event)), None)


def held_out_chart(runs: Runs) -> Chart | None:
    """The measurements over steps: every protocol of one run, or of several runs the last of each; None without any."""
    if len(runs) == 1:
        series = _by_protocol(*runs[0])
        keys = run_keys([one.protocol for one in series])
    else:
        found = [(key, _by_protocol(name, events)) for key, (name, events) in zip(_keys(runs), runs, strict=True)]
        series = [every[-1] for _, every in found if every]
        keys = [key for key, every in found if every]
    if not series:
        return None
    lines = [
        Line(curve=one.curve, role=key.role, dash=key.dash, smooth=False, spread=one.error)
        for one, key in zip(series, keys, strict=True)
    ]
    return Chart(
        title=_TITLE,
        unit=_UNIT,
        svg=draw(lines, name=_TITLE, unit=_UNIT, marks=marks(runs)),
        reading=_reading(series, alone=len(runs) == 1),
        keys=keys if len(runs) == 1 and len(series) > 1 else (),
        table=_numbers(series, [one.protocol if len(runs) == 1 else one.name for one in series]),
    )


def _keys(runs: Runs) -> list[Key]:
    return run_keys([name for name, _ in runs])


def _by_protocol(name: str, events: Sequence[Event]) -> list[_Series]:
    """The measurements of a run, those of the latest protocol last."""
    groups: dict[str, list[Event]] = {}
    for event in kept_events(events, ("evaluation",)):
        if _is_finite(event):
            protocol = measured_on(event)
            groups[protocol] = [*groups.pop(protocol, []), event]
    return [
        _Series(name=name, protocol=protocol, curve=curve(group, "bits_per_dim"), error=_errors(group))
        for protocol, group in groups.items()
    ]


def _errors(group: Sequence[Event]) -> Float[np.ndarray, " n"] | None:
    errors = curve(group, "standard_error_bits_per_dim")
    return errors.y if len(errors) == len(group) else None


def _reading(series: Sequence[_Series], *, alone: bool) -> str:
    told = ["What each colour value of pictures that training never sees costs: lower is better."]
    if len({one.protocol for one in series}) == 1:
        told.append(f"Measured on {series[0].protocol}.")
    elif alone:
        told.append("How it was measured changed on the way; only points of one line compare.")
    else:
        how = "; ".join(f"{one.name}: {one.protocol}" for one in series)
        told.append(f"Measured differently, so the lines do not compare: {how}.")
    told.append("Fewer steps give a looser bound than the whole chain.")
    if any(one.error is not None for one in series):
        told.append(
            "Shaded: one standard error over the pictures; they and their noise are the same each time, so it would "
            "move a whole line, not single points."
        )
    if alone:
        lowest = int(series[-1].curve.y.argmin())
        told.append(f"Lowest: {series[-1].curve.y[lowest]:.4f} at step {count(series[-1].curve.x[lowest])}.")
    return " ".join(told)


def _numbers(series: Sequence[_Series], names: Sequence[str]) -> Table:
    steps = np.unique(np.concatenate([one.curve.x for one in series]))
    shown = steps[np.unique(np.linspace(0, len(steps) - 1, _ROWS).round().astype(int))]
    rows = [[count(step), *(_at(one, step) for one in series)] for step in shown]
    return Table(head=["step", *(names if len(series) > 1 else [_UNIT])], rows=rows)


def _at(one: _Series, step: float) -> str:
    place = np.flatnonzero(one.curve.x == step)
    if not len(place):
        return "–"
    value = f"{one.curve.y[place[-1]]:.4f}"
    return value if one.error is None else f"{value} ± {one.error[place[-1]]:.4f}"


def _is_finite(event: Event) -> bool:
    value = event.get("bits_per_dim")
    return isinstance(value, int | float) and math.isfinite(value)

"""Charts of the journal: what was learned, how steadily, how fast. One run, or several in the same axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from iddpm.report.curves import Curve, at_path, curve, kept_steps, resumes, smoothed, thinned, window
from iddpm.report.figures import Line, draw, wants_log
from iddpm.report.palette import DASHES, ORDERED, SERIES
from iddpm.report.quantities import count, plain
from iddpm.report.views import Chart, Key, Table

__all__ = ["charts", "left_out", "run_keys", "speed_chart"]

Events = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class _Quantity:
    """One number of the journal: where it stands, what it is called, how to read it."""

    path: str
    title: str
    unit: str
    reading: str
    log: bool = True
    from_zero: bool = False
    smooth: bool = True


QUANTITIES = (
    _Quantity(
        path="loss",
        title="Loss",
        unit="as optimized",
        reading="What training pushes down: what the recipe's objective makes of the terms beside it.",
    ),
    _Quantity(
        path="parts.mse",
        title="Error of the prediction",
        unit="mean square, noise has 1",
        reading="How far off the network's guess of its target is, which for most recipes is the noise in "
        "the picture. 1 is no better than guessing nothing; it cannot reach 0.",
    ),
    _Quantity(
        path="parts.bound",
        title="Bound, sampled",
        unit="bits/dim",
        reading="A noisy one-timestep estimate of the bits that each colour value costs. It may wander widely: the "
        "exact figure, summed over all timesteps, is under “Bits per dim”.",
    ),
    _Quantity(
        path="grad_norm",
        title="Gradient norm",
        unit="before clipping",
        reading="Length of the step that the loss asks for. Spikes are single hard batches; a lasting climb "
        "means trouble.",
    ),
    _Quantity(
        path="lr",
        title="Learning rate",
        unit="no unit",
        reading="The size of the optimizer's steps, which the recipe fixes beforehand.",
        log=False,
        from_zero=True,
        smooth=False,
    ),
)
SPEED = _Quantity(
    path="images_per_second",
    title="Speed",
    unit="images/s",
    reading="Training pictures per second. Dips are pauses, or other work on the machine.",
    log=False,
    from_zero=True,
)
QUARTERS = (
    "first quarter: little noise",
    "second quarter",
    "third quarter",
    "last quarter: nearly all noise",
)
QUARTER_PATHS = ("mse_by_quartile", "loss_by_quartile")


def charts(runs: Sequence[tuple[str, Events]]) -> list[Chart]:
    """The charts that the journals have numbers for; colours and dashes follow the order of the runs."""
    steps = [(name, kept_steps(events)) for name, events in runs]
    made = [_chart(quantity, steps, _marks(runs)) for quantity in QUANTITIES]
    if len(runs) == 1:
        made.insert(3, _quarters(steps[0][1], _marks(runs)))
    return [chart for chart in made if chart is not None]


def speed_chart(runs: Sequence[tuple[str, Events]]) -> Chart | None:
    """Pictures per second while training; None where no journal tells."""
    return _chart(SPEED, [(name, kept_steps(events)) for name, events in runs], _marks(runs))


def run_keys(names: Sequence[str]) -> list[Key]:
    """The legend of several runs."""
    return [Key(label=name, role=_role(position), dash=_dash(position)) for position, name in enumerate(names)]


def left_out(events: Events) -> int:
    """How many logged losses are not finite, and so are not drawn."""
    return curve(kept_steps(events), "loss").left_out


def _chart(quantity: _Quantity, runs: Sequence[tuple[str, Events]], marks: Sequence[float]) -> Chart | None:
    curves = [(name, curve(steps, quantity.path)) for name, steps in runs]
    if not any(len(line) for _, line in curves):
        return None
    lines = [
        Line(curve=line, role=_role(position), dash=_dash(position), smooth=quantity.smooth, raw=len(runs) == 1)
        for position, (_, line) in enumerate(curves)
        if len(line)
    ]
    log = quantity.log and wants_log([line.curve for line in lines])
    svg = draw(lines, name=quantity.title, unit=quantity.unit, log=log, from_zero=quantity.from_zero, marks=marks)
    return Chart(
        title=quantity.title,
        unit=quantity.unit,
        svg=svg,
        reading=quantity.reading + _drawn(lines, quantity.smooth),
        table=_numbers(curves, quantity),
    )


def _quarters(steps: Events, marks: Sequence[float]) -> Chart | None:
    path = next((path for path in QUARTER_PATHS if any(at_path(step, path) for step in steps)), None)
    if path is None:
        return None
    curves = [curve(steps, f"{path}.{quarter}") for quarter in range(4)]
    lines = [
        Line(curve=line, role=ORDERED[quarter], dash=DASHES[quarter], raw=False)
        for quarter, line in enumerate(curves)
        if len(line)
    ]
    if not lines:
        return None
    unit = "mean square" if path == "mse_by_quartile" else "loss"
    title = "Error by amount of noise" if path == "mse_by_quartile" else "Loss by amount of noise"
    svg = draw(lines, name=title, unit=unit, log=wants_log([line.curve for line in lines]), marks=marks)
    return Chart(
        title=title,
        unit=unit,
        svg=svg,
        reading="The same error, split by timestep t. Noise is hardest to tell from the picture where there is "
        "least of it.",
        keys=[Key(label=label, role=ORDERED[quarter], dash=DASHES[quarter]) for quarter, label in enumerate(QUARTERS)],
    )


def _marks(runs: Sequence[tuple[str, Events]]) -> list[float]:
    return [float(resume.step) for resume in resumes(runs[0][1])] if len(runs) == 1 else []


def _drawn(lines: Sequence[Line], smooth: bool) -> str:
    """How the line came from the logged values."""
    if not smooth or len(lines[0].curve) < 60:
        return ""
    return f" Line: mean of the {window(len(lines[0].curve))} nearest logged values{'; faint: each of them.' if lines[0].raw else '.'}"


def _numbers(curves: Sequence[tuple[str, Curve]], quantity: _Quantity) -> Table:
    """At most ten points of each drawn line."""
    if len(curves) == 1:
        name_and_line = [(quantity.unit, curves[0][1])]
    else:
        name_and_line = [(name, line) for name, line in curves if len(line)]
    grid = np.unique(np.concatenate([thinned(line, 10).x for _, line in name_and_line]))
    grid = grid[np.unique(np.linspace(0, len(grid) - 1, 10).round().astype(int))]
    rows = []
    for x in grid:
        values = [_value_at(line, x, quantity.smooth) for _, line in name_and_line]
        rows.append([count(x), *(plain(value) for value in values)])
    return Table(head=["step", *(name for name, _ in name_and_line)], rows=rows)


def _value_at(line: Curve, x: float, smooth: bool) -> float | None:
    if not line.x[0] <= x <= line.x[-1]:
        return None
    return float(np.interp(x, line.x, smoothed(line.y) if smooth else line.y))


def _role(position: int) -> str:
    return SERIES[position % len(SERIES)]


def _dash(position: int) -> str:
    return DASHES[(position + position // len(SERIES)) % len(DASHES)]

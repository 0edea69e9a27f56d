"""Charts of the steps: what was learned, how steadily, how fast. One run, or several in the same axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from iddpm.report.curves import Curve, at_path, back_to, curve, kept_steps, smoothed, thinned, window
from iddpm.report.figures import Line, draw, wants_log
from iddpm.report.palette import DASHES, ORDERED, SERIES
from iddpm.report.quantities import count, plain
from iddpm.report.views import Chart, Key, Table

__all__ = ["charts", "left_out", "mark_note", "marks", "run_keys", "speed_chart"]

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
        reading="The size of the optimizer's steps, which the recipe fixes beforehand; a run that goes back to a "
        "checkpoint lowers it.",
        log=False,
        from_zero=True,
        smooth=False,
    ),
    _Quantity(
        path="loss_scale",
        title="Loss scale",
        unit="factor",
        reading="What the loss is multiplied by so that small gradients do not vanish in fp16. It halves whenever "
        "gradients overflow, and such a step is skipped; it doubles after a while without. A lasting fall means trouble.",
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
BY_QUARTER = (
    _Quantity(
        path="mse_by_quartile",
        title="Error by amount of noise",
        unit="mean square",
        reading="The same error, split by timestep t. Noise is hardest to tell from the picture where there is "
        "least of it.",
    ),
    _Quantity(
        path="loss_by_quartile",
        title="Loss by amount of noise",
        unit="loss",
        reading="The same loss, split by timestep t.",
    ),
    _Quantity(
        path="bound_by_quartile",
        title="Bound by amount of noise",
        unit="bits/dim, as if all t were in this quarter",
        reading="The sampled bound, split by timestep t; it is about the mean of the four lines. Once a model has learned, "
        "most of it is where there is least noise, where fine detail is settled; early on a few bad steps may outweigh that.",
    ),
)
NOISE_SCALE = _Quantity(
    path="gradient_noise_scale",
    title="Gradient noise scale",
    unit="pictures",
    reading="The batch in whose gradient noise and signal are equal. A batch well below it, doubled, does the work of "
    "nearly two steps; well above it, more pictures gain little. It usually grows as training goes on.",
)


def charts(runs: Sequence[tuple[str, Events]]) -> list[Chart]:
    """The charts that the journals have numbers for; colours and dashes follow the order of the runs."""
    steps = [(name, kept_steps(events)) for name, events in runs]
    made = [_chart(quantity, steps, marks(runs)) for quantity in QUANTITIES]
    if len(runs) == 1:
        made[3:3] = [_quarters(quantity, steps[0][1], marks(runs)) for quantity in _split(steps[0][1])]
        made.append(_noise_scale(runs[0][1]))
    else:
        made.append(_chart(NOISE_SCALE, steps, ()))
    return [chart for chart in made if chart is not None]


def speed_chart(runs: Sequence[tuple[str, Events]]) -> Chart | None:
    """Pictures per second while training; None where no journal tells."""
    return _chart(SPEED, [(name, kept_steps(events)) for name, events in runs], marks(runs))


def run_keys(names: Sequence[str]) -> list[Key]:
    """The legend of several runs."""
    return [Key(label=name, role=_role(position), dash=_dash(position)) for position, name in enumerate(names)]


def marks(runs: Sequence[tuple[str, Events]]) -> list[float]:
    """Where the only run was taken up again or went back."""
    if len(runs) != 1:
        return []
    found = [back for event in runs[0][1] if (back := back_to(event)) is not None]
    return [float(step) for step in found if np.isfinite(step)]


def mark_note(events: Events) -> str:
    """What the marks in the charts of a run mean; empty where there are none."""
    words = {"resume": "was taken up again", "rollback": "went back to a checkpoint"}
    kinds = {event.get("event") for event in events}
    told = [meaning for kind, meaning in words.items() if kind in kinds]
    return f"Dotted upright lines: the run {' or '.join(told)} there." if told else ""


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


def _split(steps: Events) -> list[_Quantity]:
    """What is shown by quarters of the timesteps; the loss only where the error is not told."""
    there = [quantity for quantity in BY_QUARTER if any(at_path(step, quantity.path) for step in steps)]
    names = [quantity.path for quantity in there]
    return [one for one in there if one.path != "loss_by_quartile" or "mse_by_quartile" not in names]


def _quarters(quantity: _Quantity, steps: Events, marked: Sequence[float]) -> Chart | None:
    lines, keys = [], []
    for quarter, label in enumerate(QUARTERS):
        line = curve(steps, f"{quantity.path}.{quarter}")
        if len(line):
            lines.append(Line(curve=line, role=ORDERED[quarter], dash=DASHES[quarter], raw=False))
        keys.append(Key(label=label, role=ORDERED[quarter], dash=DASHES[quarter]))
    if not lines:
        return None
    log = wants_log([line.curve for line in lines])
    svg = draw(lines, name=quantity.title, unit=quantity.unit, log=log, marks=marked)
    return Chart(title=quantity.title, unit=quantity.unit, svg=svg, reading=quantity.reading, keys=keys)


def _noise_scale(events: Events) -> Chart | None:
    """The noise scale of one run, beside the batch that it trains with."""
    steps = [step for step in kept_steps(events) if (step.get(NOISE_SCALE.path) or 0) > 0]
    chart = _chart(NOISE_SCALE, [("", steps)], marks([("", events)]))
    batch = next((event["batch_size"] for event in events if event.get("batch_size")), None)
    if chart is None or batch is None:
        return chart
    measured = curve(steps, NOISE_SCALE.path)
    level = Curve(measured.x, np.full_like(measured.x, batch))
    lines = [Line(curve=measured), Line(curve=level, role="grey", dash=DASHES[1], smooth=False)]
    log = wants_log([measured, level])
    svg = draw(lines, name=NOISE_SCALE.title, unit=NOISE_SCALE.unit, log=log, marks=marks([("", events)]))
    keys = [Key(label="noise scale", role="blue"), Key(label=f"batch: {count(batch)}", role="grey", dash=DASHES[1])]
    return replace(chart, svg=svg, keys=keys)


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

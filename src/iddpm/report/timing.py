"""Where the time went: seconds by phase, training and the rest, beside what was foretold."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from iddpm.report.content import RunReport
from iddpm.report.curves import kept_events, kept_steps, resumes
from iddpm.report.palette import phase_role
from iddpm.report.quantities import Number, bytes_of_memory, count, duration, percent, ratio, significant
from iddpm.report.views import Bar, Segment, Table

__all__ = [
    "foretold",
    "images_per_second",
    "measured",
    "phase_table",
    "resume_table",
    "saving_table",
    "time_bar",
    "training_phases",
    "training_seconds",
]

PHASED = {"step": "seconds", "interrupt": "seconds_by_phase", "end": "seconds_by_phase"}
SAVES = ("checkpoint", "snapshot")
SAVING = {
    "copy_seconds": "training stood still: copying",
    "wait_seconds": "training stood still: waiting for the save before",
    "write_seconds": "writing, while training went on",
}
MEANINGS = {
    "data": "reading and moving pictures",
    "forward": "the network, and its loss",
    "backward": "gradients",
    "optimizer": "changing the weights",
    "ema": "averaging the weights",
    "checkpoint": "saving: copying, waiting for the disk",
    "preview": "sampling while training",
    "compile": "preparing fast code",
    "prepare": "making the data set",
    "sample": "making pictures",
    "sampling": "making pictures",
    "likelihood": "computing bits per dim",
    "evaluation": "bits per dim of held-out pictures",
    "everything else": "starting, waiting, writing",
}


def training_seconds(events: Sequence[Mapping[str, Any]]) -> float | None:
    """All time spent training, work that was lost and done again included; None where nothing says."""
    told = [
        float(event["elapsed_seconds"])
        for event in kept_events(events, ("step", "interrupt", "end"))
        if event.get("elapsed_seconds") is not None
    ]
    if told:
        return max(told) + sum(resume.lost_seconds for resume in resumes(events))
    return sum(training_phases(events).values()) or None


def training_phases(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds by phase of all step events, lost ones included.

    Checkpoints, previews and evaluations count by what their own events say where step events do not name them.
    """
    sums: dict[str, float] = {}
    for event in events:
        if event.get("event") in PHASED:
            for phase, seconds in (event.get(PHASED[event["event"]]) or {}).items():
                sums[phase] = sums.get(phase, 0.0) + float(seconds)
    for phase in ("checkpoint", "preview", "evaluation"):
        if phase not in sums:
            total = sum(_own_seconds(event) for event in events if event.get("event") == phase)
            if total:
                sums[phase] = total
    return sums


def images_per_second(events: Sequence[Mapping[str, Any]]) -> float | None:
    """Median of the logged rates."""
    rates = [step["images_per_second"] for step in kept_steps(events) if step.get("images_per_second")]
    return float(np.median(rates)) if rates else None


def time_bar(run: RunReport) -> Bar | None:
    """Training by phase and everything outside it, longest first; None where nothing was recorded."""
    training = training_phases(run.events)
    total = training_seconds(run.events) or 0.0
    rest = total - sum(training.values())
    if rest > 0.005 * total:
        training["everything else"] = rest
    parts = [("training", training), ("outside training", dict(run.outside_seconds))]
    whole = float(sum(sum(group.values()) for _, group in parts))
    if whole <= 0:
        return None
    segments = [
        Segment(
            label=phase,
            meaning=MEANINGS.get(phase, ""),
            value=duration(seconds),
            share=seconds / whole,
            role=phase_role(phase),
            group=name,
        )
        for name, group in parts
        for phase, seconds in sorted(group.items(), key=lambda item: -item[1])
        if seconds > 0
    ]
    return Bar(label=run.name, total=duration(whole), whole=whole, segments=segments)


def phase_table(bars: Sequence[Bar]) -> Table:
    """Time and share of each phase, one column a run, in the order of the first run that has it."""
    phases = list(dict.fromkeys((part.group, part.label) for bar in bars for part in bar.segments))
    cells = [{(part.group, part.label): f"{part.value} ({part.percent})" for part in bar.segments} for bar in bars]
    rows = [[phase, *(cell.get((group, phase), "–") for cell in cells)] for group, phase in phases]
    return Table(
        head=["phase", *(bar.label for bar in bars)],
        rows=[*rows, ["in all", *(bar.total for bar in bars)]],
        roles=[*(phase_role(phase) for _, phase in phases), ""],
    )


def measured(run: RunReport) -> dict[str, Number]:
    """What can be set beside a forecast."""
    steps = kept_steps(run.events)
    seconds, rate = training_seconds(run.events), images_per_second(run.events)
    found = {
        "training_seconds": seconds,
        "total_seconds": None if seconds is None else seconds + sum(run.outside_seconds.values()),
        "images_per_second": rate,
        "seconds_per_step": run.batch_size / rate if rate and run.batch_size else None,
        "peak_memory_bytes": max((step.get("peak_memory_bytes") or 0 for step in steps), default=0) or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def foretold(run: RunReport) -> Table | None:
    """Each number of the forecast that can be compared, beside what happened."""
    if not run.forecast:
        return None
    actual = measured(run)
    rows = []
    for name, told in _estimates(run.forecast).items():
        value = told.get("value")
        if not isinstance(value, int | float):
            continue
        low, high = told.get("low"), told.get("high")
        spread = f"{_written(name, low)} to {_written(name, high)}" if low is not None and high is not None else "–"
        row = [
            name.removesuffix("_seconds").removesuffix("_bytes").replace("_", " "),
            _written(name, value),
            spread,
        ]
        rows.append([*row, _written(name, actual.get(name)), _verdict(value, low, high, actual.get(name))])
    return Table(head=["quantity", "forecast", "range", "measured", "verdict"], rows=rows) if rows else None


def resume_table(run: RunReport) -> Table | None:
    """Each resume: where, after what gap, what was lost, what was changed; None where there was none."""
    rows = [
        [
            count(resume.step),
            duration(resume.gap_seconds),
            f"{count(resume.lost_steps)} steps, {duration(resume.lost_seconds)}" if resume.lost_steps else "nothing",
            _changes(resume.changes),
        ]
        for resume in resumes(run.events)
    ]
    return (
        Table(
            head=["resumed at step", "after a pause of", "work done again", "settings changed"],
            rows=rows,
            numeric=9,
        )
        if rows
        else None
    )


def saving_table(run: RunReport) -> Table | None:
    """What saving took, by whether training stood still for it; None where the journal does not say."""
    saves = [event for event in run.events if event.get("event") in SAVES and event.get("copy_seconds") is not None]
    if not saves:
        return None
    rows = [
        [words, duration(float(np.mean(seconds))), duration(max(seconds)), duration(sum(seconds))]
        for name, words in SAVING.items()
        for seconds in [[float(event.get(name) or 0) for event in saves]]
    ]
    size = bytes_of_memory(max(event.get("bytes") or 0 for event in saves))
    return Table(
        head=[f"{count(len(saves))} save{'s'[: len(saves) - 1]}, up to {size}", "each, mean", "longest", "in all"],
        rows=rows,
    )


def _own_seconds(event: Mapping[str, Any]) -> float:
    """What an event says that training stood still for it; writing a checkpoint goes on beside training."""
    told = [event.get(name) for name in ("seconds", "copy_seconds", "wait_seconds")]
    return float(sum(seconds for seconds in told if isinstance(seconds, int | float)))


def _estimates(forecast: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """A forecast by name, whether it is one estimate, or numbers and estimates by name."""
    if "name" in forecast and "value" in forecast:
        return {str(forecast["name"]): forecast}
    return {
        str(name): told if isinstance(told, Mapping) else {"value": told}
        for name, told in forecast.items()
        if isinstance(told, Mapping | int | float)
    }


def _written(name: str, value: Number | None) -> str:
    if value is None:
        return "not measured"
    if name.endswith("_bytes"):
        return bytes_of_memory(value)
    if name == "images_per_second":
        return f"{significant(value)} images/s"
    return duration(value) if "seconds" in name else significant(value)


def _verdict(value: Number, low: Number | None, high: Number | None, actual: Number | None) -> str:
    if actual is None:
        return "–"
    if low is not None and high is not None and low <= actual <= high:
        return "within the range"
    if value <= 0:
        return "–"
    if 0.5 < actual / value < 2:
        return f"{percent(abs(actual / value - 1))} {'more' if actual > value else 'less'} than forecast"
    return f"{ratio(actual / value)} the forecast"


def _changes(changes: Mapping[str, Any]) -> str:
    told = [
        f"{path}: {pair[0]} → {pair[1]}"
        if isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2
        else f"{path}: {pair}"
        for path, pair in changes.items()
    ]
    return "; ".join(told) or "none"

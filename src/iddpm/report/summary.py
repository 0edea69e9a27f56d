"""The headline: what was trained, how far it got, and the few numbers that matter."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from iddpm.report.content import RunReport
from iddpm.report.curves import back_to, kept_steps, rollbacks
from iddpm.report.faults import fault_warnings, skipped_steps
from iddpm.report.held_out import last_measured, measured_on
from iddpm.report.likelihood import best, protocol
from iddpm.report.quantities import (
    bits_per_dim,
    bytes_of_memory,
    compact,
    count,
    duration,
    significant,
    with_prefix,
)
from iddpm.report.timing import images_per_second, measured, training_seconds
from iddpm.report.views import Fact, Table

__all__ = [
    "comparison_table",
    "differing_settings",
    "facts",
    "flat",
    "lead",
    "reached_step",
    "status",
    "warnings",
]


def status(run: RunReport) -> tuple[str, str]:
    """How the run stands, as a word for its state (`done`, `stopped`, `failed`, `going`, `new`) and a sentence."""
    of = f" of {count(run.train_steps)}" if run.train_steps else ""
    told = [
        event
        for event in run.events
        if event.get("event") in ("start", "step", "resume", "rollback", "failed", "interrupt", "end")
    ]
    if not told:
        return "new", "nothing journalled yet"
    last, step = told[-1].get("event"), count(reached_step(run))
    if last == "end":
        return "done", f"finished at step {step}"
    if last == "interrupt":
        return "stopped", f"interrupted at step {step}{of}"
    if last == "failed":
        return "failed", f"failed at step {step}{of}"
    return "going", f"at step {step}{of}: still going, or stopped without a word"


def reached_step(run: RunReport) -> int:
    """The last training step that the journal tells of, since the run last went back."""
    base, since = 0.0, 0
    for position, event in enumerate(run.events):
        if (back := back_to(event)) is not None and math.isfinite(back):
            base, since = back, position + 1
    return int(max([base, *(event.get("step") or 0 for event in run.events[since:])]))


def lead(run: RunReport) -> str:
    """One or two sentences for someone who knows nothing of the run."""
    what = f"A diffusion model of {compact(run.parameters)} parameters" if run.parameters else "A diffusion model"
    recipe = f" (recipe {run.recipe})" if run.recipe else ""
    data = f", trained on {run.data}" if run.data else ""
    device = f" on {run.device}" if run.device else ""
    seconds = training_seconds(run.events)
    took = f" {count(reached_step(run))} training steps took {duration(seconds)}{device}." if seconds else ""
    return f"{what}{recipe}{data}.{took}"


def facts(run: RunReport) -> list[Fact]:
    """The tiles under the headline, without those that nothing is known of."""
    result, rate, memory = (
        best(run),
        images_per_second(run.events),
        measured(run).get("peak_memory_bytes"),
    )
    seconds = training_seconds(run.events)
    bits = _bits_while_training(run) if result is None else _bits(result, run)
    known = [
        Fact(label="Parameters", value=compact(run.parameters), note="trainable numbers") if run.parameters else None,
        Fact(
            label="MACs per image",
            value=with_prefix(run.macs_per_image, "MAC"),
            note="multiply-accumulates, one forward pass",
        )
        if run.macs_per_image
        else None,
        Fact(
            label="FLOPs per image",
            value=with_prefix(run.flops_per_image, "FLOP"),
            note="the same pass; two per MAC",
        )
        if run.flops_per_image
        else None,
        Fact(label="Training time", value=duration(seconds), note=_steps_note(run)) if seconds else None,
        Fact(label="Speed", value=f"{significant(rate)} images/s", note="median, while training") if rate else None,
        Fact(label="Peak memory", value=bytes_of_memory(memory), note="while training") if memory else None,
    ]
    return [*bits, *(fact for fact in known if fact is not None)]


def warnings(run: RunReport, left_out: int) -> list[str]:
    """What a reader must know before trusting the page."""
    found = fault_warnings(run.events)
    if left_out:
        found.append(f"{count(left_out)} logged losses are not finite numbers; the charts leave them out.")
    if not kept_steps(run.events):
        found.append("No training step has been logged yet, so there are no curves.")
    return found


def comparison_table(runs: Sequence[RunReport]) -> Table:
    """The headline numbers, one column a run."""
    results = [best(run) for run in runs]
    seconds = [training_seconds(run.events) for run in runs]
    rows = [
        ["state", *(status(run)[1] for run in runs)],
        ["recipe", *(run.recipe or "–" for run in runs)],
        ["data", *(run.data or "–" for run in runs)],
        ["device", *(run.device or "–" for run in runs)],
        ["parameters", *(compact(run.parameters) for run in runs)],
        ["MACs per image", *(with_prefix(run.macs_per_image, "MAC") for run in runs)],
        ["FLOPs per image", *(with_prefix(run.flops_per_image, "FLOP") for run in runs)],
        ["training steps", *(count(reached_step(run)) for run in runs)],
        ["pictures per step", *(count(run.batch_size) for run in runs)],
        ["training time", *(duration(one) for one in seconds)],
        ["images/s, median", *(_optional(images_per_second(run.events)) for run in runs)],
        ["peak memory", *(bytes_of_memory(measured(run).get("peak_memory_bytes")) for run in runs)],
        [
            "bits/dim ± standard error",
            *("–" if one is None else _total(one).removesuffix(" bits/dim") for one in results),
        ],
        [
            "bits/dim measured on",
            *("–" if one is None else protocol(one, run) for run, one in zip(runs, results, strict=True)),
        ],
        *_rare_rows(runs),
    ]
    return Table(head=["", *(run.name for run in runs)], rows=rows, numeric=len(runs) + 1)


def differing_settings(runs: Sequence[RunReport]) -> Table | None:
    """Settings that are not the same in all the runs; None where all are."""
    trees = [flat(run.config) for run in runs]
    paths = list(dict.fromkeys(path for tree in trees for path in tree))
    rows = [
        [path, *(tree.get(path, "–") for tree in trees)]
        for path in paths
        if len({tree.get(path) for tree in trees}) > 1
    ]
    return Table(head=["setting", *(run.name for run in runs)], rows=rows, numeric=len(runs) + 1) if rows else None


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings by dotted path, as text."""
    found: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = "none" if value is None else str(value)
    return found


def _bits(result: Mapping[str, Any], run: RunReport) -> list[Fact]:
    error = result.get("standard_error_bits_per_dim")
    spread = " ± standard error" if isinstance(error, int | float) and math.isfinite(error) else ""
    return [
        Fact(
            label=f"Bits per dim{spread}",
            value=_total(result).removesuffix(" bits/dim"),
            note=f"lower is better; {protocol(result, run)}",
        )
    ]


def _bits_while_training(run: RunReport) -> list[Fact]:
    event = last_measured(run.events)
    if event is None:
        return []
    step = f" of step {count(event['step'])}" if event.get("step") is not None else ""
    return [
        Fact(
            label="Bits per dim, while training",
            value=_total(event).removesuffix(" bits/dim"),
            note=f"lower is better; {measured_on(event)}{step}",
        )
    ]


def _rare_rows(runs: Sequence[RunReport]) -> list[list[str]]:
    """Rows that most comparisons do not need."""
    measured = [last_measured(run.events) for run in runs]
    rows = [
        [
            "bits/dim at the last measurement while training",
            *(
                "–" if one is None else f"{_total(one).removesuffix(' bits/dim')} ({measured_on(one)})"
                for one in measured
            ),
        ],
        ["steps skipped, not finite", *(count(skipped_steps(run.events)) for run in runs)],
        ["times gone back to a checkpoint", *(count(len(rollbacks(run.events))) for run in runs)],
    ]
    return [row for row in rows if set(row[1:]) - {"–", "0"}]


def _total(result: Mapping[str, Any]) -> str:
    return bits_per_dim(result["bits_per_dim"], result.get("standard_error_bits_per_dim"))


def _steps_note(run: RunReport) -> str:
    batch = f" of {count(run.batch_size)} pictures" if run.batch_size else ""
    return f"{count(reached_step(run))} steps{batch}"


def _optional(value: float | None) -> str:
    return "–" if value is None else significant(value)

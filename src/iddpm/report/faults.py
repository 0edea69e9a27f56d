"""What went wrong in a run, or not as its settings say: in sentences for the headline, and as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from iddpm.report.curves import Rollback, rollbacks
from iddpm.report.quantities import count, percent
from iddpm.report.views import Table

__all__ = ["fault_warnings", "happenings", "skipped_steps"]

Event = Mapping[str, Any]
_ROWS = 60
_NAMES = 4


def skipped_steps(events: Sequence[Event]) -> int:
    """How often a step was skipped because its loss or gradient was not finite."""
    return sum(int(event.get("skipped") or 0) for event in events if event.get("event") == "step")


def fault_warnings(events: Sequence[Event]) -> list[str]:
    """Sentences for those who would take the run for one that was left alone."""
    return [
        told
        for told in (_failed(events), _went_back(events), _skipped(events), _unsaved(events), _begun(events))
        if told
    ]


def happenings(events: Sequence[Event]) -> Table | None:
    """Everything out of the ordinary, oldest first; None where there was nothing."""
    rows = [row for event in events if (row := _row(event)) is not None]
    if not rows:
        return None
    rest = len(rows) - _ROWS
    shown = rows if rest <= 0 else [*rows[:_ROWS], ["…", f"and {count(rest)} more", "the journal has them all"]]
    return Table(head=["at step", "what happened", "in detail"], rows=shown, numeric=9)


def _begun(events: Sequence[Event]) -> str:
    event = next(iter(_from_last(events, "init")), None)
    if event is None:
        return ""
    step = f" of step {count(event['source_step'])}" if event.get("source_step") is not None else ""
    told = f"Training did not start from random weights but from those{step} in {event.get('source')}."
    new = _named(event.get("not_loaded"))
    return f"{told} Not loaded, so random at the start: {new}." if new else told


def _failed(events: Sequence[Event]) -> str:
    since = _from_last(events, "failed")
    if not since or any(one.get("event") in ("resume", "step") for one in since):
        return ""
    return f"Training failed at step {count(since[0].get('step'))}: {since[0].get('reason') or 'no reason was told'}."


def _went_back(events: Sequence[Event]) -> str:
    found = rollbacks(events)
    if not found:
        return ""
    times = "once" if len(found) == 1 else f"{count(len(found))} times"
    shown = ", ".join(_from_to(one) for one in found[:_NAMES]) + (", …" if len(found) > _NAMES else "")
    told = f"The run went back to a checkpoint {times}, as losses or gradients were no longer finite: {shown}."
    factor = found[-1].lr_factor
    if factor is None or factor == 1:
        return told
    return f"{told} Since then the learning rate is {factor:g} times what the settings say."


def _from_to(one: Rollback) -> str:
    return f"from step {count(one.step)} to {count(one.to_step)}"


def _skipped(events: Sequence[Event]) -> str:
    times = skipped_steps(events)
    if not times:
        return ""
    steps = "1 training step was" if times == 1 else f"{count(times)} training steps were"
    told = f"{steps} skipped, as the loss or the gradient was not finite; a skipped step changes no weight."
    scaled = any(event.get("loss_scale") is not None for event in events)
    return f"{told} In fp16 a few are how the loss scale is found." if scaled else told


def _unsaved(events: Sequence[Event]) -> str:
    times = sum(event.get("event") == "checkpoint_failed" for event in events)
    if not times:
        return ""
    last, *since = _from_last(events, "checkpoint_failed")
    saved = next((event for event in since if event.get("event") == "checkpoint"), None)
    after = "none has been since" if saved is None else f"one of step {count(saved.get('step'))} has been since"
    what = "A checkpoint could" if times == 1 else f"{count(times)} checkpoints could"
    return f"{what} not be written, at last that of step {count(last.get('step'))} ({last.get('reason')}); {after}."


def _row(event: Event) -> list[str] | None:
    said = _said(event)
    return None if said is None else [count(event.get("step")), *said]


def _said(event: Event) -> tuple[str, str] | None:
    reason = str(event.get("reason") or "–")
    match event.get("event"):
        case "init":
            return "started from other weights", _init(event)
        case "step" if event.get("skipped"):
            return (
                f"{count(event['skipped'])} step{'s' if event['skipped'] > 1 else ''} skipped",
                "since the entry before; loss or gradient not finite",
            )
        case "rollback":
            return f"went back to step {count(event.get('to_step'))}", f"{reason}{_rate(event)}"
        case "failed":
            return "failed", reason
        case "checkpoint_failed":
            return "checkpoint not written", reason
        case "snapshot_failed":
            return "snapshot of the averages not written", reason
        case "hook_failed":
            return "a preview or an evaluation left out", reason
        case "micro_batch":
            return f"micro-batch of {count(event.get('micro_batch_size'))}", reason
        case "data_wait":
            return "waited for data", f"{percent(event.get('share') or 0)} of the time; {event.get('cure')}"
    return None


def _rate(event: Event) -> str:
    factor = event.get("lr_factor")
    return "" if factor is None or factor == 1 else f"; learning rate times {factor:g}"


def _init(event: Event) -> str:
    parts = [str(event.get("source"))]
    for name, words in (("labels", ""), ("not_loaded", "not loaded: "), ("unused", "in the file, and not used: ")):
        if named := _named(event.get(name)):
            parts.append(f"{words}{named}")
    return "; ".join(parts)


def _named(value: Any) -> str:
    """Names or a count as words; empty for none."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        rest = len(value) - _NAMES
        return ", ".join(str(one) for one in value[:_NAMES]) + (f" and {count(rest)} more" if rest > 0 else "")
    return str(value) if value else ""


def _from_last(events: Sequence[Event], kind: str) -> Sequence[Event]:
    """The last event of a kind and all that came after it; empty without any."""
    places = [place for place, event in enumerate(events) if event.get("event") == kind]
    return events[places[-1] :] if places else ()

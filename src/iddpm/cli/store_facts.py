"""What `iddpm prepare` and `iddpm show` print of a store."""

from typing import Any

__all__ = ["print_store"]

LEFT_OUT_SHOWN, CLASSES_SHOWN, TALLY_KEPT = 10, 12, 1000


def print_store(facts: dict[str, Any]) -> None:
    """The facts of a store as lines."""
    left_out = [f"{kind} {facts[kind]['count']}" for kind in ("ignored", "damaged")]
    print(f"  found {facts['found']}, used {facts['used']}, {', '.join(left_out)}, duplicates {facts['duplicates']}")
    for kind in ("ignored", "damaged"):
        _print_left_out(kind, facts[kind])
    print(f"  {facts['size']}x{facts['size']}, {facts['channels']} channels, {_layout(facts)}; {facts['rule']}")
    if facts["cropped"] or facts["enlarged"]:
        print(
            f"  {facts['cropped']} were not square and lost their ends, {facts['enlarged']} were smaller and enlarged"
        )
    if facts["classes"]:
        print(f"  {len(facts['classes'])} classes: {_classes(facts)}")
    print(f"  {facts['train']} to train on, {facts['held_out']} held out ({facts['split_rule']})")
    for note in facts["notes"]:
        print(f"  note: {note}")
    if facts["attribution"]:
        print(f"  {facts['attribution']}")


def _print_left_out(kind: str, tally: dict[str, Any]) -> None:
    for left_out in tally["listed"][:LEFT_OUT_SHOWN]:
        print(f"    {kind}: {left_out['name']}: {left_out['reason']}")
    rest = tally["count"] - LEFT_OUT_SHOWN
    if rest > 0:
        where = "all of them" if tally["count"] <= TALLY_KEPT else f"the first {TALLY_KEPT}"
        print(f"    and {rest} more {kind} ({where} in store.json)")


def _layout(facts: dict[str, Any]) -> str:
    amount = f"{facts['raw_bytes'] / 1e6:,.1f} MB of pixels"
    return amount if facts["encoding"] == "raw" else f"{amount}, losslessly encoded"


def _classes(facts: dict[str, Any]) -> str:
    counts = facts.get("class_counts")
    names = facts["classes"][:CLASSES_SHOWN]
    shown = [f"{name} ({counts[index]})" for index, name in enumerate(names)] if counts else names
    return ", ".join(shown) + (" ..." if len(facts["classes"]) > CLASSES_SHOWN else "")

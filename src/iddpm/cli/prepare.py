"""`iddpm prepare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from iddpm.cli.console import parse, print_json, telling

__all__ = ["Arguments", "run"]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Turn pictures into a store: memory-mapped uint8, labels, class names, a held-out split."""

    source: Annotated[str, tyro.conf.Positional]
    """A folder of pictures, an .npz file (arr_0 uint8 NHWC, arr_1 labels), or avatars, avatars-all, digits."""
    size: int
    """Side of the pictures in pixels; box halvings, then bicubic, then the centre square."""
    out: Path
    """Folder of the store; it must not hold anything else."""
    channels: Literal[1, 3] = 3
    """1 (grey) or 3 (RGB)."""
    labels: Literal["auto", "folders", "prefix", "none"] = "auto"
    """Where labels come from: sub-folders, the file name up to the first underscore, or nowhere."""
    count: int | None = None
    """Training pictures of each class, for the avatars alone."""
    workers: int | None = None
    """Pictures read at a time; None: all cores."""
    json: bool = False
    """Print one JSON object: found, used, ignored, damaged, duplicates, classes, train, held_out, seconds ..."""


def run(argv: list[str]) -> None:
    """Parse and run."""
    arguments = parse(Arguments, argv, prog="prepare")
    from iddpm.commands.store import prepare_store

    with telling() as listener:
        figures = prepare_store(
            arguments.source,
            arguments.size,
            arguments.out,
            listener=listener,
            channels=arguments.channels,
            labels=arguments.labels,
            count=arguments.count,
            workers=arguments.workers,
        )
    if arguments.json:
        print_json(figures)
    else:
        _tell(figures)


def _tell(figures: dict[str, Any]) -> None:
    done = "is there already, unchanged" if figures["already"] else f"written in {figures['seconds']:.1f} s"
    print(f"store {figures['path']} {done}")
    print(
        f"  found {figures['found']}, used {figures['used']}, ignored {figures['ignored']['count']}, damaged {figures['damaged']['count']}"
    )
    for kind in ("ignored", "damaged"):
        for left_out in figures[kind]["listed"][:10]:
            print(f"    {kind}: {left_out['name']}: {left_out['reason']}")
        if figures[kind]["count"] > 10:
            print(f"    and {figures[kind]['count'] - 10} more {kind} (all of them in store.json)")
    print(f"  {figures['size']}x{figures['size']}, {figures['channels']} channels; {figures['rule']}")
    if figures["classes"]:
        shown = ", ".join(figures["classes"][:12]) + (" ..." if len(figures["classes"]) > 12 else "")
        print(f"  {len(figures['classes'])} classes: {shown}")
    print(
        f"  {figures['train']} to train on, {figures['held_out']} held out ({figures['split_rule']}); {figures['duplicates']} duplicates"
    )
    for note in figures["notes"]:
        print(f"  note: {note}")
    if figures["attribution"]:
        print(f"  {figures['attribution']}")

"""`iddpm report`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from iddpm.cli.console import parse, print_json, telling

__all__ = ["Arguments", "run"]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Write a page about a run, RUN/report/index.html, or one that compares several."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run directories."""
    out: Path | None = None
    """Folder of the page; needed for several runs."""
    json: bool = False
    """Print one JSON object: path, runs, bytes."""


def run(argv: list[str]) -> None:
    """Parse and run."""
    arguments = parse(Arguments, argv, prog="report")
    from iddpm.commands.report import report

    with telling() as listener:
        facts = report(arguments.runs, arguments.out, listener)
    if arguments.json:
        print_json(facts)
    else:
        print(facts["path"])

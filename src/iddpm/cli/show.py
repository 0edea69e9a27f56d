"""`iddpm show`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from iddpm.cli.console import parse, print_json, telling
from iddpm.cli.store_facts import print_store
from iddpm.runtime.errors import ConfigError

__all__ = ["Arguments", "run"]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What a recipe or a run is: settings, parameters, and the work of one image and of the whole training. Or what a store
    holds: pictures used and left out, classes, the split, and a sheet of its pictures.
    """

    target: Annotated[str, tyro.conf.Positional]
    """A recipe's name, a run directory or a store."""
    sheet: Path | None = None
    """Where to write the sheet of a store's pictures, a PNG; None: contact_sheet.png in the store."""
    check: bool = False
    """Read every picture of the store and compare with its content hash."""
    json: bool = False
    """Print one JSON object: parameters, macs_per_image and flops_per_image (forward; 1 MAC = 2 FLOP), config; of a store
    found, used, ignored, damaged, classes, class_counts, train, held_out, raw_bytes, contact_sheet ..."""


def run(argv: list[str]) -> None:
    """Parse and run."""
    arguments = parse(Arguments, argv, prog="show")
    from iddpm.data.store import is_store

    if is_store(arguments.target):
        _run_store(arguments)
        return
    if arguments.sheet is not None or arguments.check:
        raise ConfigError(f"--sheet and --check are for a store, and {arguments.target} is none", "leave them out")
    from iddpm.commands.show import show

    facts = show(arguments.target)
    if arguments.json:
        print_json(facts)
        return
    if "path" in facts:
        print(f"run {facts['path']}, step {facts['step']}")
    print(f"parameters                   {facts['parameters'] / 1e6:.3f} M")
    print(
        f"forward pass of one image    {facts['macs_per_image'] / 1e9:.3f} GMAC = {facts['flops_per_image'] / 1e9:.3f} GFLOP"
    )
    print(f"images seen in training      {facts['train_images']:,}")
    print(f"training in all              {facts['train_flops']:.3g} FLOP (three forward passes an image)")
    for path, value in _leaves(facts["config"]):
        print(f"  {path:<36} {value}")


def _run_store(arguments: Arguments) -> None:
    from iddpm.commands.show_store import show_store

    with telling() as listener:
        facts = show_store(Path(arguments.target), sheet=arguments.sheet, check=arguments.check, listener=listener)
    if arguments.json:
        print_json(facts)
        return
    print(f"store {facts['store']}, {facts['bytes_on_disk'] / 1e6:,.1f} MB, from {facts['source']} ({facts['kind']})")
    print_store(facts)
    print(f"  content {facts['content_hash'][:16]}{', every pixel as prepared' if facts['content_checked'] else ''}")
    if facts["contact_sheet"]:
        print(f"  some of the training pictures: {facts['contact_sheet']}")


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value

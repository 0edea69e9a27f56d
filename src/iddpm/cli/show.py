"""`iddpm show`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from iddpm.cli.console import parse, print_json

__all__ = ["Arguments", "run"]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What a recipe or a run is: settings, parameters, and the work of one image and of the whole training."""

    target: Annotated[str, tyro.conf.Positional]
    """A recipe's name or a run directory."""
    json: bool = False
    """Print one JSON object: parameters, macs_per_image and flops_per_image (forward; 1 MAC = 2 FLOP), config."""


def run(argv: list[str]) -> None:
    """Parse and run."""
    arguments = parse(Arguments, argv, prog="show")
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


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value

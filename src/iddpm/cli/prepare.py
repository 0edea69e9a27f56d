"""`iddpm prepare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from iddpm.cli.console import parse, print_json, telling
from iddpm.cli.store_facts import print_store
from iddpm.runtime.errors import ConfigError

__all__ = ["Arguments", "run"]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Turn pictures into a store: uint8 pictures of one size, labels, class names, a held-out split, and what was left out
    and why. Cut short, the same command goes on where it stopped.

    SOURCE is one of: a folder of pictures; a zip or tar; WebDataset shards; an .npz or .npy of pixels; CIFAR's python
    batches; MNIST's IDX files; downsampled ImageNet's batches; an LSUN LMDB; a Hugging Face dataset (a folder, or hf:NAME);
    or a set by name: avatars, avatars-all, emoji, digits (built in), cifar10, cifar100, mnist, fashion-mnist (downloaded).
    """

    source: Annotated[str, tyro.conf.Positional]
    """What to prepare: a path or a name, see above."""
    size: int
    """Side of the pictures in pixels; box halvings, then bicubic. For random crops of 64 at scales 0.8 to 1: 80."""
    out: Path
    """Folder of the store; it must not hold anything else."""
    channels: Literal[1, 3] = 3
    """1 (grey) or 3 (RGB)."""
    crop: Literal["centre", "whole"] = "centre"
    """The centre square of every picture, or square pictures whole, leaving others out."""
    background: str = "white"
    """Colour behind transparent pixels: a name, or #rrggbb."""
    labels: str = "auto"
    """Where labels come from: folders (sub-folders), prefix (file names up to the first underscore), none, or a table of
    files and labels: a .csv, .tsv, .json or .jsonl by its path, also one inside the source. auto: what the source brings."""
    count: int | None = None
    """Training pictures of each class, for the avatars alone."""
    fast_jpeg: bool = False
    """Let the JPEG decoder halve large pictures instead of the BOX filter: much faster, pixels differ slightly."""
    encode_above_gb: float = 64.0
    """A store of more GB of pixels than this is losslessly encoded: a third to a half of the room, decoded while training."""
    workers: int | None = None
    """Pictures read at a time; None: all cores."""
    json: bool = False
    """Print one JSON object: found, used, ignored, damaged, duplicates, classes, train, held_out, raw_bytes, seconds ..."""


def run(argv: list[str]) -> None:
    """Parse and run."""
    arguments = parse(Arguments, argv, prog="prepare")
    if not arguments.encode_above_gb >= 0:
        raise ConfigError(f"--encode-above-gb is {arguments.encode_above_gb}", "allowed: 0 or more GB")
    from iddpm.commands.store import prepare_store

    with telling() as listener:
        figures = prepare_store(
            arguments.source,
            arguments.size,
            arguments.out,
            listener=listener,
            channels=arguments.channels,
            whole=arguments.crop == "whole",
            background=arguments.background,
            labels=arguments.labels,
            count=arguments.count,
            fast_jpeg=arguments.fast_jpeg,
            encode_above_bytes=int(min(arguments.encode_above_gb, 1e9) * 1e9),
            workers=arguments.workers,
        )
    if arguments.json:
        print_json(figures)
        return
    done = "is there already, unchanged" if figures["already"] else f"written in {figures['seconds']:.1f} s"
    print(f"store {figures['path']} {done}")
    print_store(figures)

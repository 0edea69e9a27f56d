"""Downsampled ImageNet (Chrabaszcz, Loshchilov, Hutter 2017) as it is distributed: pickled or npz batches.

The training pictures lie in `train_data_batch_1` to `train_data_batch_10` (for 8x8 and 16x16 pixels in `train_data`),
the validation pictures in `val_data`, each with or without `.npz`: rows of red, green and blue planes, and labels from
1 to 1000, which become 0 to 999 under the names "1" to "1000". The folders of the parts, as they come out of the
archives (`Imagenet64_train_part1` and so on), may lie side by side.
"""

import os
import re
from pathlib import Path
from typing import Any

from iddpm.data.listing import Source, fingerprint
from iddpm.data.scratch import in_scratch
from iddpm.data.sources.arrays.arrays import Part, array_source, as_labels, as_planes, check_labels_option
from iddpm.data.sources.arrays.npz import member_arrays
from iddpm.data.sources.arrays.pickles import plain_pickle
from iddpm.data.sources.arrays.raw_files import names_in
from iddpm.data.sources.state import file_state
from iddpm.runtime.errors import DataError

__all__ = ["imagenet64", "is_imagenet64"]

NAME = re.compile(r"(train_data(_batch_[1-9][0-9]?)?|val_data)(\.npz)?")
PART_FOLDER = re.compile(r"imagenet\d+_(train|val).*", re.IGNORECASE)
STARTS = (b"\x80", b"P")  # of a pickle and of a zip
WHOLE, VAL = "train_data", "val_data"
BATCHES = tuple(f"train_data_batch_{number}" for number in range(1, 11))
CLASSES = 1000


def is_imagenet64(path: Path) -> bool:
    """Whether a folder, or its sub-folders named after the parts, hold batches; or a file is one."""
    files = _files(path)
    return bool(files) and all(map(_starts_well, files))


def imagenet64(path: Path, given: str, labels: str = "auto", scratch: Path | None = None) -> Source:
    """List downsampled ImageNet of any size; the validation pictures are held out where they are there.

    Arrays in npz files are mapped where they lie, or unpacked where they are compressed; pickles are copied to scratch
    files, with one batch at a time in memory.

    Args:
        path: The folder, or a single batch of it.
        given: The source as the user gave it.
        labels: "auto" or "none".
        scratch: Where to unpack to; None is where the system keeps temporary files.

    Raises:
        DataError: A batch is missing or damaged, or is no plain data; batches of different sizes.
        ConfigError: Another option for labels.
        OutputError: No room to unpack.
    """
    check_labels_option(labels, given)
    files = _by_name(_files(path), given)
    order = _order(files, given) if os.path.isdir(path) else list(files)
    parts = [_part(name, files[name], given, labels, scratch) for name in order]
    sides = sorted({part.pictures.shape[1] for part in parts})
    if len(sides) > 1:
        raise DataError(
            f"{given}: batches of different sizes: {', '.join(map(str, sides))} pixels a side", "keep one size in it"
        )
    return array_source(
        parts,
        source=given,
        kind=f"imagenet{sides[0]}",
        classes=tuple(str(label) for label in range(1, CLASSES + 1)),
        settings={"labels": labels},
        fingerprint=fingerprint("imagenet64", labels, [file_state(files[name]) for name in order]),
        notes=(f"no {VAL}: the held-out pictures are taken from the training pictures",) if VAL not in order else (),
    )


def _files(path: Path) -> list[Path]:
    """The batches that are there."""
    if os.path.isfile(path):
        return [path] if NAME.fullmatch(path.name) else []
    below = sorted(name for name in names_in(path) if PART_FOLDER.fullmatch(name))
    folders = [path, *(path / name for name in below)]
    files = [folder / name for folder in folders for name in names_in(folder) if NAME.fullmatch(name)]
    return [file for file in files if os.path.isfile(file)]


def _by_name(files: list[Path], given: str) -> dict[str, Path]:
    """The batches by their names without suffix; of a pickle and an npz side by side the npz."""
    named: dict[str, Path] = {}
    for file in sorted(files, key=lambda file: file.suffix):
        name = file.name.removesuffix(".npz")
        if name in named and named[name].parent != file.parent:
            folders = " and ".join(sorted((named[name].parent.name, file.parent.name)))
            raise DataError(f"{given}: {name} lies in both {folders}", "keep one set in it")
        named[name] = file
    return named


def _starts_well(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(1) in (*STARTS, b"")
    except OSError:
        return True  # reading it will say so


def _order(files: dict[str, Path], given: str) -> list[str]:
    """The names of the parts in their order, once all of them are there."""
    batches = [name for name in BATCHES if name in files]
    if WHOLE in files and batches:
        raise DataError(f"{given}: {WHOLE} and {batches[0]} are both there", "keep one set in it")
    if WHOLE not in files and len(batches) < len(BATCHES):
        missing = [name for name in BATCHES if name not in files]
        raise DataError(
            f"{given}: missing {', '.join(missing) if batches else 'all training batches'}",
            "get the whole set, or give a single batch",
        )
    return (batches or [WHOLE]) + [VAL] * (VAL in files)


def _part(name: str, path: Path, given: str, labels: str, scratch: Path | None) -> Part:
    where = f"{given}: {path.name}"
    batch = _batch(path, where, scratch)
    pictures = as_planes(f"{where}: data", batch.get("data"))
    if path.suffix != ".npz":
        pictures = in_scratch(pictures, scratch)
    told = batch.get("labels")
    numbers = (
        None if labels == "none" else as_labels(f"{where}: labels", told, len(pictures), least=1, most=CLASSES) - 1
    )
    return Part(name=name, pictures=pictures, labels=numbers, held_out=name == VAL)


def _batch(path: Path, where: str, scratch: Path | None) -> dict[str, Any]:
    if path.suffix == ".npz":
        return member_arrays(path, where, ("data", "labels"), scratch)
    try:
        with path.open("rb") as file:
            return plain_pickle(file, where)
    except OSError as error:
        raise DataError(f"{where}: {error.strerror}", "check the permissions") from error

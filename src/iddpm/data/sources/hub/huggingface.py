"""Hugging Face datasets as a source: saved by `save_to_disk`, as Parquet files, or by name from the Hub.

Encoded pictures are taken as they are stored and decoded here. Arrow files stay on the disk and are mapped into
memory; Parquet files are read where they are.
"""

import io
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from iddpm.data.frame import Frame, Picture, UnusablePictureError, from_file
from iddpm.data.listing import LISTED, LeftOut, Listing, Source, Tally, fingerprint, natural_key
from iddpm.data.names import Names, printable, printable_names
from iddpm.data.sources.arrays.arrays import MOST_CLASSES
from iddpm.data.sources.hub.dataset_splits import Split, is_arrow, is_parquet, open_splits, quiet
from iddpm.data.sources.sides import HELD_OUT, TRAIN
from iddpm.data.sources.state import failed, failed_within
from iddpm.runtime.errors import ConfigError, DataError

__all__ = ["huggingface", "is_saved_dataset"]

PICTURES = ("image", "img")
LABELS = ("label", "labels", "fine_label")


@dataclass(frozen=True, eq=False)
class _Reader:
    starts: tuple[int, ...]  # the first place of each split
    rows: tuple[Callable[[int], Any], ...]  # of each split

    def __call__(self, place: int, frame: Frame) -> Picture:
        split = bisect_right(self.starts, place) - 1
        return _picture(self.rows[split](place - self.starts[split]), frame)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Labels:
    """The classes, and each row's label in each split; -1 where it has none."""

    classes: tuple[str, ...]
    of: tuple[Int64[np.ndarray, "_"], ...]


def is_saved_dataset(path: Path) -> bool:
    """Whether a folder holds a dataset: written by `save_to_disk`, or Parquet files, there, in `data` or by split."""
    return is_arrow(path) or is_parquet(path)


def huggingface(what: str | Path, given: str, labels: str = "auto") -> Source:
    """List a dataset. Its labels are read, no picture is.

    Args:
        what: A folder, or "hf:NAME" or "hf:NAME:CONFIG", which downloads what the package's own cache lacks.
        given: The source as the user gave it.
        labels: A column of classes, whole numbers or texts; "none"; "auto": the column of classes named label, labels or
            fine_label, or the only one, or whole numbers of such a name; else none.

    Raises:
        DataError: No such dataset, damaged, or nothing usable in it; the package datasets is missing.
        ConfigError: No such column, or which column holds the pictures cannot be told.
    """
    found = open_splits(what, given)
    image = _picture_column(found[0].features, given)
    column, notes = _label_column(found[0].features, labels, given)
    splits, ignored = _chosen(found, image, column)
    numbers = None if column is None else _labels(splits, column, given)
    if numbers is not None and not _any_to_train_on(splits, numbers):
        if labels != "auto":
            raise DataError(f"{given}: no labels in the column {column}", "use labels none, or another column")
        numbers, notes = None, (f"no labels: the column {column} holds none to train on",)
    used, unlabelled = _used(splits, numbers)
    places = np.flatnonzero(used)
    held_out = _held_out(splits, places)
    listing = Listing(
        source=given,
        kind="hugging face",
        names=printable_names(Names(_names(splits, used))),
        classes=tuple(map(printable, numbers.classes)) if numbers else (),
        labels=np.concatenate(numbers.of)[places] if numbers else None,
        held_out=held_out,
        split_rule=None if held_out is None else f"by split: trains on {TRAIN}, holds out the others",
        ignored=ignored.with_all(unlabelled),
        settings={"labels": labels},
        fingerprint=fingerprint("hugging face", labels, [[split.name, split.count, split.state] for split in found]),
        notes=notes,
    )
    read = _Reader(_starts(splits), tuple(split.rows(image) for split in splits))
    return Source(listing=listing, places=array("q", places.astype(np.int64).tobytes()), read=read)


def _picture(value: Any, frame: Frame) -> Picture:
    """Decode what a column of pictures holds: bytes, or bytes or a path by name."""
    named = value if isinstance(value, dict) else {"bytes": value}
    if named.get("bytes"):
        return from_file(io.BytesIO(named["bytes"]), frame)
    if not named.get("path"):
        raise UnusablePictureError("no picture in this row")
    path = named["path"]
    try:
        with open(path, "rb") as file:
            return from_file(file, frame)
    except FileNotFoundError as error:  # nothing has looked for it when the dataset was listed
        raise UnusablePictureError(f"{printable(path)}: {error.strerror}") from error
    except UnusablePictureError as error:
        raise failed_within(error, path) from error.__cause__
    except OSError as error:
        raise failed(error, path) from error


def _picture_column(features: Mapping[str, Any], given: str) -> str:
    from datasets import Image

    columns = [name for name, feature in features.items() if isinstance(feature, Image)]
    columns = columns or [name for name, feature in features.items() if _may_hold_pictures(feature)]
    if len(columns) == 1:
        return columns[0]
    if preferred := next((name for name in PICTURES if name in columns), None):
        return preferred
    if not columns:
        raise DataError(
            f"{given}: no column of pictures (columns: {', '.join(features)})", "give a dataset of pictures"
        )
    raise ConfigError(
        f"{given}: several columns of pictures: {', '.join(columns)}",
        f"rename the one to use: allowed: {', '.join(PICTURES)}",
    )


def _may_hold_pictures(feature: Any) -> bool:
    """Whether a column without the package's own description looks like one of encoded pictures."""
    inside = feature.get("bytes") if isinstance(feature, dict) else feature
    return getattr(inside, "dtype", "") in ("binary", "large_binary")


def _label_column(features: Mapping[str, Any], labels: str, given: str) -> tuple[str | None, tuple[str, ...]]:
    """The column that labels come from, or None, and remarks for the user."""
    kinds = {name: kind for name, feature in features.items() if (kind := _kind(feature))}
    if labels == "none":
        return None, ()
    if labels != "auto":
        if labels not in kinds:
            raise ConfigError(
                f"labels={labels}: {given} has no column of classes, whole numbers or texts of that name",
                f"allowed: {', '.join(['auto', 'none', *kinds])}",
            )
        return labels, ()
    classes = [name for name, kind in kinds.items() if kind == "classes"]
    named = [name for name in LABELS if name in classes] or (classes if len(classes) == 1 else [])
    named += [name for name in LABELS if kinds.get(name) == "numbers"]
    if named:
        return named[0], ()
    others = classes or [name for name in LABELS if kinds.get(name) == "texts"]
    return None, (f"no labels: they could come from {', '.join(others)}, with labels={others[0]}",) if others else ()


def _kind(feature: Any) -> str | None:
    """What a column's values are as labels: classes, numbers, texts or None."""
    from datasets import ClassLabel

    dtype = getattr(feature, "dtype", "")
    if isinstance(feature, ClassLabel):
        return "classes"
    if isinstance(dtype, str) and dtype.startswith(("int", "uint")):
        return "numbers"
    return "texts" if dtype in ("string", "large_string") else None


def _chosen(found: list[Split], image: str, column: str | None) -> tuple[list[Split], Tally]:
    """The splits that are used: the first, and those that go with it."""
    splits, ignored = [], Tally()
    for split in found:
        reason = _reason(found[0], split, image, column)
        if reason is None:
            splits.append(split)
        else:
            ignored = ignored.with_all(Tally(split.count, (LeftOut(printable(split.name), reason),)))
    return splits, ignored


def _reason(first: Split, split: Split, image: str, column: str | None) -> str | None:
    if _trains(first) and split is not first and split.name.lower() not in HELD_OUT:
        return f"neither {TRAIN} nor {', '.join(HELD_OUT)}"
    if image not in split.features:
        return f"no column {image}"
    if column is not None and split.features.get(column) != first.features[column]:
        return f"its column {column} is not that of {first.name}"
    return None


def _trains(split: Split) -> bool:
    return split.name.lower() == TRAIN


def _labels(splits: list[Split], column: str, given: str) -> _Labels:
    import pyarrow
    import pyarrow.compute

    compute: Any = pyarrow.compute  # makes its functions when it is imported
    feature = splits[0].features[column]
    with quiet(given):
        values = [split.column(column) for split in splits]
    classes: tuple[str, ...] = ()
    if _kind(feature) == "texts":
        classes = tuple(
            sorted({text for each in values for text in each.unique().to_pylist()} - {None}, key=natural_key)
        )
        values = [compute.index_in(each, value_set=pyarrow.array(classes, each.type)) for each in values]
    numbers = tuple(compute.fill_null(each, -1).to_numpy().astype(np.int64) for each in values)
    if _kind(feature) == "classes":
        classes = tuple(feature.names)
    count = len(classes) or max(0, *(int(each.max()) for each in numbers)) + 1
    if count > MOST_CLASSES:
        raise DataError(
            f"{given}: {count} classes in the column {column}", f"allowed: up to {MOST_CLASSES}; labels none"
        )
    classes = classes or tuple(map(str, range(count)))
    return _Labels(classes=classes, of=tuple(np.where(each < count, each, -1) for each in numbers))


def _any_to_train_on(splits: list[Split], numbers: _Labels) -> bool:
    return any((each >= 0).any() for each in (numbers.of[:1] if _trains(splits[0]) else numbers.of))


def _used(splits: list[Split], numbers: _Labels | None) -> tuple[Bool[np.ndarray, "n"], Tally]:
    """Which rows are used, and a tally of those without a label."""
    if numbers is None:
        return np.ones(sum(split.count for split in splits), bool), Tally()
    ignored = Tally()
    for split, labels in zip(splits, numbers.of, strict=True):
        without = np.flatnonzero(labels < 0)
        if len(without) == split.count:
            ignored = ignored.with_all(Tally(split.count, (LeftOut(split.name, "its labels are hidden"),)))
        else:
            listed = tuple(LeftOut(f"{split.name}[{row}]", "no label") for row in without[:LISTED])
            ignored = ignored.with_all(Tally(len(without), listed))
    return np.concatenate(numbers.of) >= 0, ignored


def _held_out(splits: list[Split], places: Int64[np.ndarray, "n"]) -> Bool[np.ndarray, "n"] | None:
    if not _trains(splits[0]):
        return None
    held_out = places >= splits[0].count
    return held_out if held_out.any() else None


def _starts(splits: list[Split]) -> tuple[int, ...]:
    return tuple(accumulate((split.count for split in splits[:-1]), initial=0))


def _names(splits: list[Split], used: Bool[np.ndarray, "n"]) -> Iterator[str]:
    for split, start in zip(splits, _starts(splits), strict=True):
        yield from (f"{split.name}[{row}]" for row in range(split.count) if used[start + row])

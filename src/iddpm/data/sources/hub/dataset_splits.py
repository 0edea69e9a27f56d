"""The splits of a Hugging Face dataset, however it is kept, behind one face: features, rows, whole columns."""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iddpm.data.listing import natural_key
from iddpm.data.names import one_line
from iddpm.data.sources.hub.parquet import ParquetRows
from iddpm.data.sources.sides import HELD_OUT, TRAIN
from iddpm.data.sources.state import file_state
from iddpm.data.sources.tree.folder import has_pictures_near
from iddpm.runtime.errors import DataError

__all__ = ["Split", "is_arrow", "is_parquet", "open_splits", "quiet"]

FOLDERS = ("", "data", TRAIN, *HELD_OUT)  # where a dataset's Parquet files lie

_HUB = "hf:"
_COUNTED = re.compile(r"-\d{5}-of-\d{5}")  # train-00000-of-00002.parquet


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """A part of a dataset.

    Attributes:
        features: The kind of each column, as `datasets` has them.
        rows: By a column's name: what gives its value at a row, pictures undecoded.
        column: By a column's name: all its values, as a pyarrow array.
        state: JSON-able, stands for its content.
    """

    name: str
    features: Mapping[str, Any]
    count: int
    rows: Callable[[str], Callable[[int], Any]]
    column: Callable[[str], Any]
    state: list[object]


def is_arrow(path: Path) -> bool:
    """Whether a folder was written by `save_to_disk`."""
    one = (path / "state.json").is_file() and (path / "dataset_info.json").is_file()
    return one or (path / "dataset_dict.json").is_file()


def is_parquet(path: Path) -> bool:
    """Whether a folder holds a dataset as Parquet files.

    One of such files beside pictures is there by chance, unless its name counts it among a dataset's.
    """
    files = _parquet_files(path)
    return any(_COUNTED.search(file.name) for file in files) or (bool(files) and not has_pictures_near(path))


def _parquet_files(path: Path) -> tuple[Path, ...]:
    """The Parquet files of a dataset: in a folder itself, in its `data`, or in folders of its splits."""
    return tuple(
        path / name / file.name
        for name in FOLDERS
        if (path / name).is_dir()
        for file in sorted((path / name).glob("*.parquet"), key=lambda file: natural_key(file.name))
    )


def open_splits(what: str | Path, given: str) -> list[Split]:
    """The splits of a dataset that hold anything, the one to train on first.

    Args:
        what: A folder, or "hf:NAME" or "hf:NAME:CONFIG" as `datasets.load_dataset` takes them.
        given: The source as the user gave it.

    Raises:
        DataError: It cannot be opened; a package is missing.
    """
    with quiet(given):
        splits = _named(str(what)) if str(what).startswith(_HUB) else _saved(Path(what))
        splits = sorted((split for split in splits if split.count), key=lambda split: split.name.lower() != TRAIN)
    if not splits:
        raise DataError(f"{given}: the dataset is empty", "give a dataset with pictures")
    return splits


def _named(what: str) -> list[Split]:
    from datasets import load_dataset

    name, _, config = what.removeprefix(_HUB).partition(":")
    return [_arrow(split, dataset) for split, dataset in load_dataset(name, config or None).items()]


def _saved(path: Path) -> list[Split]:
    from datasets import DatasetDict, load_from_disk

    if not is_arrow(path):
        return _parquet(path)
    loaded = load_from_disk(str(path))
    parts = loaded.items() if isinstance(loaded, DatasetDict) else [(loaded.split or "rows", loaded)]
    return [_arrow(name, dataset) for name, dataset in parts]


def _arrow(name: object, dataset: Any) -> Split:
    from datasets import Image

    def rows(column: str) -> Callable[[int], Any]:
        chosen = dataset.with_format(None).select_columns([column])
        if isinstance(dataset.features[column], Image):
            chosen = chosen.cast_column(column, Image(decode=False))
        return lambda row: chosen[row][column]

    return Split(
        name=str(name),
        features=dataset.features,
        count=len(dataset),
        rows=rows,
        column=lambda column: dataset.select_columns([column]).with_format("arrow")[:][column],
        state=[dataset._fingerprint, [file_state(Path(file["filename"])) for file in dataset.cache_files]],
    )


def _parquet(path: Path) -> list[Split]:
    files: dict[str, list[Path]] = {}
    for file in _parquet_files(path):
        files.setdefault(_split_of(file), []).append(file)
    return [_of_files(name, tuple(files[name])) for name in files]


def _split_of(file: Path) -> str:
    """The split that a file's name says, or that of its folder: train-00000-of-00002.parquet."""
    words = [*re.split(r"[^a-z]+", file.stem.lower()), file.parent.name.lower()]
    return next((word for word in words if word in (TRAIN, *HELD_OUT)), "rows")


def _of_files(name: str, files: tuple[Path, ...]) -> Split:
    from datasets import Features
    from pyarrow import chunked_array
    from pyarrow.parquet import read_metadata, read_schema, read_table

    def column(column: str) -> Any:
        tables = [read_table(file, columns=[column]) for file in files]
        return chunked_array([chunk for table in tables for chunk in table[column].chunks], tables[0][column].type)

    return Split(
        name=name,
        features=Features.from_arrow_schema(read_schema(files[0])),
        count=sum(read_metadata(file).num_rows for file in files),
        rows=lambda column: ParquetRows(files, column),
        column=column,
        state=[file_state(file) for file in files],
    )


@contextmanager
def quiet(given: str) -> Iterator[None]:
    """Let the package show nothing of its own for the length of a block, and turn whatever it raises into one line.

    Raises:
        DataError: The package is missing, or raised something.
    """
    try:
        import datasets
        from huggingface_hub import utils as hub
    except ImportError as error:
        raise DataError(
            f"{given}: Hugging Face datasets need the package datasets", 'pip install "iddpm[data]"'
        ) from error
    with ExitStack() as afterwards, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for room in (datasets, hub):
            if not room.are_progress_bars_disabled():
                room.disable_progress_bars()
                afterwards.callback(room.enable_progress_bars)
            afterwards.callback(room.logging.set_verbosity, room.logging.get_verbosity())
            room.logging.set_verbosity(room.logging.CRITICAL)
        try:
            yield
        except DataError:
            raise
        except Exception as error:  # the package, Arrow, the Hub and the network raise of all kinds
            text = one_line(error, 1000) or type(error).__name__
            raise DataError(
                f"{given}: cannot open the dataset: {text}", "check its name and the network, or give a folder of it"
            ) from error

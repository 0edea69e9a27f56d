"""Tables of labels as people have them: CSV, TSV and lists in plain text, JSON, JSON lines, StyleGAN's dataset.json."""

import csv
import hashlib
import io
import json
import re
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from iddpm.data.listing import natural_key
from iddpm.data.names import Names, one_line, printable
from iddpm.data.sources.arrays.arrays import MOST_CLASSES
from iddpm.runtime.errors import DataError

__all__ = ["TABLES", "LabelTable", "label_text", "number_classes", "open_tables", "read_table"]

TABLES = "a table of files and labels: .csv, .tsv, .txt, .json, .jsonl"
FILE_COLUMNS = ("file_name", "filename", "file", "path", "image", "image_id", "imageid", "image_name", "img")
LABEL_COLUMNS = ("label", "class", "class_name", "category", "target", "predictionstring")
BOXES = "predictionstring"  # ImageNet's: the class, then a box, any number of times

_WHOLE = re.compile("-?[0-9]+")
_FLOAT = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(\.[0-9]*)?e[+-]?[0-9]+)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelTable:
    """What a table says, row by row.

    Attributes:
        name: The file's name.
        folder: The folder that it lies in, where that is one of the source's own; else "".
        files: The file of each row, as it is written there, `/` between the parts.
        texts: Every label once.
        label_of: The number of each row's label.
        digest: Stands for the table's content.
    """

    name: str
    folder: str
    files: Names
    texts: tuple[str, ...]
    label_of: Int64[np.ndarray, "rows"] = field(repr=False)
    digest: str


def open_tables(
    given: str, labels: str, inside: Mapping[str, int], read: Callable[[str, int], bytes], others: Sequence[str]
) -> tuple[LabelTable, ...]:
    """The table at a path from here, else the one of that path, or all of that name, within a source.

    Args:
        given: The source as the user gave it.
        labels: The path or name.
        inside: The places of the source's own tables, by path.
        read: Reads one of those at its path and place.
        others: What else labels may be, for the message.

    Raises:
        DataError: There is none, or it cannot be used.
    """
    path = Path(labels)
    try:
        if path.is_file():
            return (read_table(path.read_bytes(), path.name, labels),)
    except (OSError, ValueError) as error:
        raise DataError(f"labels {labels}: {error}", "check the path, and the permissions") from error
    same = [each for each in inside if each == labels.removeprefix("./")]
    same = same or [each for each in inside if each.rpartition("/")[2] == labels]
    if not same:
        raise DataError(
            f"labels {labels}: no such file, here or in {given}", f"allowed: {', '.join(others)}, or {TABLES}"
        )
    return tuple(_own_table(given, each, read(each, inside[each])) for each in same)


def _own_table(given: str, path: str, content: bytes) -> LabelTable:
    folder, _, name = path.rpartition("/")
    return read_table(content, name, f"{given}: {printable(path)}", folder)


def read_table(content: bytes, name: str, shown: str, folder: str = "") -> LabelTable:
    """Read a table by the suffix of its name. Rows without a label are passed over.

    Args:
        content: The file's bytes.
        name: Its name.
        shown: What messages call it.
        folder: As in `LabelTable`.

    Raises:
        DataError: It is no such table, or a label is neither a text nor a whole number.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{shown}: not a text file in UTF-8 (byte {error.start})", "save it as UTF-8") from error
    numbers: dict[str, int] = {}
    label_of = array("q")

    def files() -> Iterator[str]:
        for file, label in _rows(text, name, shown):
            if (written := label_text(label, f"{shown}, {one_line(file)}")) and file:
                label_of.append(numbers.setdefault(written, len(numbers)))
                yield _clean("/".join(part for part in file.replace("\\", "/").split("/") if part not in ("", ".")))

    names = Names(files())
    if not names:
        raise DataError(f"{shown}: it holds no labels", f"allowed: {TABLES}")
    return LabelTable(
        name=name,
        folder=folder,
        files=names,
        texts=tuple(numbers),
        label_of=np.array(label_of, np.int64),
        digest=hashlib.sha256(content).hexdigest(),
    )


def label_text(label: object, where: str) -> str:
    """One label as text; "" where there is none.

    Raises:
        DataError: Several labels, or one that is neither a text nor a whole number.
    """
    if label is None:
        return ""
    if isinstance(label, int) and not isinstance(label, bool):
        return str(label)
    shown = one_line(json.dumps(label) if not isinstance(label, str) else label)
    if not isinstance(label, str) or _FLOAT.fullmatch(label.strip()):
        raise DataError(f"{where}: label {shown}", "allowed: one label for each file, a text or a whole number")
    return _clean(label.strip())


def number_classes(texts: Collection[str], where: str) -> tuple[tuple[str, ...], dict[str, int]]:
    """Class names for label texts, and the number of each.

    Texts are classes in natural order. Whole numbers that fill at least half of what lies from 0 to the largest are all
    classes from "0" on, so that the number is the class; sparser ones are as many classes as there are numbers.

    Raises:
        DataError: A number is below 0 or too large.
    """
    if not all(_WHOLE.fullmatch(text) for text in texts):
        classes = tuple(sorted(texts, key=natural_key))
        return classes, {text: number for number, text in enumerate(classes)}
    numbers = {text: int(text) if len(text) < 20 else MOST_CLASSES for text in texts}
    wrong = next((text for text, number in numbers.items() if not 0 <= number < MOST_CLASSES), None)
    if wrong is not None:
        raise DataError(f"{where}: label {one_line(wrong)}", f"allowed: 0 to {MOST_CLASSES - 1}, or texts")
    ids = sorted(set(numbers.values()))
    if ids and ids[-1] < 2 * len(ids):
        return tuple(map(str, range(ids[-1] + 1))), numbers
    place = {number: index for index, number in enumerate(ids)}
    return tuple(map(str, ids)), {text: place[number] for text, number in numbers.items()}


def _rows(text: str, name: str, shown: str) -> Iterator[tuple[str, Any]]:
    suffix = name.lower().rpartition(".")[2]
    try:
        if suffix == "json":
            yield from _pairs(_parsed(text), shown)
        elif suffix in ("jsonl", "ndjson"):
            yield from _pairs((json.loads(line) for line in text.split("\n") if line.strip()), shown)
        else:
            yield from _lines(text, shown)
    except (ValueError, RecursionError, csv.Error) as error:
        raise DataError(f"{shown}: not a whole {suffix} file: {one_line(error)}", f"allowed: {TABLES}") from error


def _parsed(text: str) -> Iterable[Any]:
    """The items of a JSON file: of StyleGAN's, of an object {file: label}, of an array."""
    data = json.loads(text)
    if isinstance(data, dict) and isinstance(data.get("labels", 0), list | dict | None):
        data = data["labels"] or []
    return list(data.items()) if isinstance(data, dict) else data if isinstance(data, list) else [data]


def _pairs(items: Iterable[Any], shown: str) -> Iterator[tuple[str, Any]]:
    for number, item in enumerate(items, 1):
        if isinstance(item, dict):
            file, label = _chosen(list(item), shown)
            item = (item[file], item[label])
        if not isinstance(item, list | tuple) or len(item) != 2 or not isinstance(item[0], str):
            raise DataError(
                f"{shown}: item {number} is no file with its label: {one_line(item)}",
                'allowed: ["a.png", "cat"], {"file_name": "a.png", "label": "cat"}, or an object {"a.png": "cat"}',
            )
        yield item[0], item[1]


def _lines(text: str, shown: str) -> Iterator[tuple[str, str]]:
    """The rows of a table in plain text, with a line of column names or without."""
    start = text.strip().partition("\n")[0]
    delimiter = next((each for each in "\t,; " if each in start), ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    rows = (row for row in ([cell.strip() for cell in row] for row in reader) if any(row))
    first = next(rows, [])
    headed = bool({cell.lower() for cell in first} & {*FILE_COLUMNS, *LABEL_COLUMNS})
    if not headed and len(first) != 2:
        raise _unclear(first, shown)
    file, label = map(first.index, _chosen(first, shown)) if headed else (0, 1)
    boxes = headed and first[label].lower() == BOXES
    for row in rows if headed else chain([first], rows):
        if len(row) < len(first) or any(row[len(first) :]):
            raise DataError(
                f"{shown}, line {reader.line_num}: {len(row)} columns", f"allowed: {len(first)}, as in the first line"
            )
        yield row[file], row[label].partition(" ")[0] if boxes else row[label]


def _chosen(columns: Sequence[str], shown: str) -> tuple[str, str]:
    """The columns of the file and of its label. Of two, where one is known, the other is the other."""
    by_name = {column.lower(): column for column in reversed(columns)}
    file = next((by_name[each] for each in FILE_COLUMNS if each in by_name), None)
    label = next((by_name[each] for each in LABEL_COLUMNS if each in by_name), None)
    if len(columns) == 2:
        file = file or next(each for each in columns if each != label) if label else file
        label = label or next(each for each in columns if each != file)
    if file is None or label is None:
        raise _unclear(columns, shown)
    return file, label


def _unclear(columns: Sequence[str], shown: str) -> DataError:
    there = ", ".join(map(one_line, columns[:8])) + (", ..." if len(columns) > 8 else "")
    return DataError(
        f"{shown}: which columns hold the file and its one label? (columns: {there})",
        f"allowed: one of {', '.join(FILE_COLUMNS[:6])} with one of {', '.join(LABEL_COLUMNS[:5])}",
    )


def _clean(text: str) -> str:
    """A text that can be written as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")

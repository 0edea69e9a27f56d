"""`iddpm show STORE`: what a store holds, where it comes from, and a sheet of its pictures."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from iddpm.data.checking import check_content
from iddpm.data.loader import fixed_order
from iddpm.data.preparing import facts_of
from iddpm.data.store import Store, open_store
from iddpm.report.pictures import contact_sheet, grid
from iddpm.runtime.errors import OutputError
from iddpm.runtime.files import check_writable, write_bytes
from iddpm.runtime.telling import SILENT, Listener

__all__ = ["show_store"]

SHEET = "contact_sheet.png"
SHEET_SIDE = 1200  # screen pixels that a sheet is at most wide, about
PER_CLASS, MOST_CLASSES, UNLABELLED = 12, 30, 120


def show_store(
    path: Path, *, sheet: Path | None = None, check: bool = False, listener: Listener = SILENT
) -> dict[str, Any]:
    """The facts of a store; a sheet of its training pictures is written, a row a class where it has labels.

    Args:
        path: The store.
        sheet: Where to write the sheet; None: into the store.
        check: Read every picture and compare with the content hash.
        listener: Told the progress of the check.

    Raises:
        DataError: The store is damaged.
        OutputError: The sheet cannot be written.
    """
    store = open_store(path)
    if check:
        check_content(store, lambda done, total: listener.progress("checking", done, total, "pictures"))
    return {
        "store": str(store.path.resolve()),
        **facts_of(store),
        "class_counts": _class_counts(store),
        "bytes_on_disk": sum(file.stat().st_size for file in store.path.iterdir()),
        "content_checked": check,
        "contact_sheet": _write_sheet(store, sheet, listener),
    }


def _class_counts(store: Store) -> list[int] | None:
    return None if store.labels is None else np.bincount(store.labels, minlength=len(store.classes)).tolist()


def _write_sheet(store: Store, given: Path | None, listener: Listener) -> str | None:
    """The path of the sheet; None where the store cannot be written and no other place was given."""
    place = store.path / SHEET if given is None else given
    try:
        check_writable(place.parent)
    except OutputError:
        if given is not None:
            raise
        listener.say(f"note: {store.path} is read-only: say --sheet FILE for a sheet of its pictures")
        return None
    order = fixed_order(store, "train")
    columns = max(1, min(PER_CLASS, SHEET_SIDE // store.size))
    scale = max(1, min(4, SHEET_SIDE // (columns * store.size)))
    if store.labels is None:
        shown = order[: columns * max(1, UNLABELLED // columns)]
        picture = grid(_images(store, shown), columns, scale=scale)
    else:
        shown = _of_each_class(store.labels[order], order, columns)
        picture = contact_sheet(
            _images(store, shown), store.labels[shown], store.classes, per_class=columns, scale=scale
        )
    file = io.BytesIO()
    picture.save(file, "PNG")
    write_bytes(place, file.getvalue())
    return str(place.resolve())


def _of_each_class(labels: np.ndarray, order: np.ndarray, each: int) -> np.ndarray:
    present = np.unique(labels)[:MOST_CLASSES]
    return np.concatenate([order[labels == label][:each] for label in present.tolist()])


def _images(store: Store, index: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(store.read(index).transpose(0, 2, 3, 1))

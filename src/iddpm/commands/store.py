"""Stores for commands: `iddpm prepare`, and the cache that `train --data SOURCE` prepares into."""

import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from iddpm.data.crop import WholePicture, stored_size
from iddpm.data.frame import Frame
from iddpm.data.listing import fingerprint
from iddpm.data.opening import open_source
from iddpm.data.preparing import Prepared, prepare, store_source
from iddpm.data.store import SCHEMA, Store, is_store, open_store
from iddpm.experiment.config import DataConfig
from iddpm.runtime.errors import ConfigError
from iddpm.runtime.files import check_writable
from iddpm.runtime.telling import SILENT, Listener

__all__ = ["cache_folder", "downloads", "prepare_store", "store_for"]

SHOWN = 5


def cache_folder() -> Path:
    """Where prepared stores are shared between runs: $IDDPM_CACHE, else ~/.cache/iddpm."""
    return Path(os.environ.get("IDDPM_CACHE") or Path.home() / ".cache" / "iddpm")


def downloads() -> Path:
    """Where downloaded sets are kept, for all runs."""
    return cache_folder() / "downloads"


def prepare_store(source: str, size: int, out: Path, *, listener: Listener = SILENT, **options: Any) -> dict[str, Any]:
    """`iddpm prepare`: a source to a store at `out`; the figures of `Prepared`.

    Args:
        source: As for `iddpm.data.opening.open_source`.
        size: Side of the pictures.
        out: The store's folder.
        listener: Told the pictures done.
        options: Others of `iddpm.data.preparing.prepare`.

    Raises:
        InputError: The source, an option or the place cannot be used.
    """
    prepared = prepare(source, size, out, downloads=downloads(), listener=listener, **options)
    return prepared.figures()


def store_for(data: DataConfig, listener: Listener = SILENT) -> tuple[Store, float]:
    """The store of a run's data: the source itself if it is one, else prepared into the cache; and the seconds that took.

    Raises:
        InputError: The source or the cache cannot be used.
    """
    size = stored_size(data.crop, data.size)
    if is_store(data.source):
        if data.labels != "auto":
            raise ConfigError(f"data.labels is {data.labels}: {data.source} is a store and has its own", "leave it out")
        return open_store(data.source, size=size, channels=data.channels), 0.0
    stores = cache_folder() / "stores"
    check_writable(stores)
    frame = Frame(
        size=size, channels=data.channels, background=data.background, whole=isinstance(data.crop, WholePicture)
    )
    opened = open_source(data.source, labels=data.labels, downloads=downloads(), scratch=stores, listener=listener)
    identity = fingerprint(SCHEMA, opened.listing.fingerprint, asdict(frame))
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(data.source).name).strip("-") or "pictures"
    place = stores / f"{name[:60]}-{size}x{size}x{data.channels}-{identity[:12]}"
    listener.say(f"data: {data.source} at {size}x{size}, prepared in {place}")
    prepared = store_source(opened, frame, place, listener=listener)
    _tell(prepared, listener)
    return prepared.store, 0.0 if prepared.already else prepared.seconds


def _tell(prepared: Prepared, listener: Listener) -> None:
    told, store = prepared.store.provenance, prepared.store
    left_out = f", {told.ignored.count} ignored, {told.damaged.count} damaged"
    listener.say(
        f"data: {told.used} of {told.found} pictures used{left_out if told.used < told.found else ''}; "
        f"{len(store.train)} to train on, {len(store.held_out)} held out ({told.split_rule})"
    )
    for each in (*told.damaged.listed[:SHOWN], *told.ignored.listed[:SHOWN]):
        listener.say(f"  left out: {each.name}: {each.reason}")
    if told.damaged.count + told.ignored.count > SHOWN:
        listener.say(f"  `iddpm show {store.path}` says more")
    if told.cropped:
        listener.say(f"data: {told.cropped} pictures are not square: {told.rule}")
    for note in told.notes:
        listener.say(f"note: {note}")
    if told.attribution:
        listener.say(f"data: {told.attribution}")

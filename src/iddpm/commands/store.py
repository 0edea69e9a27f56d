"""Stores for commands: `iddpm prepare`, and the cache that `train --data SOURCE` prepares into."""

import os
import re
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from iddpm.data.crop import WholePicture, stored_size
from iddpm.data.frame import Frame
from iddpm.data.listing import fingerprint
from iddpm.data.opening import open_source, quick_state
from iddpm.data.preparing import Prepared, prepare, store_source
from iddpm.data.store import SCHEMA, Store, is_store, open_store
from iddpm.experiment.config import DataConfig
from iddpm.runtime.errors import ConfigError
from iddpm.runtime.files import check_writable, write_text
from iddpm.runtime.telling import SILENT, Listener

__all__ = ["cache_folder", "downloads", "prepare_store", "store_for"]

SHOWN = 5  # pictures left out that are named before training
FORGOTTEN = 7 * 24 * 3600.0  # seconds after which work that nobody went on with is removed from the cache


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
    frame = _frame(data)
    if is_store(data.source):
        store = open_store(data.source, size=frame.size, channels=data.channels)
        _check_options(data, frame, store)
        return store, 0.0
    stores = cache_folder() / "stores"
    shortcut = _shortcut(stores, data, frame)
    if (there := _remembered(stores, shortcut)) is not None:
        listener.say(f"data: {data.source} at {frame.size}x{frame.size}, prepared before in {there.path}")
        _tell(there, listener)
        return there, 0.0
    check_writable(stores)
    opened = open_source(data.source, labels=data.labels, downloads=downloads(), scratch=stores, listener=listener)
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(data.source).name).strip("-")[:60] or "pictures"
    place = f"{name}-{frame.size}x{frame.size}x{data.channels}"
    identity = fingerprint(SCHEMA, opened.listing.fingerprint, asdict(frame))
    _forget(stores, place)
    listener.say(f"data: {data.source} at {frame.size}x{frame.size}, prepared in {stores / f'{place}-{identity[:12]}'}")
    prepared = store_source(opened, frame, stores / f"{place}-{identity[:12]}", listener=listener)
    if shortcut is not None:
        write_text(shortcut, prepared.store.path.name)
    _tell(prepared.store, listener)
    return prepared.store, _seconds(prepared)


def _frame(data: DataConfig) -> Frame:
    return Frame(
        size=stored_size(data.crop, data.size),
        channels=data.channels,
        background=data.background,
        whole=isinstance(data.crop, WholePicture),
    )


def _seconds(prepared: Prepared) -> float:
    return 0.0 if prepared.already else prepared.seconds


def _check_options(data: DataConfig, frame: Frame, store: Store) -> None:
    """A store was made with options of its own: others are not silently ignored."""
    made = store.provenance.settings["frame"]
    again = "leave it out, or prepare the source again with it"
    if data.labels != "auto":
        raise ConfigError(f"data.labels is {data.labels}: {data.source} is a store and has its own", again)
    if data.background != DataConfig.background and Frame(**made).background_hex != frame.background_hex:
        raise ConfigError(f"data.background is {data.background}: the store was made with {made['background']}", again)
    if frame.whole and store.provenance.cropped:
        raise ConfigError(
            f"whole pictures are asked for: {store.provenance.cropped} in {data.source} lost their ends", again
        )


def _shortcut(stores: Path, data: DataConfig, frame: Frame) -> Path | None:
    """The file that says where a source of one or a few files was prepared, so that it need not be opened again."""
    state = quick_state(data.source, downloads())
    if state is None:
        return None
    table = quick_state(data.labels, downloads()) if Path(data.labels).is_file() else None
    return stores / f".{fingerprint(SCHEMA, state, data.labels, table, asdict(frame))}.place"


def _remembered(stores: Path, shortcut: Path | None) -> Store | None:
    if shortcut is None or not shortcut.is_file():
        return None
    place = stores / shortcut.read_text(encoding="utf-8")
    return open_store(place) if is_store(place) else None


def _forget(stores: Path, place: str) -> None:
    """Remove what was left of the same source in an earlier state, once nobody can want it."""
    for folder in stores.glob(f".{place}-*.preparing"):
        newest = max((file.stat().st_mtime for file in folder.iterdir()), default=0.0)
        if time.time() - newest > FORGOTTEN:
            shutil.rmtree(folder, ignore_errors=True)


def _tell(store: Store, listener: Listener) -> None:
    told = store.provenance
    left_out = f", {told.ignored.count} ignored, {told.damaged.count} damaged"
    listener.say(
        f"data: {told.used} of {told.found} pictures used{left_out if told.used < told.found else ''}; "
        f"{len(store.train)} to train on, {len(store.held_out)} held out ({told.split_rule})"
    )
    for each in (*told.damaged.listed[:SHOWN], *told.ignored.listed[:SHOWN]):
        listener.say(f"  left out: {each.name}: {each.reason}")
    if told.damaged.count > SHOWN or told.ignored.count > SHOWN:
        listener.say(f"  `iddpm show {store.path}` names more")
    if told.cropped:
        listener.say(f"data: {told.cropped} pictures are not square: {told.rule}")
    for note in told.notes:
        listener.say(f"note: {note}")
    if told.attribution:
        listener.say(f"data: {told.attribution}")

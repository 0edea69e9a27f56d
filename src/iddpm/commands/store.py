"""Stores for commands: `iddpm prepare`, and the cache that `train --data SOURCE` prepares into."""

import os
import re
from pathlib import Path
from typing import Any

from iddpm.data.opening import open_source
from iddpm.data.preparing import prepare
from iddpm.data.store import Store, is_store, open_store
from iddpm.runtime.files import check_writable
from iddpm.runtime.telling import SILENT, Listener

__all__ = ["cache_folder", "prepare_store", "store_for"]


def cache_folder() -> Path:
    """Where prepared stores are shared between runs: $IDDPM_CACHE, else ~/.cache/iddpm."""
    return Path(os.environ.get("IDDPM_CACHE") or Path.home() / ".cache" / "iddpm")


def prepare_store(source: str, size: int, out: Path, *, listener: Listener = SILENT, **options: Any) -> dict[str, Any]:
    """`iddpm prepare`: a source to a store at `out`; the figures of `Prepared`.

    Args:
        source: As for `iddpm.data.opening.open_source`.
        size: Side of the pictures.
        out: The store's folder.
        listener: Told the pictures done.
        options: `channels`, `labels`, `count`, `workers` of `iddpm.data.preparing.prepare`.

    Raises:
        InputError: The source, an option or the place cannot be used.
    """
    prepared = prepare(source, size, out, progress=_telling(listener), **options)
    return prepared.figures()


def store_for(source: str, size: int, channels: int, listener: Listener = SILENT) -> tuple[Store, float]:
    """The store of a source: itself if it is one, else prepared into the cache; and the seconds that took.

    Raises:
        InputError: The source or the cache cannot be used.
    """
    if is_store(source):
        return open_store(source, size=size, channels=channels), 0.0
    listing = open_source(source).listing
    stores = cache_folder() / "stores"
    check_writable(stores)
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(source).name).strip("-") or "pictures"
    place = stores / f"{name}-{size}x{size}x{channels}-{listing.fingerprint[:12]}"
    listener.say(f"data: {source} at {size}x{size}, prepared in {place}")
    prepared = prepare(source, size, place, channels=channels, progress=_telling(listener))
    told = prepared.store.provenance
    left_out = (
        f", {told.ignored.count} ignored, {told.damaged.count} damaged"
        if told.ignored.count or told.damaged.count
        else ""
    )
    listener.say(
        f"data: {told.used} of {told.found} pictures used{left_out}; "
        f"{len(prepared.store.train)} to train on, {len(prepared.store.held_out)} held out ({told.split_rule})"
    )
    return prepared.store, 0.0 if prepared.already else prepared.seconds


def _telling(listener: Listener) -> Any:
    return lambda done, total: listener.progress("preparing", done, total, "pictures")

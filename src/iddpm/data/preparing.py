"""From any source of pictures to a store: `prepare` reads it and writes the store."""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from iddpm.data.frame import Frame
from iddpm.data.listing import Tally
from iddpm.data.opening import open_source
from iddpm.data.store import HEADER, Store, is_store, open_store
from iddpm.data.writing import write_store
from iddpm.runtime.errors import ConfigError, OutputError
from iddpm.runtime.files import check_writable, new_folder

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """What `prepare` did.

    Attributes:
        store: The store, opened; `store.provenance` says what was found, used and left out.
        already: The same content lay there before: nothing was changed.
        seconds: How long it took.
    """

    store: Store
    already: bool
    seconds: float

    def figures(self) -> dict[str, Any]:
        """The summary as plain values, units in the names."""
        told = self.store.provenance
        return {
            "path": str(self.store.path),
            "source": told.source,
            "already": self.already,
            "found": told.found,
            "used": told.used,
            "ignored": _told(told.ignored),
            "damaged": _told(told.damaged),
            "duplicates": told.duplicates,
            "cropped": told.cropped,
            "enlarged": told.enlarged,
            "size": self.store.size,
            "channels": self.store.channels,
            "classes": list(self.store.classes),
            "train": len(self.store.train),
            "held_out": len(self.store.held_out),
            "split_rule": told.split_rule,
            "rule": told.rule,
            "attribution": told.attribution,
            "notes": list(told.notes),
            "content_hash": self.store.content_hash,
            "seconds": self.seconds,
        }


def prepare(
    source: str | Path,
    size: int,
    out: str | Path,
    *,
    channels: int = 3,
    background: str = "white",
    whole: bool = False,
    labels: str = "auto",
    count: int | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Prepared:
    """Bring every picture of a source to size x size and write the store at `out`, whole or not at all.

    The same source and settings again change nothing; another content is never put over a store.

    Args:
        source: As for `open_source`.
        size: Side of the pictures.
        out: The store's folder; missing, empty, or a store of the same content.
        channels: 1 (grey) or 3 (RGB).
        background: Colour behind transparent pixels.
        whole: Take square pictures alone, uncropped.
        labels: As for `open_source`.
        count: As for `open_source`.
        workers: Pictures read at a time; None takes all usable cores. The store does not depend on it.
        progress: Called with (pictures read, pictures found).

    Raises:
        DataError: The source cannot be used.
        ConfigError: An option is not valid.
        OutputError: `out` cannot be written, or something else is there.
    """
    started = time.perf_counter()
    if workers is not None and workers < 1:
        raise ConfigError(f"workers {workers}", "allowed: 1 or more")
    frame = Frame(size=size, channels=channels, background=background, whole=whole)
    out = Path(out)
    there = _store_at(out)
    listed = open_source(source, labels=labels, count=count)
    if there is not None:
        if (there.size, there.channels) != (size, channels):
            raise _taken(out, f"{there.channels} channels at size {there.size}")
        if there.provenance.fingerprint == listed.listing.fingerprint:
            return Prepared(store=there, already=True, seconds=time.perf_counter() - started)
    check_writable(out.parent)
    with new_folder(out) as aside:
        content_hash = write_store(aside, listed, frame, workers=workers, progress=progress)
        if there is not None and there.content_hash != content_hash:
            raise _taken(out, f"other content, from {there.provenance.source}")
    return Prepared(store=open_store(out), already=there is not None, seconds=time.perf_counter() - started)


def _store_at(out: Path) -> Store | None:
    """The store that lies at a place, or None where the place is free."""
    if is_store(out):
        return open_store(out)
    if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
        raise OutputError(
            f"{out} is there already and is not a store (no {HEADER})", "choose another place, or remove it"
        )
    return None


def _taken(out: Path, what: str) -> OutputError:
    return OutputError(f"{out} holds a store of {what}", "choose another place, or remove that one first")


def _told(tally: Tally) -> dict[str, Any]:
    return {"count": tally.count, "listed": [asdict(each) for each in tally.listed]}

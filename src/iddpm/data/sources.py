"""From any source of pictures to a store: `open_source` lists it, `prepare` reads it and writes the store."""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from iddpm.data.avatars import STYLES, all_styles, avatars
from iddpm.data.digits import digits
from iddpm.data.folder import Labels, folder
from iddpm.data.listing import Source, Tally, fingerprint
from iddpm.data.npz import npz
from iddpm.data.store import HEADER, Store, is_store, open_store
from iddpm.data.writing import write_store
from iddpm.runtime.errors import ConfigError, DataError, OutputError
from iddpm.runtime.files import check_writable, new_folder

__all__ = ["BUILT_IN", "Prepared", "open_source", "prepare"]

BUILT_IN = ("avatars", "avatars-all", "digits")


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


def open_source(source: str | Path, *, labels: Labels = "auto", count: int | None = None) -> Source:
    """List a source by name or path; no picture is read.

    Args:
        source: "avatars", "avatars-all", "digits", an npz file, or a folder ("./digits" is a folder).
        labels: Where labels come from; for a built-in set or an npz file "auto" or "none".
        count: Training pictures of a class, for the avatars alone.

    Raises:
        DataError: No such source, or nothing usable in it.
        ConfigError: An option that this source does not have.
    """
    given = str(source)
    if count is not None and not given.startswith("avatars"):
        raise ConfigError(
            f"count={count}: {given} has as many pictures as it has", "count is for the avatars: leave it out"
        )
    if given not in BUILT_IN and not os.path.isfile(given):
        return _folder(Path(given), given, labels)
    if labels in ("folders", "prefix"):
        raise ConfigError(f"labels={labels}: {given} brings its own labels", "allowed: auto, none")
    if given not in BUILT_IN:
        return _file(Path(given), given, with_labels=labels == "auto")
    return _built_in(given, count) if labels == "auto" else _unlabelled(_built_in(given, count))


def prepare(
    source: str | Path,
    size: int,
    out: str | Path,
    *,
    channels: int = 3,
    labels: Labels = "auto",
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
    _check_request(size, channels, workers)
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
        content_hash = write_store(aside, listed, size, channels, workers=workers, progress=progress)
        if there is not None and there.content_hash != content_hash:
            raise _taken(out, f"other content, from {there.provenance.source}")
    return Prepared(store=open_store(out), already=there is not None, seconds=time.perf_counter() - started)


def _built_in(name: str, count: int | None) -> Source:
    if name == "digits":
        return digits()
    return avatars(name, STYLES if name == "avatars" else all_styles(), count)


def _file(path: Path, given: str, with_labels: bool) -> Source:
    if path.suffix.lower() != ".npz":
        raise DataError(f"{given}: this kind of file cannot be read", "allowed: a folder of pictures, an .npz file")
    return npz(path, given, with_labels)


def _folder(path: Path, given: str, labels: Labels) -> Source:
    if not os.path.exists(path):
        raise DataError(f"{given}: no such file or folder", f"allowed: a path, or one of {', '.join(BUILT_IN)}")
    if is_store(path):
        raise DataError(f"{given} is a prepared store already", "use it as it is, or prepare its source again")
    return folder(path, given, labels)


def _unlabelled(source: Source) -> Source:
    """The same pictures without labels."""
    listing = source.listing
    without = replace(listing, labels=None, classes=(), fingerprint=fingerprint(listing.fingerprint, "no labels"))
    return replace(source, listing=without)


def _check_request(size: int, channels: int, workers: int | None) -> None:
    if size < 1:
        raise ConfigError(f"size {size}", "allowed: 1 or more pixels")
    if channels not in (1, 3):
        raise ConfigError(f"channels {channels}", "allowed: 1 (grey), 3 (RGB)")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers {workers}", "allowed: 1 or more")


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

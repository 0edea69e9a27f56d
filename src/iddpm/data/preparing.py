"""From any source of pictures to a store: `prepare` reads it and writes the store, whole or not at all."""

import multiprocessing
import os
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from iddpm.data.frame import Frame
from iddpm.data.listing import Source, Tally, fingerprint
from iddpm.data.opening import open_source
from iddpm.data.shards import MOST_ENCODED_SIDE, Layout
from iddpm.data.store import HEADER, SCHEMA, Store, is_store, is_store_file, open_store
from iddpm.data.tables import NothingUsableError
from iddpm.data.writing import write_store
from iddpm.runtime.errors import ConfigError, OutputError
from iddpm.runtime.files import check_writable, locked, publish_folder
from iddpm.runtime.telling import SILENT, Listener

__all__ = ["ENCODE_ABOVE_BYTES", "Prepared", "facts_of", "prepare", "store_source"]

ENCODE_ABOVE_BYTES = 64 * 10**9


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """What `prepare` did.

    Attributes:
        store: The store, opened; `store.provenance` says what was found, used and left out.
        already: The same content lay there before: no picture was changed.
        resumed_at: How many pictures an earlier attempt that was cut short had read.
        seconds: How long it took.
    """

    store: Store
    already: bool
    resumed_at: int
    seconds: float

    def figures(self) -> dict[str, Any]:
        """The summary as plain values, units in the names."""
        return {
            "path": str(self.store.path),
            "already": self.already,
            "resumed_at": self.resumed_at,
            "seconds": round(self.seconds, 3),
        } | facts_of(self.store)


def facts_of(store: Store) -> dict[str, Any]:
    """What a store holds and where it comes from, as plain values, units in the names."""
    told = store.provenance
    return {
        "source": told.source,
        "kind": told.kind,
        "found": told.found,
        "used": told.used,
        "ignored": _told(told.ignored),
        "damaged": _told(told.damaged),
        "duplicates": told.duplicates,
        "cropped": told.cropped,
        "enlarged": told.enlarged,
        "size": store.size,
        "channels": store.channels,
        "encoding": store.encoding,
        "raw_bytes": store.raw_bytes,
        "classes": list(store.classes),
        "train": len(store.train),
        "held_out": len(store.held_out),
        "split_rule": told.split_rule,
        "rule": told.rule,
        "attribution": told.attribution,
        "notes": list(told.notes),
        "content_hash": store.content_hash,
    }


def prepare(
    source: str | Path,
    size: int,
    out: str | Path,
    *,
    channels: int = 3,
    background: str = "white",
    whole: bool = False,
    fast_jpeg: bool = False,
    labels: str = "auto",
    count: int | None = None,
    encode_above_bytes: int = ENCODE_ABOVE_BYTES,
    workers: int | None = None,
    downloads: Path | None = None,
    listener: Listener = SILENT,
) -> Prepared:
    """Bring every picture of a source to size x size and write the store at `out`, whole or not at all.

    The same source and settings again change nothing, or go on with what an attempt that was cut short left beside
    `out`; another content is never put over a store.

    Args:
        source: As for `open_source`.
        size: Side of the pictures.
        out: The store's folder; missing, empty, or a store of the same content.
        channels: 1 (grey) or 3 (RGB).
        background: Colour behind transparent pixels.
        whole: Take square pictures alone, uncropped.
        fast_jpeg: Let the JPEG decoder halve large pictures; see `Frame`.
        labels: As for `open_source`.
        count: As for `open_source`.
        encode_above_bytes: A store of more raw pixels than this is losslessly encoded.
        workers: Pictures read at a time; None takes all usable cores. The store does not depend on it.
        downloads: As for `open_source`.
        listener: Told the progress.

    Raises:
        DataError: The source cannot be used.
        ConfigError: An option is not valid.
        OutputError: `out` cannot be written, or something else is there.
    """
    started = time.perf_counter()
    frame = Frame(size=size, channels=channels, background=background, whole=whole, fast_jpeg=fast_jpeg)
    out = Path(out).resolve()
    _store_at(out, frame)  # a place that cannot be is refused before any work
    check_writable(out.parent)
    listed = open_source(source, labels=labels, count=count, downloads=downloads, scratch=out.parent, listener=listener)
    made = store_source(listed, frame, out, encode_above_bytes=encode_above_bytes, workers=workers, listener=listener)
    return replace(made, seconds=time.perf_counter() - started)


def store_source(
    source: Source,
    frame: Frame,
    out: str | Path,
    *,
    encode_above_bytes: int = ENCODE_ABOVE_BYTES,
    workers: int | None = None,
    listener: Listener = SILENT,
) -> Prepared:
    """The same for a source that is opened already."""
    started = time.perf_counter()
    _leave_a_starting_worker()
    if workers is not None and workers < 1:
        raise ConfigError(f"workers {workers}", "allowed: 1 or more")
    out = Path(out).resolve()
    layout = _layout(source, frame, encode_above_bytes)
    request = fingerprint(SCHEMA, source.listing.fingerprint, asdict(frame), asdict(layout))
    there, resumed_at = _store_at(out, frame), 0
    if there is None or there.provenance.fingerprint != request:
        check_writable(out.parent)
        with locked(out.parent / f".{out.name}.lock", lambda: listener.say(f"waiting: another process prepares {out}")):
            there = _store_at(out, frame)
            if there is None or there.provenance.fingerprint != request:
                resumed_at = _made(source, frame, layout, request, there, out, workers, listener)
    seconds = time.perf_counter() - started
    return Prepared(store=open_store(out), already=there is not None, resumed_at=resumed_at, seconds=seconds)


def _made(
    source: Source,
    frame: Frame,
    layout: Layout,
    request: str,
    there: Store | None,
    out: Path,
    workers: int | None,
    listener: Listener,
) -> int:
    """Write the store; how many pictures had been read before.

    It grows in a hidden folder beside its place. What is left there when the work is cut short, the next attempt goes
    on with; the folder goes where no store can come of it.
    """
    folder = out.parent / f".{out.name}.preparing"
    folder.mkdir(exist_ok=True)
    _check_room(folder, len(source.places), layout)
    try:
        content_hash, resumed_at = write_store(
            folder, source, frame, layout, request, workers=workers, listener=listener
        )
    except NothingUsableError:
        shutil.rmtree(folder)
        raise
    except KeyboardInterrupt:
        listener.say(f"stopped; the same command goes on with what is in {folder}")
        raise
    if there is None:
        publish_folder(folder, out)
    elif there.content_hash != content_hash:
        shutil.rmtree(folder)
        raise _taken(out, f"other content, from {there.provenance.source}")
    else:
        _renew(folder, there, layout, out)
    return resumed_at


def _check_room(folder: Path, count: int, layout: Layout) -> None:
    """Find out before any work that raw shards do not fit; how small encoded ones get is not known before."""
    if layout.encoding != "raw":
        return
    there = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    needed, free = count * layout.picture_bytes, shutil.disk_usage(folder).free + there
    if needed > free:
        raise OutputError(
            f"{folder.parent}: a store of {count} pictures needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free",
            "free some room, choose another place, or have it encoded with --encode-above-gb 0",
        )


def _renew(folder: Path, there: Store, layout: Layout, out: Path) -> None:
    """Let a store say that its pictures come from the source as it is now. What else lies in its folder stays."""
    if there.layout == layout:
        os.replace(folder / HEADER, out / HEADER)
        shutil.rmtree(folder)
        return
    for path in out.iterdir():
        if not is_store_file(path.name):
            os.replace(path, folder / path.name)
    publish_folder(folder, out)


def _leave_a_starting_worker() -> None:
    """End a process that was started to read pictures and, for want of a guard, runs the script that started it."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit("a script that prepares pictures by processes needs `if __name__ == '__main__'`")


def _layout(source: Source, frame: Frame, encode_above_bytes: int) -> Layout:
    shape = (frame.channels, frame.size, frame.size)
    count = len(source.places)
    raw = count * frame.channels * frame.size**2 <= encode_above_bytes or frame.size > MOST_ENCODED_SIDE
    return Layout.of(shape, count, "raw" if raw else "webp")


def _store_at(out: Path, frame: Frame) -> Store | None:
    """The store that lies at a place, or None where the place is free."""
    if is_store(out):
        there = open_store(out)
        if (there.size, there.channels) != (frame.size, frame.channels):
            raise _taken(out, f"{there.channels} channels at size {there.size}")
        return there
    if os.path.ismount(out):
        raise OutputError(f"{out} is a mount point: it cannot be given its content in one go", "give a folder in it")
    if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
        raise OutputError(
            f"{out} is there already and is not a store (no {HEADER})", "choose another place, or remove it"
        )
    return None


def _taken(out: Path, what: str) -> OutputError:
    return OutputError(f"{out} holds a store of {what}", "choose another place, or remove that one first")


def _told(tally: Tally) -> dict[str, Any]:
    return {"count": tally.count, "listed": [asdict(each) for each in tally.listed]}

"""From any source of pictures to a store: `prepare` reads it and writes the store, whole or not at all."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from iddpm.data.frame import Frame
from iddpm.data.listing import Source, Tally, fingerprint
from iddpm.data.opening import open_source
from iddpm.data.shards import Layout
from iddpm.data.store import HEADER, SCHEMA, Store, is_store, open_store
from iddpm.data.writing import write_store
from iddpm.runtime.errors import ConfigError, DataError, OutputError
from iddpm.runtime.files import check_writable, held, publish_folder
from iddpm.runtime.telling import SILENT, Listener

__all__ = ["ENCODE_ABOVE_BYTES", "Prepared", "facts_of", "prepare", "store_source"]

ENCODE_ABOVE_BYTES = 64 * 10**9


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """What `prepare` did.

    Attributes:
        store: The store, opened; `store.provenance` says what was found, used and left out.
        already: The same content lay there before: nothing was changed.
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
        fast_jpeg: Let large JPEGs be decoded at a fraction of their size; see `Frame`.
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
    frame = Frame(size=size, channels=channels, background=background, whole=whole, fast_jpeg=fast_jpeg)
    _check_place(Path(out), frame)
    room = Path(out).parent
    listed = open_source(source, labels=labels, count=count, downloads=downloads, scratch=room, listener=listener)
    return store_source(listed, frame, out, encode_above_bytes=encode_above_bytes, workers=workers, listener=listener)


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
    if workers is not None and workers < 1:
        raise ConfigError(f"workers {workers}", "allowed: 1 or more")
    out = Path(out)
    _check_place(out, frame)
    layout = _layout(source, frame, encode_above_bytes)
    request = fingerprint(SCHEMA, source.listing.fingerprint, asdict(frame), asdict(layout))
    with _work_folder(out, listener) as folder:
        there = _store_at(out, frame)  # another process may have made it by now
        resumed_at = 0
        if there is None or there.provenance.fingerprint != request:
            content_hash, resumed_at = write_store(
                folder, source, frame, layout, request, workers=workers, listener=listener
            )
            if there is not None and there.content_hash != content_hash:
                raise _taken(out, f"other content, from {there.provenance.source}")
            publish_folder(folder, out)
    seconds = time.perf_counter() - started
    return Prepared(store=open_store(out), already=there is not None, resumed_at=resumed_at, seconds=seconds)


def _check_place(out: Path, frame: Frame) -> None:
    """Find out before any work whether a store of this frame can be put at a place."""
    _store_at(out, frame)
    check_writable(out.parent)


def _layout(source: Source, frame: Frame, encode_above_bytes: int) -> Layout:
    shape = (frame.channels, frame.size, frame.size)
    count = len(source.places)
    raw = count * frame.channels * frame.size**2 <= encode_above_bytes
    return Layout.of(shape, count, "raw" if raw else "webp")


@contextlib.contextmanager
def _work_folder(out: Path, listener: Listener) -> Iterator[Path]:
    """A hidden folder beside `out`, this process's alone.

    What is left there when the work is cut short, the next attempt goes on with. It goes where the source or the
    place turns out to be unusable.
    """
    folder = out.parent / f".{out.name}.preparing"
    handle = _hold(folder, listener)
    try:
        yield folder
    except (DataError, ConfigError, _TakenError):
        shutil.rmtree(folder)
        raise
    except KeyboardInterrupt:
        listener.say(f"stopped; the same command goes on with what is in {folder}")
        raise
    finally:
        with contextlib.suppress(OSError):  # renamed, or not empty
            folder.rmdir()
        if handle is not None:
            os.close(handle)


def _hold(folder: Path, listener: Listener) -> int | None:
    """Make the folder and take it for this process; where another has it, wait until that has ended."""
    while True:
        folder.mkdir(exist_ok=True)
        if os.name != "posix":  # elsewhere a folder cannot be locked
            return None
        handle = os.open(folder, os.O_RDONLY)
        if not held(handle):
            listener.say(f"another process is preparing {folder.name}: waiting for it")
            held(handle, wait=True)
        with contextlib.suppress(FileNotFoundError):  # the other has finished, and given it its name
            if os.path.samestat(os.fstat(handle), os.stat(folder)):
                return handle
        os.close(handle)


class _TakenError(OutputError):
    """The place holds another store."""


def _store_at(out: Path, frame: Frame) -> Store | None:
    """The store that lies at a place, or None where the place is free."""
    if is_store(out):
        there = open_store(out)
        if (there.size, there.channels) != (frame.size, frame.channels):
            raise _taken(out, f"{there.channels} channels at size {there.size}")
        return there
    if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
        raise OutputError(
            f"{out} is there already and is not a store (no {HEADER})", "choose another place, or remove it"
        )
    return None


def _taken(out: Path, what: str) -> _TakenError:
    return _TakenError(f"{out} holds a store of {what}", "choose another place, or remove that one first")


def _told(tally: Tally) -> dict[str, Any]:
    return {"count": tally.count, "listed": [asdict(each) for each in tally.listed]}

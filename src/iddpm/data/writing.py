"""The writing of a store: pixels streamed into shards, one picture after the other, then the tables.

Whatever ends the process, the folder can be gone on with. Now and then all that was written is flushed to the
disk, and `progress.json` says how far it is whole; the next writer cuts the files back to that and reads on from
there. What it writes is a function of the source and the request, so the store comes out the same.
"""

import json
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import cattrs
import numpy as np

from iddpm.data.frame import Frame
from iddpm.data.listing import Damaged, LeftOut, Source, Tally
from iddpm.data.shards import ENDS, Layout
from iddpm.data.store import is_store, open_store
from iddpm.data.tables import NothingUsableError, Written, write_rest
from iddpm.data.work import Done, outcomes
from iddpm.runtime.errors import DataError, OutputError
from iddpm.runtime.files import sync_file, write_json
from iddpm.runtime.telling import SILENT, Listener

__all__ = ["write_store"]

PROGRESS = "progress.json"
DIGESTS, ORIGINS, KEPT, ENDS_PART = "digests.part", "origins.part", "kept.part", "ends.part"
PART_ITEM_BYTES = {DIGESTS: 16, ORIGINS: 16, KEPT: 8, ENDS_PART: 8}
COMMIT_BYTES, COMMIT_SECONDS = 1 << 28, 10.0


@dataclass(kw_only=True)
class _Progress:
    """How far a folder is whole. `read` counts places of the listing, `used` pictures in the shards."""

    request: str
    read: int = 0
    used: int = 0
    shard_bytes: list[int] = field(default_factory=lambda: [0])  # in each; the last is being written
    cropped: int = 0
    enlarged: int = 0
    damaged: Tally = field(default_factory=Tally)
    unsuitable: Tally = field(default_factory=Tally)


def write_store(
    folder: Path,
    source: Source,
    frame: Frame,
    layout: Layout,
    request: str,
    *,
    workers: int | None = None,
    listener: Listener = SILENT,
) -> tuple[str, int]:
    """Read every picture of a source and write a store into a folder, or go on with what a killed writer left there.

    Args:
        folder: Exists, and is this process's alone.
        source: What to read.
        frame: What to bring the pictures to.
        layout: How they lie in the shards.
        request: Stands for the source and all settings: what was written for another is removed.
        workers: Pictures read at a time; None takes all usable cores.
        listener: Told the progress.

    Returns:
        The content hash, and how many pictures of the listing had been read before.

    Raises:
        NothingUsableError: No picture can be used, or none is left to train on.
        DataError: The source fails.
        OutputError: The disk is full or fails.
    """
    if (content_hash := _finished(folder, request)) is not None:
        return content_hash, len(source.places)
    done = _progress_of(folder, layout, request)
    before = done.read
    total = len(source.places)
    if before:
        listener.say(f"going on from picture {before} of {total}")
    try:
        with _Writer(folder, layout, done) as writer:
            for outcome in outcomes(source, frame, layout.encoding, start=done.read, workers=workers):
                writer.add(outcome)
                listener.progress("preparing", done.read, total, "pictures")
        if not done.used:
            first = (*done.damaged.listed, *done.unsuitable.listed)[0]
            raise NothingUsableError(
                f"{source.listing.source}: none of {total} pictures can be used; {first.name}: {first.reason}",
                "give a source with pictures that open",
            )
        content_hash = write_rest(folder, source.listing, _take_in(folder, done, layout), frame, layout, request)
        _remove_parts(folder)
        return content_hash, before
    except OSError as error:
        raise OutputError(
            f"cannot write in {folder}: {error.strerror}", "free some room: the same command goes on from there"
        ) from error


class _Writer:
    """Appends pictures to shards, and to one file for each of what is known of them."""

    def __init__(self, folder: Path, layout: Layout, done: _Progress):
        self._folder, self._layout, self.done = folder, layout, done
        self._since, self._at = 0, time.monotonic()  # bytes since the last commit, and when that was
        self._files = ExitStack()

    def __enter__(self) -> "_Writer":
        done = self.done
        with self._files:
            self._parts = {name: self._open(name, done.used * item) for name, item in _parts(self._layout).items()}
            self._shard = self._open(self._layout.file(len(done.shard_bytes) - 1), done.shard_bytes[-1])
            self._files = self._files.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        with self._files:
            if error == (None, None, None):
                self._commit()

    def add(self, outcome: Done | LeftOut) -> None:
        """Store a picture, or note that it is left out."""
        done = self.done
        if isinstance(outcome, Done):
            self._store(outcome)
        elif isinstance(outcome, Damaged):
            done.damaged = done.damaged.with_one(outcome)
        else:
            done.unsuitable = done.unsuitable.with_one(outcome)
        done.read += 1
        self._since += len(outcome.content) if isinstance(outcome, Done) else 0
        if self._since >= COMMIT_BYTES or time.monotonic() - self._at > COMMIT_SECONDS:
            self._commit()

    def _store(self, picture: Done) -> None:
        done = self.done
        if done.used == len(done.shard_bytes) * self._layout.per_shard:
            self._next_shard()
        self._shard.write(picture.content)
        done.shard_bytes[-1] += len(picture.content)
        self._parts[DIGESTS].write(picture.digest)
        self._parts[ORIGINS].write(picture.origin)
        self._parts[KEPT].write(done.read.to_bytes(8, "little"))
        if ENDS_PART in self._parts:
            self._parts[ENDS_PART].write(done.shard_bytes[-1].to_bytes(8, "little"))
        done.used += 1
        done.cropped += picture.cropped
        done.enlarged += picture.enlarged

    def _next_shard(self) -> None:
        self._commit()
        self._shard.close()
        self._shard = self._open(self._layout.file(len(self.done.shard_bytes)), 0)
        self.done.shard_bytes.append(0)

    def _open(self, name: str, size: int) -> IO[bytes]:
        """A file of the folder cut back to `size`, to be appended to."""
        file = self._files.enter_context((self._folder / name).open("ab"))
        file.truncate(size)
        return file

    def _commit(self) -> None:
        """All that was written is on the disk before `progress.json` says so."""
        for file in (self._shard, *self._parts.values()):
            file.flush()
            sync_file(Path(file.name))
        write_json(self._folder / PROGRESS, cattrs.unstructure(self.done))
        self._since, self._at = 0, time.monotonic()


def _parts(layout: Layout) -> dict[str, int]:
    """The files beside the shards, and their bytes for each picture."""
    return {name: item for name, item in PART_ITEM_BYTES.items() if name != ENDS_PART or layout.encoding != "raw"}


def _progress_of(folder: Path, layout: Layout, request: str) -> _Progress:
    """How far an earlier writer came with the same request; what another left is removed."""
    try:
        found = cattrs.structure(json.loads((folder / PROGRESS).read_text(encoding="utf-8")), _Progress)
        if found.request == request and _is_whole(folder, layout, found):
            return found
    except (OSError, ValueError, KeyError, TypeError, cattrs.BaseValidationError):
        pass
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return _Progress(request=request)


def _is_whole(folder: Path, layout: Layout, done: _Progress) -> bool:
    """Whether every file holds at least what the progress says."""
    needed = {name: done.used * item for name, item in _parts(layout).items()}
    needed |= {layout.file(shard): size for shard, size in enumerate(done.shard_bytes)}
    return all((folder / name).stat().st_size >= size for name, size in needed.items())


def _take_in(folder: Path, done: _Progress, layout: Layout) -> Written:
    """What is known of the pictures in the shards."""
    if layout.encoding != "raw":
        np.save(folder / ENDS, np.fromfile(folder / ENDS_PART, "<i8"))
    return Written(
        digests=np.fromfile(folder / DIGESTS, "S16"),
        origins=np.fromfile(folder / ORIGINS, "S16"),
        kept=np.fromfile(folder / KEPT, "<i8"),
        damaged=done.damaged,
        unsuitable=done.unsuitable,
        cropped=done.cropped,
        enlarged=done.enlarged,
    )


def _finished(folder: Path, request: str) -> str | None:
    """The content hash, where an earlier writer with the same request lacked nothing but the folder's name."""
    if not is_store(folder):  # its header is written last
        return None
    try:
        there = open_store(folder)
    except DataError:
        return None
    if there.provenance.fingerprint != request:
        return None
    _remove_parts(folder)
    return there.content_hash


def _remove_parts(folder: Path) -> None:
    """Remove what served a next writer alone."""
    for name in (PROGRESS, *PART_ITEM_BYTES):
        (folder / name).unlink(missing_ok=True)

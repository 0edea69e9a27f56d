"""The writing of a store: pixels streamed into a file, one picture after the other, then the tables."""

from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

import numpy as np
import PIL

import iddpm
from iddpm.data.frame import Frame, Picture
from iddpm.data.listing import LeftOut, Listing, Provenance, Source, Tally
from iddpm.data.split import count_duplicates, digest, held_out_by_content, with_copies
from iddpm.data.store import IMAGES, write_tables
from iddpm.data.work import outcomes
from iddpm.runtime.errors import DataError, OutputError

__all__ = ["write_store"]

CONTENT_RULE = "by content: 5%, at most 5000, copies on one side"


@dataclass(frozen=True, kw_only=True, eq=False)
class _Written:
    """What went into `images.bin`."""

    digests: np.ndarray
    kept: np.ndarray  # places in the listing of the pictures used
    damaged: Tally
    cropped: int
    enlarged: int


def write_store(
    folder: Path,
    source: Source,
    frame: Frame,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> str:
    """Read every picture of a source and write a store into an empty folder; the content hash comes back.

    Raises:
        DataError: No picture can be used, or none is left to train on.
        OutputError: The disk is full or fails.
    """
    path = folder / IMAGES
    try:
        file = path.open("wb")
    except OSError as error:
        raise _unwritable(error) from error
    with file:
        written = _write_images(file, source, frame, workers, progress)
    return _write_rest(folder, source.listing, written, frame)


def _write_images(
    file: BufferedIOBase,
    source: Source,
    frame: Frame,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> _Written:
    """Stream the pixels into a file, one picture after the other."""
    total = len(source.listing.names)
    digests, kept, damaged, cropped, enlarged = bytearray(), [], [], 0, 0
    for index, outcome in enumerate(outcomes(source, frame, workers=workers)):
        if isinstance(outcome, Picture):
            pixels = outcome.pixels.tobytes()
            _write(file, pixels)
            digests += digest(pixels)
            kept.append(index)
            cropped += outcome.width != outcome.height
            enlarged += min(outcome.width, outcome.height) < frame.size
        else:
            damaged.append(outcome)
        if progress is not None:
            progress(index + 1, total)
    if not kept:
        first: LeftOut = damaged[0]
        raise DataError(
            f"{source.listing.source}: none of {total} pictures can be read; {first.name}: {first.reason}",
            "give a source with pictures that open",
        )
    return _Written(
        digests=np.frombuffer(digests, dtype="S16"),
        kept=np.array(kept),
        damaged=Tally.of(damaged),
        cropped=cropped,
        enlarged=enlarged,
    )


def _write(file: BufferedIOBase, pixels: bytes) -> None:
    try:
        file.write(pixels)
    except OSError as error:
        raise _unwritable(error) from error


def _write_rest(aside: Path, listing: Listing, written: _Written, frame: Frame) -> str:
    """Split, labels and `store.json`; the content hash comes back."""
    held_out, notes = _held_out(listing, written)
    provenance = Provenance(
        source=listing.source,
        kind=listing.kind,
        fingerprint=listing.fingerprint,
        settings=listing.settings | {"pillow": PIL.__version__},
        rule=frame.rule,
        split_rule=listing.split_rule or CONTENT_RULE,
        found=len(listing.names) + listing.ignored.count,
        used=len(written.kept),
        ignored=listing.ignored,
        damaged=written.damaged,
        duplicates=count_duplicates(written.digests),
        cropped=written.cropped,
        enlarged=written.enlarged,
        attribution=listing.attribution,
        notes=listing.notes + notes,
        tool=f"iddpm {iddpm.__version__}",
    )
    return write_tables(
        aside,
        size=frame.size,
        channels=frame.channels,
        digests=written.digests,
        labels=None if listing.labels is None else listing.labels[written.kept],
        classes=listing.classes,
        held_out=held_out,
        provenance=provenance,
    )


def _held_out(listing: Listing, written: _Written) -> tuple[np.ndarray, tuple[str, ...]]:
    """Indices of the held-out pictures, and remarks for the user."""
    if listing.held_out is None:
        held_out = held_out_by_content(written.digests)
        return held_out, () if len(held_out) else ("nothing is held out: fewer than two different pictures",)
    own = np.flatnonzero(listing.held_out[written.kept])
    held_out = with_copies(written.digests, own)
    if len(held_out) == len(written.kept):
        raise DataError(f"{listing.source}: every training picture is a copy of a held-out one", "give other pictures")
    moved = len(held_out) - len(own)
    return held_out, (f"{moved} copies of held-out pictures are kept out of training",) if moved else ()


def _unwritable(error: OSError) -> OutputError:
    return OutputError(f"cannot write the store: {error.strerror}", "free some room, or choose another place")

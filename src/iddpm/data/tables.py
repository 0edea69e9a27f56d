"""What a store says of its pictures once they are written: the split, labels, class names, and where they come from."""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import PIL
from jaxtyping import Int64

import iddpm
from iddpm.data.frame import Frame
from iddpm.data.listing import Listing, Provenance, Tally
from iddpm.data.shards import Layout
from iddpm.data.split import count_duplicates, held_out_by_content, with_copies
from iddpm.data.store import write_tables
from iddpm.runtime.errors import DataError

__all__ = ["NothingUsableError", "Written", "write_rest"]

MANY_CLASSES = 20  # pictures; with fewer, as many classes are nothing odd
CONTENT_RULE = "by content: 5%, at most 5000, copies on one side"


class NothingUsableError(DataError):
    """No picture of the source can be used, or none is left to train on."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Written:
    """What went into the shards.

    Attributes:
        digests: Of each picture's prepared pixels, `S16`.
        origins: Of each picture as the source has it, `S16`.
        kept: The place of each in the listing.
        damaged: What could not be read.
        unsuitable: What is whole, and not of a kind that is used.
    """

    digests: np.ndarray
    origins: np.ndarray
    kept: Int64[np.ndarray, "n"]
    damaged: Tally
    unsuitable: Tally
    cropped: int
    enlarged: int


def write_rest(folder: Path, listing: Listing, written: Written, frame: Frame, layout: Layout, request: str) -> str:
    """Split, labels and `store.json`; the content hash comes back.

    Raises:
        NothingUsableError: Nothing is left to train on.
    """
    labels = None if listing.labels is None else listing.labels[written.kept]
    held_out, notes = _held_out(listing, written, labels)
    notes += _remarks(labels, listing.classes, held_out)
    ignored = listing.ignored.with_all(written.unsuitable)
    provenance = Provenance(
        source=listing.source,
        kind=listing.kind,
        fingerprint=request,
        settings=listing.settings | {"frame": asdict(frame), "pillow": PIL.__version__},
        rule=frame.rule,
        split_rule=listing.split_rule or CONTENT_RULE,
        found=len(listing.names) + listing.ignored.count,
        used=len(written.kept),
        ignored=ignored,
        damaged=written.damaged,
        duplicates=count_duplicates(written.digests),
        cropped=written.cropped,
        enlarged=written.enlarged,
        attribution=listing.attribution,
        notes=listing.notes + notes,
        tool=f"iddpm {iddpm.__version__}",
    )
    return write_tables(
        folder,
        layout=layout,
        digests=written.digests,
        labels=labels,
        classes=listing.classes,
        held_out=held_out,
        provenance=provenance,
    )


def _held_out(
    listing: Listing, written: Written, labels: np.ndarray | None
) -> tuple[Int64[np.ndarray, "v"], tuple[str, ...]]:
    """Indices of the held-out pictures, and remarks for the user."""
    if listing.held_out is None:
        held_out = held_out_by_content(written.digests, written.origins, labels)
        few = "nothing is held out: the pictures are too few, or copies of one another"
        return held_out, () if len(held_out) else (few,)
    own = np.flatnonzero(listing.held_out[written.kept])
    held_out = with_copies(written.digests, own)
    if len(held_out) == len(written.kept):
        raise NothingUsableError(
            f"{listing.source}: every training picture is a copy of a held-out one", "give other pictures"
        )
    moved = len(held_out) - len(own)
    return held_out, (f"{moved} copies of held-out pictures are kept out of training",) if moved else ()


def _remarks(labels: np.ndarray | None, classes: tuple[str, ...], held_out: np.ndarray) -> tuple[str, ...]:
    """What is odd about the labels: classes with no picture to train on, or hardly more than one each."""
    if labels is None:
        return ()
    whole = np.bincount(labels, minlength=len(classes))
    without = np.flatnonzero((whole > 0) & (whole == np.bincount(labels[held_out], minlength=len(classes))))
    names = ", ".join(classes[label] for label in without[:10].tolist()) + (" ..." if len(without) > 10 else "")
    notes = (f"{len(without)} classes have no training picture: {names}",) if len(without) else ()
    many = 2 * np.count_nonzero(whole) > len(labels) > MANY_CLASSES
    return (
        (*notes, f"{np.count_nonzero(whole)} classes for {len(labels)} pictures: are these labels?") if many else notes
    )

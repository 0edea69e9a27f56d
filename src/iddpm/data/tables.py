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

__all__ = ["Written", "write_rest"]

CONTENT_RULE = "by content: 5%, at most 5000, copies on one side"


@dataclass(frozen=True, kw_only=True, eq=False)
class Written:
    """What went into the shards.

    Attributes:
        digests: `S16`, one for each picture.
        kept: The place of each in the listing.
        damaged: What could not be read.
        unsuitable: What is whole, and not of a kind that is used.
    """

    digests: np.ndarray
    kept: Int64[np.ndarray, "n"]
    damaged: Tally
    unsuitable: Tally
    cropped: int
    enlarged: int


def write_rest(folder: Path, listing: Listing, written: Written, frame: Frame, layout: Layout, request: str) -> str:
    """Split, labels and `store.json`; the content hash comes back.

    Raises:
        DataError: Nothing is left to train on.
    """
    held_out, notes = _held_out(listing, written)
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
        labels=None if listing.labels is None else listing.labels[written.kept],
        classes=listing.classes,
        held_out=held_out,
        provenance=provenance,
    )


def _held_out(listing: Listing, written: Written) -> tuple[Int64[np.ndarray, "v"], tuple[str, ...]]:
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

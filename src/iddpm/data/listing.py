"""What a source of pictures offers, as plain values, before and after its pictures are read."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import PIL
from jaxtyping import Bool, Int64

from iddpm.data.frame import RULE, Frame, Picture

__all__ = [
    "Damaged",
    "LeftOut",
    "Listing",
    "Pool",
    "Provenance",
    "Reader",
    "Source",
    "Tally",
    "fingerprint",
    "natural_key",
]

LISTED = 1000

Pool = Literal["threads", "processes", "either"]

_DIGITS = re.compile("[0-9]+")


@dataclass(frozen=True)
class LeftOut:
    """A file or picture that is not used, and why."""

    name: str
    reason: str


class Damaged(LeftOut):
    """Left out because it cannot be read."""


@dataclass(frozen=True)
class Tally:
    """How many were left out; the first 1000 by name."""

    count: int = 0
    listed: tuple[LeftOut, ...] = ()

    @staticmethod
    def of(left_out: list[LeftOut]) -> "Tally":
        """Count all, keep the first."""
        return Tally(len(left_out), tuple(left_out[:LISTED]))

    def with_one(self, left_out: LeftOut) -> "Tally":
        """One more."""
        return self.with_all(Tally(1, (left_out,)))

    def with_all(self, others: "Tally") -> "Tally":
        """Those of another besides."""
        return Tally(self.count + others.count, (self.listed + others.listed)[:LISTED])


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where the pictures of a store come from, and what was done to them.

    Attributes:
        source: The source as it was given.
        kind: "built-in", "folder", "npz" and so on: the kind of source.
        fingerprint: Stands for the source's state and all settings: while equal, preparing again changes nothing.
        settings: What the pictures depend on besides the source: options, library versions.
        rule: How a picture was brought to the size.
        split_rule: How the held-out pictures were chosen.
        found: Files or pictures found = used + ignored + damaged.
        duplicates: Used pictures that are pixel-identical copies of an earlier one.
        cropped: Used pictures that were not square, so that their ends were cut off.
        enlarged: Used pictures whose shorter side was below the size.
        attribution: Licence line to show with the pictures, or None where the pictures are the user's own.
        notes: One-line remarks that the user should see.
    """

    source: str
    kind: str
    fingerprint: str
    settings: dict[str, Any]
    rule: str
    split_rule: str
    found: int
    used: int
    ignored: Tally
    damaged: Tally
    duplicates: int
    cropped: int
    enlarged: int
    attribution: str | None
    notes: tuple[str, ...]
    tool: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Listing:
    """What a source offers before any picture is read; fields as in `Provenance`.

    Attributes:
        names: The name of each picture, in the order of the store (`Names` holds millions in little memory).
        held_out: What the source itself holds out, or None to choose by content.
        split_rule: How `held_out` was decided, or None with it.
    """

    source: str
    kind: str
    names: Sequence[str]
    classes: tuple[str, ...] = ()
    labels: Int64[np.ndarray, "n"] | None = None
    held_out: Bool[np.ndarray, "n"] | None = None
    split_rule: str | None = None
    ignored: Tally = Tally()
    settings: dict[str, Any] = field(default_factory=dict)
    fingerprint: str
    attribution: str | None = None
    notes: tuple[str, ...] = ()


@runtime_checkable
class Reader(Protocol):
    """Reads one picture of a source; small, picklable, safe to call from several threads and processes."""

    def __call__(self, place: Any, frame: Frame) -> Picture:
        """The picture at one of the source's places.

        Raises:
            UnusablePictureError: This one cannot be used.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A source of pictures: what it offers, and how one of them is read.

    Attributes:
        places: What the reader needs to find each picture of the listing (a path, an offset, a key, its index), picklable
            in slices.
        pool: Who may read: "threads" of this process where the reader holds what cannot be handed to another;
            "processes" where reading holds the interpreter lock; or "either".
    """

    listing: Listing
    places: Sequence[Any]
    read: Reader
    pool: Pool = "threads"


def fingerprint(*parts: object) -> str:
    """SHA-256 over JSON-able values, and over what turns files into pixels: our own rule and the decoder's version."""
    decoding = [RULE, PIL.__version__]
    return hashlib.sha256(json.dumps([*parts, decoding], sort_keys=True).encode()).hexdigest()


def natural_key(text: str) -> tuple[str, str]:
    """Sort key that takes runs of digits as numbers: 2 before 10, the text itself where that ties."""
    return _DIGITS.sub(_by_length, text), text


def _by_length(run: re.Match[str]) -> str:
    """Digits as a text that sorts by their value: shorter numbers first, all of them before any letter."""
    digits = run[0].lstrip("0")
    return f"\0{chr(min(len(digits), 99_999) + 1)}{digits}"

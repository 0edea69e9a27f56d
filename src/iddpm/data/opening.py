"""A source by its name or path: which kind it is, and its listing. No picture is read."""

import os
from dataclasses import replace
from pathlib import Path

from iddpm.data.listing import Source, fingerprint
from iddpm.data.sources.avatars import STYLES, all_styles, avatars
from iddpm.data.sources.digits import digits
from iddpm.data.sources.folder import folder
from iddpm.data.sources.npz import npz
from iddpm.data.store import is_store
from iddpm.runtime.errors import ConfigError, DataError

__all__ = ["BUILT_IN", "open_source"]

BUILT_IN = ("avatars", "avatars-all", "digits")


def open_source(source: str | Path, *, labels: str = "auto", count: int | None = None) -> Source:
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


def _built_in(name: str, count: int | None) -> Source:
    if name == "digits":
        return digits()
    return avatars(name, STYLES if name == "avatars" else all_styles(), count)


def _file(path: Path, given: str, with_labels: bool) -> Source:
    if path.suffix.lower() != ".npz":
        raise DataError(f"{given}: this kind of file cannot be read", "allowed: a folder of pictures, an .npz file")
    return npz(path, given, with_labels)


def _folder(path: Path, given: str, labels: str) -> Source:
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

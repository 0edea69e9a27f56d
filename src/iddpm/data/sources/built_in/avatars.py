"""The built-in sets `avatars` and `avatars-all`: DiceBear's CC0 styles as classes, drawn at any size.

Picture k of a style is drawn from the seed `train-k`, its held-out pictures from `held-out-k`. Styles take
turns, so that any run of pictures holds all the classes alike. Vector graphics are rendered at the size
itself: at 32 and 64 pixels that looks the same as rendering four times larger and averaging, and takes a
third of the time. Backgrounds are the styles' own; the frame's shows where there is none.
"""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import numpy as np

from iddpm.data.frame import Frame, Picture, from_file
from iddpm.data.listing import Listing, Source, fingerprint
from iddpm.data.split import HELD_OUT_LIMIT, HELD_OUT_PART
from iddpm.runtime.errors import ConfigError, DataError

__all__ = ["STYLES", "all_styles", "avatars"]

_DEFAULT_COUNT = 1000
STYLES = (
    "critters",
    "cutouts",
    "moods",
    "pixel-art",
    "pixelbot",
    "planets",
    "sprouts",
    "thumbs",
    "voxel-art",
    "stack",
)
NOT_PICTURES = frozenset({"initials", "initial-face"})  # letters of a name, and the seeds are no names


@dataclass(frozen=True)
class _Reader:
    styles: tuple[str, ...]
    train: int  # training pictures of a style

    def seed(self, index: int) -> tuple[str, str]:
        """Style and seed of a picture."""
        k, style = divmod(index, len(self.styles))
        return self.styles[style], f"train-{k}" if k < self.train else f"held-out-{k - self.train}"

    def __call__(self, place: int, frame: Frame) -> Picture:
        name, seed = self.seed(place)
        return from_file(io.BytesIO(_png(name, seed, frame)), frame)


def avatars(name: str, styles: tuple[str, ...], count: int | None = None) -> Source:
    """List the pictures of some styles, training pictures first.

    Args:
        name: The name of the set.
        styles: The classes, in order.
        count: Training pictures of a style; 5% as many are held out besides.

    Raises:
        ConfigError: `count` is not positive.
        DataError: The packages that draw are not installed.
    """
    count = _DEFAULT_COUNT if count is None else count
    if count < 1:
        raise ConfigError(f"count {count} pictures of a class", "allowed: 1 or more")
    held_out = min(max(1, round(count * HELD_OUT_PART)), HELD_OUT_LIMIT // len(styles))
    read = _Reader(styles, count)
    total = (count + held_out) * len(styles)
    index = np.arange(total)
    settings = _settings(styles, count)
    listing = Listing(
        source=name,
        kind="built-in",
        names=tuple("/".join(read.seed(each)) for each in range(total)),
        classes=styles,
        labels=index % len(styles),
        held_out=index >= count * len(styles),
        split_rule=f"by seed: {held_out} of a class held out, drawn from seeds of their own",
        settings=settings,
        fingerprint=fingerprint("avatars", settings),
        attribution="DiceBear avatar styles, CC0 1.0: " + "; ".join(sorted({_credit(style) for style in styles})),
    )
    return Source(listing=listing, places=range(total), read=read, pool="processes")


def all_styles() -> tuple[str, ...]:
    """Every style under CC0, but those that draw letters."""
    return tuple(sorted(name for name, style in _definitions() if _is_free(style) and name not in NOT_PICTURES))


def _settings(styles: tuple[str, ...], count: int) -> dict[str, Any]:
    try:
        versions = {name: version(name) for name in ("dicebear-core", "dicebear-styles", "resvg-py")}
    except ImportError as error:
        raise _not_installed() from error
    return {"styles": list(styles), "count": count, **versions}


def _not_installed() -> DataError:
    return DataError(
        "the built-in avatars need dicebear-core, dicebear-styles and resvg-py",
        "pip install dicebear-core dicebear-styles resvg-py",
    )


def _definitions() -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        folder = files("dicebear_styles")
    except ImportError as error:
        raise _not_installed() from error
    for file in folder.iterdir():
        if file.name.endswith(".json"):
            yield file.name.removesuffix(".json"), json.loads(file.read_text(encoding="utf-8"))


def _is_free(style: dict[str, Any]) -> bool:
    return style["meta"]["license"]["name"].startswith("CC0")


@cache
def _definition(name: str) -> dict[str, Any]:
    return json.loads(files("dicebear_styles").joinpath(f"{name}.json").read_text(encoding="utf-8"))


def _credit(name: str) -> str:
    """Who made a style, as its file says."""
    return _definition(name)["meta"]["creator"]["name"]


@cache
def _style(name: str) -> Any:
    from dicebear import Style

    with _unvalidated():
        return Style(_definition(name))


@contextmanager
def _unvalidated() -> Iterator[None]:
    """Take definitions as they are: they come with the package, and checking one takes up to two seconds."""
    from dicebear.validator import StyleValidator

    validate = vars(StyleValidator)["validate"]
    StyleValidator.validate = staticmethod(lambda data: None)
    try:
        yield
    finally:
        StyleValidator.validate = validate


def _png(name: str, seed: str, frame: Frame) -> bytes:
    import resvg_py
    from dicebear import Avatar

    svg = str(Avatar(_style(name), {"seed": seed}))
    return bytes(
        resvg_py.svg_to_bytes(
            svg_string=svg, width=frame.size, height=frame.size, skip_system_fonts=True, background=frame.background_hex
        )
    )

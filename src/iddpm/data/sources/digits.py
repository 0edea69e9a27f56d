"""The built-in set `digits`: scikit-learn's 1797 handwritten digits of 8x8 pixels, for tests."""

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from jaxtyping import UInt8

from iddpm.data.frame import Frame, Picture, from_array
from iddpm.data.listing import Listing, Source, fingerprint
from iddpm.runtime.errors import DataError

__all__ = ["digits"]

ATTRIBUTION = "Optical recognition of handwritten digits, E. Alpaydin and C. Kaynak, UCI repository, CC BY 4.0"


@dataclass(frozen=True, eq=False)
class _Reader:
    levels: UInt8[np.ndarray, "n 8 8"]

    def __call__(self, place: int, frame: Frame) -> Picture:
        return from_array(self.levels[place], frame)


def digits() -> Source:
    """The digits; the values 0..16 are spread over 0..255.

    Raises:
        DataError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError("the set 'digits' needs scikit-learn", "pip install scikit-learn") from error
    bunch: Any = load_digits()
    levels = (bunch.images * (255 / 16)).round().astype(np.uint8)
    settings = {"scikit-learn": version("scikit-learn")}
    listing = Listing(
        source="digits",
        kind="built-in",
        names=tuple(f"digits[{index}]" for index in range(len(levels))),
        classes=tuple(str(digit) for digit in range(10)),
        labels=bunch.target.astype(np.int64),
        settings=settings,
        fingerprint=fingerprint("digits", settings),
        attribution=ATTRIBUTION,
    )
    return Source(listing=listing, places=range(len(levels)), read=_Reader(levels))

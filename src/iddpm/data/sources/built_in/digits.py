"""The built-in set `digits`: scikit-learn's 1797 handwritten digits of 8x8 pixels, for tests."""

from importlib.metadata import version
from typing import Any

import numpy as np

from iddpm.data.listing import Source, fingerprint
from iddpm.data.sources.arrays.arrays import Part, array_source
from iddpm.runtime.errors import DataError

__all__ = ["digits"]

ATTRIBUTION = "Optical recognition of handwritten digits, E. Alpaydin and C. Kaynak, UCI repository, CC BY 4.0"


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
    return array_source(
        [Part(name="digits", pictures=levels, labels=bunch.target.astype(np.int64))],
        source="digits",
        kind="built-in",
        settings=settings,
        fingerprint=fingerprint("digits", settings),
        attribution=ATTRIBUTION,
    )

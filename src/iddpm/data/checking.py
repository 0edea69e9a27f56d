"""The full check of a store: every picture is read."""

from collections.abc import Callable

import numpy as np

from iddpm.data.split import digest
from iddpm.data.store import Store, content_hash
from iddpm.runtime.errors import DataError

__all__ = ["check_content"]

CHECKED_AT_ONCE = 1 << 26  # bytes of pixels


def check_content(store: Store, progress: Callable[[int, int], None] | None = None) -> None:
    """Read every pixel and compare with the content hash.

    Args:
        store: The store.
        progress: Called with (pictures read, pictures).

    Raises:
        DataError: The pixels, labels or split are not those that were prepared.
    """
    digests = bytearray()
    at_once = max(1, CHECKED_AT_ONCE * store.count // store.raw_bytes)
    for start in range(0, store.count, at_once):
        for picture in store.read(slice(start, start + at_once)):
            digests += digest(picture.tobytes())
        if progress is not None:
            progress(len(digests) // 16, store.count)
    found = np.frombuffer(digests, "S16")
    shape = (store.channels, store.size)
    if content_hash(shape, found, store.labels, store.classes, store.held_out) != store.content_hash:
        raise DataError(f"{store.path}: the content differs from what was prepared", "prepare it again")

"""An npz file as a source: `arr_0` holds uint8 pictures [n, h, w, c] or [n, h, w]; `arr_1` the labels."""

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iddpm.data.frame import Frame, Picture, from_array
from iddpm.data.listing import Listing, Source, fingerprint
from iddpm.runtime.errors import DataError
from iddpm.runtime.files import sha256_of

__all__ = ["npz"]

MOST_CLASSES = 100_000


@dataclass(frozen=True, eq=False)
class _Reader:
    images: np.ndarray

    def __call__(self, place: int, frame: Frame) -> Picture:
        return from_array(self.images[place], frame)


def npz(path: Path, given: str, with_labels: bool = True) -> Source:
    """Read an npz file; pickled objects in it are never loaded.

    Args:
        path: The file.
        given: The source as the user gave it.
        with_labels: Whether to use `arr_1` where it exists.

    Raises:
        DataError: Damaged, or its arrays have another name, type or shape.
    """
    arrays = _load(path, given)
    images = _checked_images(given, arrays["arr_0"])
    labels = _checked_labels(given, arrays["arr_1"], len(images)) if with_labels and "arr_1" in arrays else None
    listing = Listing(
        source=given,
        kind="npz",
        names=tuple(f"arr_0[{index}]" for index in range(len(images))),
        classes=() if labels is None else tuple(str(label) for label in range(int(labels.max()) + 1)),
        labels=labels,
        settings={"labels": labels is not None},
        fingerprint=fingerprint("npz", labels is not None, sha256_of(path)),
    )
    return Source(listing=listing, places=range(len(images)), read=_Reader(images))


def _load(path: Path, given: str) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as raw:
            file = np.load(raw, allow_pickle=False)
            names = file.files if isinstance(file, np.lib.npyio.NpzFile) else []
            if "arr_0" not in names:
                there = ", ".join(names) or "none by name"
                raise DataError(
                    f"{given}: no array arr_0 (arrays: {there})", "save with numpy.savez(FILE, images, labels)"
                )
            return {name: file[name] for name in ("arr_0", "arr_1") if name in names}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{given}: not a whole npz file of plain arrays", "make or copy it again") from error


def _checked_images(given: str, images: np.ndarray) -> np.ndarray:
    whole = images.ndim == 3 or (images.ndim == 4 and images.shape[3] in (1, 3, 4))
    if images.dtype != np.uint8 or not whole or not images.size:
        raise DataError(
            f"{given}: arr_0 is {images.dtype} {list(images.shape)}",
            "allowed: uint8 [n, h, w] or [n, h, w, 1, 3 or 4]",
        )
    return images[..., 0] if images.ndim == 4 and images.shape[3] == 1 else images


def _checked_labels(given: str, labels: np.ndarray, count: int) -> np.ndarray:
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape != (count,):
        raise DataError(f"{given}: arr_1 is {labels.dtype} {list(labels.shape)}", f"allowed: whole numbers [{count}]")
    if labels.min() < 0 or labels.max() >= MOST_CLASSES:
        raise DataError(
            f"{given}: arr_1 holds labels from {labels.min()} to {labels.max()}",
            f"allowed: 0 to {MOST_CLASSES - 1}",
        )
    return labels.astype(np.int64)

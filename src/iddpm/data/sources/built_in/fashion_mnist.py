"""The built-in set `fashion-mnist`: 70,000 pictures of clothes, 28x28, grey, ten classes, from a folder of IDX files."""

from dataclasses import replace
from pathlib import Path

from iddpm.data.listing import Source
from iddpm.data.remote.known_sets import KNOWN
from iddpm.data.sources.arrays.idx import idx
from iddpm.runtime.errors import DataError

__all__ = ["SYSTEM_FOLDER", "fashion_mnist"]

SYSTEM_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # Debian's package dataset-fashion-mnist


def fashion_mnist(folder: Path = SYSTEM_FOLDER, scratch: Path | None = None) -> Source:
    """Fashion-MNIST; its test pictures are held out.

    Raises:
        DataError: Files are missing, damaged or cut.
        OutputError: No room to unpack.
    """
    if not folder.is_dir():
        raise DataError(f"fashion-mnist: no folder {folder}", "apt install dataset-fashion-mnist, or give its folder")
    told = KNOWN["fashion-mnist"]
    source = idx(folder, "fashion-mnist", "auto", scratch, told.classes)
    return replace(source, listing=replace(source.listing, kind="built-in", attribution=told.attribution))

"""Batches of pictures that are drawn already, on the disk, so that drawing that was interrupted goes on where it was."""

import io
import shutil
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from iddpm.runtime.errors import RunError
from iddpm.runtime.files import reported, write_bytes
from iddpm.sampling.generate import Order

__all__ = ["Parts"]


class Parts:
    """A hidden folder of finished batches, beside the result that they become.

    Each is written whole or not at all, and named after what decides its pictures, its stage and its number; so a
    batch of other weights or another batch size is never taken for one of these.

    Args:
        result: Where the result will lie.
        stamp: Says all that decides the pictures, in a few letters.
    """

    def __init__(self, result: Path, stamp: str):
        self.folder, self._stamp = _folder_of(result), stamp

    def open(self) -> None:
        """Make the folder, and remove from it what is not of these batches, or was not finished.

        Raises:
            OutputError: The place cannot be written.
        """
        with reported(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for file in self.folder.iterdir():
                if not file.name.startswith(f"{self._stamp}-"):
                    file.unlink(missing_ok=True)

    def missing(self, stage: int, order: Order) -> list[int]:
        """The batches of a stage that are not there, in order."""
        there = {file.name for file in self.folder.iterdir()}
        return [number for number in range(order.batches) if self._name(stage, number) not in there]

    def write(self, stage: int, number: int, images: UInt8[np.ndarray, "b h w c"]) -> None:
        """Keep a batch.

        Raises:
            OutputError: The place cannot be written.
        """
        content = io.BytesIO()
        np.save(content, images, allow_pickle=False)
        write_bytes(self.folder / self._name(stage, number), content.getvalue())

    def read(self, stage: int, order: Order) -> UInt8[np.ndarray, "n h w c"]:
        """All pictures of a stage, once none is missing.

        Raises:
            RunError: A batch is not there, or damaged.
        """
        channels, height, width = order.shape
        images = np.empty((order.num, height, width, channels), np.uint8)
        for number in range(order.batches):
            file = self.folder / self._name(stage, number)
            try:
                images[order.rows(number)] = np.load(file, allow_pickle=False)
            except (OSError, ValueError, EOFError) as error:
                raise RunError(f"{file} cannot be read: {error}", "remove it, and repeat the command") from error
        return images

    def remove(self) -> None:
        """They are not needed any more."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _name(self, stage: int, number: int) -> str:
        return f"{self._stamp}-{stage}-{number:06d}.npy"


def _folder_of(result: Path) -> Path:
    """Where the parts of a result lie."""
    return result.with_name(f".{result.name}.parts")

"""How those are told of progress in bytes who wait for a file."""

from collections.abc import Callable

__all__ = ["Tell"]

Tell = Callable[[str, int, int], None]  # what is done, bytes done, bytes in all

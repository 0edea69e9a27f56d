"""Names: as they are shown, and millions of them in little memory, in one block of bytes."""

from array import array
from collections.abc import Iterable

from iddpm.data.items import Items

__all__ = ["Names", "one_line", "printable", "printable_names"]


class Names(Items[str]):
    """An immutable sequence of texts: its bytes and 8 more for each. File names that are not UTF-8 survive."""

    def __init__(self, texts: Iterable[str] = ()):
        block, ends = bytearray(), array("q", [0])
        for text in texts:
            block += text.encode("utf-8", "surrogateescape")
            ends.append(len(block))
        self._block, self._ends = bytes(block), ends

    def __len__(self) -> int:
        """The number of texts."""
        return len(self._ends) - 1

    def item(self, index: int) -> str:
        """One text."""
        return self._block[self._ends[index] : self._ends[index + 1]].decode("utf-8", "surrogateescape")

    def __eq__(self, other: object) -> bool:
        """Whether the texts are the same."""
        return isinstance(other, Names) and (self._block, self._ends) == (other._block, other._ends)

    def __hash__(self) -> int:
        """By the texts."""
        return hash((self._block, len(self)))


def printable(text: str) -> str:
    """A text of one line that can be shown on a terminal and written as UTF-8, whatever a file's name holds."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def printable_names(names: Names) -> Names:
    """Names as they can be shown; the same object where that changes none."""
    return names if all(map(str.isprintable, names)) else Names(map(printable, names))


def one_line(text: object, most: int = 120) -> str:
    """The start of a text, to be shown in a message."""
    return printable(" ".join(str(text).split()))[:most]


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    if "\udc80" <= character <= "\udcff":  # a byte that is not UTF-8, as the system gives it
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()

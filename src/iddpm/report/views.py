"""What a page shows, one value for each kind of thing on it.

The other modules make these; the templates print them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from iddpm.report.quantities import percent

__all__ = ["Bar", "Chart", "Fact", "Key", "Panel", "Segment", "Strip", "Table"]


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One number of the headline, with its name and what it needs to be understood."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Words and numbers in rows.

    Attributes:
        rows: The first cell of each names it.
        numeric: Columns from here on are set flush right.
        roles: Where given, the colour beside each row's name; an empty one is none.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: int = 1
    roles: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Key:
    """One line of a legend: a colour role and a dash pattern of `palette`."""

    label: str
    role: str
    dash: str = ""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure: its title with the unit, a line on how to read it, and the numbers behind it.

    Attributes:
        svg: An SVG element, safe to print as it is.
    """

    title: str
    unit: str
    svg: str
    reading: str
    keys: Sequence[Key] = ()
    table: Table | None = None


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One part of a bar. `share` is its part of the whole, 0 to 1."""

    label: str
    value: str
    share: float
    role: str
    meaning: str = ""
    group: str = ""

    @property
    def percent(self) -> str:
        """The share as people read it."""
        return percent(self.share)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Parts that add up to a whole, as one bar and as a table. `whole` is the total, for a common scale."""

    label: str
    total: str
    whole: float
    segments: Sequence[Segment]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One sheet of pictures, inlined.

    Attributes:
        width: Of the sheet, in its own pixels; the page enlarges it by `Strip.scale`.
    """

    title: str
    note: str
    source: str
    alt: str
    width: int
    height: int
    real: bool = False


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Sheets of the same layout side by side, with one name for each row of pictures.

    Attributes:
        scale: Screen pixels for each picture pixel, on a wide screen.
        row_height: Of a row of pictures and the gap below it, in picture pixels.
    """

    title: str
    reading: str
    panels: Sequence[Panel]
    rows: Sequence[str] = field(default=())
    scale: float = 1.0
    row_height: int = 0

"""The colours of the report, by role, for light and dark pages; every role is a CSS variable of the same name.

Everything reaches the contrast with the page that text needs, 4.5 (WCAG 2.2), so that bars can carry words in the
page's own colour; `fourth`, a line, reaches the 3 that lines need. Lines that share a chart stay apart for readers
who do not see red, green or blue as others do, and dashes tell them apart a second time.
"""

from dataclasses import dataclass

__all__ = ["DASHES", "ORDERED", "PHASES", "ROLES", "SERIES", "Shade", "css_variables", "phase_role"]


@dataclass(frozen=True)
class Shade:
    """One role's colour on a light and on a dark page, as #rrggbb."""

    light: str
    dark: str


ROLES: dict[str, Shade] = {
    "page": Shade("#fcfcfa", "#15171b"),
    "raised": Shade("#f2f2ee", "#1f2228"),
    "ink": Shade("#1c1e22", "#e8e8e4"),
    "quiet": Shade("#5c6068", "#a2a6ae"),
    "rule": Shade("#d9d9d3", "#363a42"),
    "link": Shade("#1f5fa8", "#82b4f2"),
    "warn": Shade("#a03a12", "#f0a07a"),
    "blue": Shade("#1f6fc5", "#7aa0e0"),
    "orange": Shade("#b04f00", "#f08a2c"),
    "teal": Shade("#0b5345", "#5fe3b5"),
    "purple": Shade("#7b2d8b", "#b05fe6"),
    "gold": Shade("#8f6a00", "#dcb13c"),
    "grey": Shade("#6c7078", "#9498a0"),
    "navy": Shade("#123f73", "#b9d2f5"),
    "first": Shade("#14305f", "#5f7cf7"),
    "second": Shade("#7a2c9e", "#a884d6"),
    "third": Shade("#c8386f", "#e8608f"),
    "fourth": Shade("#cf6a10", "#f8c488"),
}

SERIES = ("blue", "orange", "teal", "purple", "gold", "grey")
"""For lines that have no order: runs."""

ORDERED = ("first", "second", "third", "fourth")
"""For lines that have one: quarters of the timesteps."""

DASHES = ("", "5 2", "1.5 1.5", "6 2 1.5 2", "9 2", "3 3")
"""SVG dash patterns, in widths of the line, beside the colours."""

PHASES = {
    "forward": "blue",
    "backward": "navy",
    "optimizer": "teal",
    "ema": "teal",
    "data": "gold",
    "compile": "gold",
    "checkpoint": "grey",
    "preview": "purple",
    "evaluation": "purple",
    "sample": "purple",
    "sampling": "purple",
    "likelihood": "third",
    "prepare": "orange",
}


def phase_role(name: str) -> str:
    """The colour of a phase; grey where it is not one of those known."""
    return PHASES.get(name, "grey")


def css_variables(theme: str) -> str:
    """The roles as CSS declarations; `theme` is `light` or `dark`."""
    return " ".join(f"--{role}: {getattr(shade, theme)};" for role, shade in ROLES.items())

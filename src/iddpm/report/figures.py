"""Line charts as small inline SVG: text stays text, colours are the page's CSS variables, repeats are the same bytes.

matplotlib draws with one stand-in colour for each role of `palette`, which is then replaced by `var(--role)`: one
picture serves light pages, dark pages and paper. It is imported when a chart is drawn, and used without `pyplot`.
"""

import html
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from iddpm.report.curves import Curve, smoothed, thinned
from iddpm.report.palette import ROLES
from iddpm.report.quantities import count, significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Line", "draw", "log_ticks", "wants_log"]

WIDTH, HEIGHT = 360, 220
TEXT = 10.5
MOST_POINTS = 400
_STAND_INS = {role: f"#10f0{number:02x}" for number, role in enumerate(ROLES)}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve of a chart.

    Attributes:
        smooth: Draw its local mean.
        raw: Draw each logged value faintly behind that.
        spread: Half the height of a band around the curve, at each point; None: no band. For curves that are not smoothed.
    """

    curve: Curve
    role: str = "blue"
    dash: str = ""
    smooth: bool = True
    raw: bool = True
    spread: Float[np.ndarray, " n"] | None = None


def draw(
    lines: Sequence[Line],
    *,
    name: str,
    unit: str,
    x_label: str = "training step",
    log: bool = False,
    from_zero: bool = False,
    marks: Sequence[float] = (),
) -> str:
    """The chart as an SVG element.

    Args:
        lines: Curves, none of them empty.
        name: Told apart from all other charts of the page; part of the ids inside, and the spoken title.
        unit: Of the y axis, written above it.
        x_label: Written below the x axis.
        log: Logarithmic y axis; values at or below 0 are then left out.
        from_zero: The y axis begins at 0.
        marks: Dotted upright lines at these x.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72))
    canvas = FigureCanvasSVG(figure)
    axes = figure.add_axes((50 / WIDTH, 38 / HEIGHT, 1 - 64 / WIDTH, 1 - 62 / HEIGHT))
    shown = [_positive(line) for line in lines] if log else list(lines)
    for line in shown:
        _plot(axes, line)
    for mark in marks:
        axes.axvline(mark, color=_STAND_INS["quiet"], linewidth=1, linestyle=(0, (1, 2)))
    _dress(axes, unit=unit + (", log scale" if log else ""), x_label=x_label)
    _scale(axes, shown, log=log, from_zero=from_zero)
    return _as_inline(_svg(canvas, name), name)


def wants_log(curves: Sequence[Curve]) -> bool:
    """Whether values span so much, and are all above 0, that a logarithmic axis shows more."""
    values = np.concatenate([curve.y for curve in curves]) if curves else np.zeros(0)
    return bool(len(values) and values.min() > 0 and np.quantile(values, 0.99) / np.quantile(values, 0.01) > 6)


def log_ticks(low: float, high: float) -> list[float]:
    """Round places on a logarithmic axis, at most six: 1, 2, 5 in each decade where few decades are seen."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**decade for decade in decades for digit in digits]
        seen = [tick for tick in ticks if low <= tick <= high]
        if len(seen) <= 6:
            return seen
    return seen[:: math.ceil(len(seen) / 6)]


def _positive(line: Line) -> Line:
    keep = line.curve.y > 0
    curve = Curve(line.curve.x[keep], line.curve.y[keep], line.curve.left_out)
    return replace(line, curve=curve, spread=None if line.spread is None else line.spread[keep])


def _plot(axes: "Axes", line: Line) -> None:
    colour = _STAND_INS[line.role]
    few = len(line.curve) < (3 if line.spread is None else 30)
    if line.spread is not None:
        low, high = line.curve.y - line.spread, line.curve.y + line.spread
        axes.fill_between(line.curve.x, low, high, color=colour, alpha=0.16, linewidth=0)
    if line.smooth and line.raw and len(line.curve) >= 60:
        raw = thinned(line.curve, MOST_POINTS)
        axes.plot(raw.x, raw.y, color=colour, linewidth=0.7, alpha=0.3)
    y = smoothed(line.curve.y) if line.smooth else line.curve.y
    mean = thinned(Curve(line.curve.x, y), MOST_POINTS)
    style: Any = (0, tuple(float(part) for part in line.dash.split())) if line.dash else "-"
    axes.plot(
        mean.x,
        mean.y,
        color=colour,
        linewidth=1.7,
        linestyle=style,
        marker="o" if few else "",
        markersize=4 if len(line.curve) < 3 else 2.6,
        solid_capstyle="round",
    )


def _dress(axes: "Axes", *, unit: str, x_label: str) -> None:
    quiet, rule = _STAND_INS["quiet"], _STAND_INS["rule"]
    axes.set_facecolor("none")
    axes.figure.patch.set_visible(False)
    axes.patch.set_visible(False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set(color=quiet, linewidth=0.8)
    axes.grid(axis="y", color=rule, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", which="both", length=0, labelsize=TEXT, labelcolor=quiet, pad=5)
    axes.tick_params(axis="x", length=3, color=quiet)
    axes.text(-50 / 296, 1.09, unit, transform=axes.transAxes, fontsize=TEXT, color=quiet, ha="left", va="center")
    axes.text(1, -31 / 158, x_label, transform=axes.transAxes, fontsize=TEXT, color=quiet, ha="right", va="center")


def _scale(axes: "Axes", lines: Sequence[Line], *, log: bool, from_zero: bool) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    axes.margins(x=0.01, y=0.08)
    if log:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(FixedLocator(log_ticks(low, high)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        low, high = _limits(lines, from_zero)
        axes.set_ylim(low, high)
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(_tick))
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: count(x)))


def _limits(lines: Sequence[Line], from_zero: bool) -> tuple[float, float]:
    """Room for all values but the rarest far ones."""
    values = np.concatenate([edge for line in lines for edge in _edges(line)])
    low, high = float(np.quantile(values, 0.002)), float(np.quantile(values, 0.998))
    low = min(low, 0.0) if from_zero else low
    room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return (low if from_zero and low == 0 else low - room), high + room


def _edges(line: Line) -> list[np.ndarray]:
    y, spread = line.curve.y, line.spread
    return [y] if spread is None else [y - spread, y + spread]


def _tick(value: float, _: int) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return significant(value, 3).rstrip("0").rstrip(".") if "." in significant(value, 3) else significant(value, 3)
    exponent = math.floor(math.log10(abs(value)) + 1e-9)
    digit = f"{value / 10**exponent:.3g}"
    power = "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return power if digit == "1" else f"{digit}·{power}"


def _svg(canvas: Any, name: str) -> str:
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "path.simplify": True}):
        canvas.figure.savefig(
            buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    return buffer.getvalue()


def _as_inline(svg: str, name: str) -> str:
    """The bare element: no prologue or metadata, ids of its own, the page's fonts and colours."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    opening = f'<svg class="plot" role="img" aria-label="{html.escape(name)}" viewBox="0 0 {WIDTH} {HEIGHT}">'
    body = re.sub(
        r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>",
        "",
        svg[svg.index("<svg") :],
        flags=re.DOTALL,
    )
    body = re.sub(r"^<svg[^>]*>", opening, body)
    body = re.sub(r'\bid="', f'id="{slug}-', body)
    body = re.sub(r"url\(#", f"url(#{slug}-", body)
    body = re.sub(r'xlink:href="#', f'href="#{slug}-', body)
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    body = re.sub(r"font: ([0-9.]+)px [^;\"]*", r"font-size: \1px", body)
    body = re.sub(r' transform="rotate\(-?0 [^"]*"', "", body)
    body = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path.group()).replace("\n", " "), body)
    for role, stand_in in _STAND_INS.items():
        body = body.replace(stand_in, f"var(--{role})")
    return re.sub(r"\s*\n\s*", "\n", body).strip()

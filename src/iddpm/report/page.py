"""One run, or several side by side, as one HTML page that needs no other file, no network and no script."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from iddpm.report import faults, held_out, learning, likelihood, sheets, summary, timing
from iddpm.report.content import RunReport
from iddpm.report.palette import css_variables
from iddpm.report.views import Chart
from iddpm.runtime.files import check_writable, write_text

__all__ = ["render", "write"]


def write(runs: Sequence[RunReport], path: Path) -> Path:
    """Write the page; it is whole or not there.

    Raises:
        OutputError: The place cannot be written.
    """
    path = Path(path)
    check_writable(path.parent)
    write_text(path, render(runs))
    return path


def render(runs: Sequence[RunReport]) -> str:
    """The page as HTML: the full report of one run, or a comparison of several.

    The same content gives the same bytes.
    """
    if len(runs) == 1:
        return _template("page.html.j2").render(**_colours(), **_single(runs[0]))
    return _template("compare.html.j2").render(**_colours(), **_several(runs))


def _single(run: RunReport) -> dict[str, Any]:
    results = likelihood.likelihoods(run)
    result = likelihood.best(run)
    bar = timing.time_bar(run)
    state, sentence = summary.status(run)
    return {
        "run": run,
        "state": state,
        "status": sentence,
        "lead": summary.lead(run),
        "facts": summary.facts(run),
        "warnings": summary.warnings(run, learning.left_out(run.events)),
        "hero": sheets.hero(run),
        "strips": sheets.strips(run),
        "full_sheets": sheets.full_sheets(run),
        "previews": sheets.preview_strip(run),
        "charts": _charts([run]),
        "marks": learning.mark_note(run.events),
        "speed": learning.speed_chart([(run.name, run.events)]),
        "resumes": timing.resume_table(run),
        "happenings": faults.happenings(run.events),
        "saving": timing.saving_table(run),
        "bar": bar,
        "foretold": timing.foretold(run),
        "protocol": "" if result is None else likelihood.protocol(result, run),
        "part_bar": None if result is None else likelihood.part_bar(result),
        "terms": None if result is None else likelihood.terms_chart([(run.name, result)]),
        "half": "" if result is None else likelihood.where_half_is(result),
        "results": likelihood.result_table(run) if results else None,
        "measured": held_out.last_measured(run.events) is not None,
        "others": [one for one in run.evaluations if one.get("kind") != "likelihood"],
    }


def _several(runs: Sequence[RunReport]) -> dict[str, Any]:
    results = [(run.name, likelihood.best(run)) for run in runs]
    strip, unseen = sheets.comparison_strip(runs)
    bars = [bar for run in runs if (bar := timing.time_bar(run)) is not None]
    return {
        "runs": runs,
        "keys": learning.run_keys([run.name for run in runs]),
        "table": summary.comparison_table(runs),
        "differing": summary.differing_settings(runs),
        "charts": _charts(runs),
        "speed": learning.speed_chart([(run.name, run.events) for run in runs]),
        "bars": bars,
        "phases": timing.phase_table(bars),
        "longest": max((bar.whole for bar in bars), default=1.0),
        "terms": likelihood.terms_chart(results),
        "strip": strip,
        "unseen": unseen,
    }


def _charts(runs: Sequence[RunReport]) -> list[Chart]:
    """Those of the steps, and second what was measured between them."""
    told = [(run.name, run.events) for run in runs]
    learned, measured = learning.charts(told), held_out.held_out_chart(told)
    return learned if measured is None else [*learned[:1], measured, *learned[1:]]


def _colours() -> Mapping[str, str]:
    return {"light": css_variables("light"), "dark": css_variables("dark")}


@cache
def _template(name: str) -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("iddpm.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)

"""Bits per dim: the headline with its protocol, and where the bits are."""

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from iddpm.report.content import RunReport
from iddpm.report.curves import Curve, at_path
from iddpm.report.figures import Line, draw
from iddpm.report.learning import run_keys
from iddpm.report.quantities import bits_per_dim, count, duration, percent
from iddpm.report.views import Bar, Chart, Segment, Table

__all__ = ["best", "is_foreign", "likelihoods", "part_bar", "protocol", "result_table", "terms_chart", "where_half_is"]

Result = Mapping[str, Any]
LITTLE_NOISE = 0.1


def likelihoods(run: RunReport) -> list[Result]:
    """The likelihoods among the evaluations, the one for the headline first.

    It is on the run's own data, held out, of its first average, of the latest step, by most steps and then most
    pictures, as far as there is one.
    """
    found = [one for one in run.evaluations if one.get("kind") == "likelihood" and _finite(one.get("bits_per_dim"))]

    rates = at_path(run.config, "train.ema") or ()
    own = f"ema-{rates[0]:g}" if rates else None

    def rank(one: Result) -> tuple[bool | float, ...]:
        numbers = [float(one.get(name) or 0) for name in ("train_step", "num_steps", "num_images")]
        return (not is_foreign(one, run), one.get("split") == "held-out", one.get("weights") == own, *numbers)

    return sorted(found, key=rank, reverse=True)


def best(run: RunReport) -> Result | None:
    """The likelihood in the headline; None without any."""
    return next(iter(likelihoods(run)), None)


def is_foreign(result: Result, run: RunReport) -> bool:
    """Whether the pictures are of another data set than the run's."""
    own, measured = at_path(run.config, "data.content_hash"), result.get("content_hash")
    return own is not None and measured is not None and own != measured


def protocol(result: Result, run: RunReport) -> str:
    """How a figure was measured: `500 held-out pictures, 100 of 1,000 steps, weights ema-0.9999 of step 3,000`."""
    told = []
    if result.get("num_images") is not None:
        split = f"{result['split']} " if result.get("split") else ""
        told.append(f"{count(result['num_images'])} {split}pictures")
    if is_foreign(result, run):
        told.append(f"of other data ({PurePath(str(result.get('data') or 'unnamed')).name})")
    if result.get("num_steps") is not None:
        told.append(_of_chain(result["num_steps"], result.get("chain_steps")))
    if result.get("weights"):
        step = f" of step {count(result['train_step'])}" if result.get("train_step") is not None else ""
        told.append(f"weights {result['weights']}{step}")
    return ", ".join(told)


def result_table(run: RunReport) -> Table:
    """Every likelihood with its protocol and its parts."""
    rows = [
        [
            protocol(result, run),
            bits_per_dim(result["bits_per_dim"], result.get("standard_error_bits_per_dim")),
            *(f"{part:.4f}" if _finite(part) else "–" for part in _parts(result)),
            duration(result.get("seconds")),
        ]
        for result in likelihoods(run)
    ]
    return Table(head=["measured on", "total ± standard error", "prior", "timesteps", "decoder", "took"], rows=rows)


def part_bar(result: Result) -> Bar | None:
    """The total cut into decoder, timesteps with little noise, with more, and prior; None where not told."""
    prior, steps, decoder = _parts(result)
    t, terms = _terms(result)
    total = prior + steps + decoder
    if not all(map(_finite, (prior, steps, decoder))) or total <= 0:
        return None
    few = float(terms[t < LITTLE_NOISE * (t.max() + 1)].sum()) if len(t) else 0.0
    parts = [
        ("decoder", "the last step, to whole colour values", decoder, "teal"),
        ("first tenth of t", "little noise: fine detail", few, "blue"),
        ("other timesteps", "more noise: shapes and layout", steps - few, "navy"),
        ("prior", "what pure noise still tells of the picture", prior, "grey"),
    ]
    segments = [
        Segment(
            label=label,
            meaning=meaning,
            value=f"{bits:.4f} bits/dim",
            share=max(bits, 0.0) / total,
            role=role,
        )
        for label, meaning, bits, role in parts
    ]
    return Bar(label="bits per dim", total=bits_per_dim(total), whole=total, segments=segments)


def where_half_is(result: Result) -> str:
    """A sentence that says below which timestep half of the bits are; empty without terms."""
    t, terms = _terms(result)
    if not len(t) or terms.sum() <= 0:
        return ""
    _, _, decoder = _parts(result)
    order = np.argsort(t)
    total = decoder + terms.sum()
    below = decoder + np.cumsum(terms[order])
    place = int(np.searchsorted(below, total / 2))
    last = int(t.max()) + 1
    half = min(int(t[order][min(place, len(t) - 1)]) + 1, last)
    share = percent(half / last)
    return f"Half of all bits are spent at t < {count(half)} of {count(last)}, the {share} with least noise."


def terms_chart(results: Sequence[tuple[str, Result | None]]) -> Chart | None:
    """Each timestep's share of the bits against t, one line a run; None where no terms are told."""
    lines, names = [], []
    keys = run_keys([name for name, _ in results])
    for key, (name, result) in zip(keys, results, strict=True):
        t, terms = _terms(result or {})
        keep = terms > 0
        if keep.any():
            order = np.argsort(t[keep])
            lines.append(
                Line(
                    curve=Curve(t[keep][order], terms[keep][order]),
                    role=key.role,
                    dash=key.dash,
                    smooth=False,
                )
            )
            names.append(name)
    if not lines:
        return None
    return Chart(
        title="Bits by timestep",
        unit="bits/dim per timestep",
        svg=draw(
            lines,
            name="Bits by timestep",
            unit="bits/dim in each step",
            x_label="timestep t (0: no noise)",
            log=True,
        ),
        reading="What each step from t to t-1 adds to the total. With fewer steps each one carries more. "
        "Most of it is at small t, where the finest detail is settled; the decoder, at t = 0, is left out.",
        table=_numbers(lines, names),
    )


def _numbers(lines: Sequence[Line], names: Sequence[str]) -> Table:
    grid = np.unique(np.geomspace(1, max(line.curve.x.max() for line in lines) + 1, 10).round() - 1)
    rows = []
    for t in grid:
        values = [
            float(np.interp(t, line.curve.x, line.curve.y)) if line.curve.x.min() <= t else None for line in lines
        ]
        rows.append([count(t), *("–" if value is None else f"{value:.2e}" for value in values)])
    head = ["t", "bits/dim"] if len(lines) == 1 else ["t", *names]
    return Table(head=head, rows=rows)


def _of_chain(steps: int, chain: int | None) -> str:
    if chain is None:
        return f"{count(steps)} steps"
    return f"all {count(chain)} steps" if steps == chain else f"{count(steps)} of {count(chain)} steps"


def _terms(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """Original timesteps and terms, the decoder's term not among them."""
    terms = np.array(result.get("terms_bits_per_dim") or [], dtype=np.float64)
    t = np.array(result.get("timesteps") or [], dtype=np.float64)
    if len(terms) != len(t):
        return np.zeros(0), np.zeros(0)
    if len(terms) and _holds_decoder(result, terms):
        keep = t > t.min()
        return t[keep], terms[keep]
    return t, terms


def _holds_decoder(result: Result, terms: np.ndarray) -> bool:
    # The bound's list ends with the decoder's term at index 0, so that prior and terms alone make the total.
    prior, decoder, total = (
        float(result.get(name) or 0.0) for name in ("prior_bits_per_dim", "decoder_bits_per_dim", "bits_per_dim")
    )
    alone = prior + terms.sum()
    return bool(abs(alone - total) <= abs(alone + decoder - total))


def _parts(result: Result) -> tuple[float, float, float]:
    """Prior, timesteps, decoder, in bits/dim; NaN where not told."""
    prior, decoder = (_number(result.get(name)) for name in ("prior_bits_per_dim", "decoder_bits_per_dim"))
    return prior, result["bits_per_dim"] - prior - decoder, decoder


def _number(value: Any) -> float:
    return float(value) if _finite(value) else math.nan


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)

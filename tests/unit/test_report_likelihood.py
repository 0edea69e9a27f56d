"""Bits per dim: which figure is the headline, with what protocol, and where its bits are."""

import numpy as np
import pytest

from iddpm.report.content import RunReport
from iddpm.report.likelihood import best, likelihoods, part_bar, protocol, terms_chart, where_half_is


def result(**more) -> dict:
    """Prior 0.5, three timesteps of 0.25, 0.25 and 1, decoder 2: 4 in all."""
    return {
        "kind": "likelihood",
        "bits_per_dim": 4.0,
        "standard_error_bits_per_dim": 0.1,
        "prior_bits_per_dim": 0.5,
        "decoder_bits_per_dim": 2.0,
        "terms_bits_per_dim": [0.25, 0.25, 1.0, 2.0],
        "timesteps": [99, 60, 5, 0],
        "num_images": 200,
        "num_steps": 4,
        "weights": "ema-0.9999",
        "split": "held-out",
        **more,
    }


def test_the_parts_are_those_of_the_bound():
    bar = part_bar(result())
    assert bar is not None
    shares = {part.label: part.share for part in bar.segments}
    assert shares == {"decoder": 0.5, "first tenth of t": 0.25, "other timesteps": 0.125, "prior": 0.125}
    assert bar.segments[0].value == "2.0000 bits/dim"


def test_terms_may_come_without_the_decoder():
    assert part_bar(result(terms_bits_per_dim=[0.25, 0.25, 1.0], timesteps=[99, 60, 5])) == part_bar(result())


def test_half_of_the_bits_are_found():
    assert where_half_is(result()) == "Half of all bits are spent at t < 6 of 100, the 6.0% with least noise."
    assert where_half_is({"bits_per_dim": 4.0}) == ""


def test_the_curve_has_the_terms_in_order_and_not_the_decoder():
    chart = terms_chart([("r", result())])
    assert chart is not None
    assert chart.table is not None
    shown = {int(row[0]): row[1] for row in chart.table.rows}
    assert shown[99] == "2.50e-01"
    assert 0 not in shown or shown[0] == "–"


def test_results_without_parts_are_still_results():
    bare = {"kind": "likelihood", "bits_per_dim": 4.0}
    assert part_bar(bare) is None
    assert terms_chart([("r", bare), ("none", None)]) is None
    assert best(RunReport(name="r", evaluations=[bare])) == bare


def test_the_headline_is_held_out_own_data_latest_and_thorough():
    runs = [
        result(num_steps=50, note="thorough, early", train_step=10),
        result(num_steps=10, note="coarse, late", train_step=20),
        result(num_steps=25, note="wanted", train_step=20),
        result(num_steps=99, note="seen in training", train_step=20, split="train"),
        result(num_steps=99, note="other data", train_step=20, content_hash="other"),
        {"kind": "fid", "value": 3.0},
        result(bits_per_dim=float("nan")),
    ]
    run = RunReport(name="r", config={"data": {"content_hash": "own"}}, evaluations=runs)
    assert [one["note"] for one in likelihoods(run)] == [
        "wanted",
        "coarse, late",
        "thorough, early",
        "seen in training",
        "other data",
    ]
    assert best(RunReport(name="r")) is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "200 held-out pictures, 4 steps, weights ema-0.9999"),
        (
            {"num_steps": 50, "chain_steps": 1000, "train_step": 3000},
            "200 held-out pictures, 50 of 1,000 steps, weights ema-0.9999 of step 3,000",
        ),
        (
            {"num_steps": 1000, "chain_steps": 1000, "weights": "raw"},
            "200 held-out pictures, all 1,000 steps, weights raw",
        ),
        (
            {"content_hash": "b", "data": "/somewhere/emoji", "num_steps": None},
            "200 held-out pictures, of other data (emoji), weights ema-0.9999",
        ),
    ],
)
def test_every_figure_states_its_protocol(more, words):
    run = RunReport(name="r", config={"data": {"content_hash": "a"}})
    assert protocol(result(**more), run) == words


def test_terms_at_or_below_zero_do_not_break_the_log_scale():
    terms = [0.0, -1e-9, *np.geomspace(1e-6, 1, 8), 2.0]
    chart = terms_chart([("r", result(terms_bits_per_dim=terms, timesteps=list(range(10, -1, -1))))])
    assert chart is not None

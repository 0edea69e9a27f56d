"""Bits per dim measured while training: which measurements count, and what the chart says of them."""

import re

import pytest

from iddpm.report.content import RunReport
from iddpm.report.held_out import held_out_chart, last_measured, measured_on
from iddpm.report.summary import comparison_table, facts


def measured(step, bits, error=0.05, **more):
    told = {"num_images": 64, "num_steps": 50, "weights": "ema-0.99", "seconds": 2.0}
    named = {"bits_per_dim": bits, "standard_error_bits_per_dim": error}
    return {"event": "evaluation", "step": step, **named, **told, **more}


CURVE = [measured(10, 5.0), measured(20, 4.0), measured(30, 4.5)]


def rows(events):
    chart = held_out_chart([("r", events)])
    assert chart is not None
    return [list(row) for row in chart.table.rows]


def test_each_measurement_stands_with_its_error():
    assert rows(CURVE) == [["10", "5.0000 ± 0.0500"], ["20", "4.0000 ± 0.0500"], ["30", "4.5000 ± 0.0500"]]


def test_the_reading_says_how_it_was_measured_and_where_it_was_lowest():
    chart = held_out_chart([("r", CURVE)])
    assert "Measured on 64 held-out pictures, 50 steps of the chain, weights ema-0.99." in chart.reading
    assert "Lowest: 4.0000 at step 20." in chart.reading
    assert "one standard error" in chart.reading
    assert chart.keys == ()


@pytest.mark.parametrize("back", [{"event": "resume", "step": 20}, {"event": "rollback", "step": 30, "to_step": 20}])
def test_what_was_abandoned_is_not_shown(back):
    events = [*CURVE, back, measured(30, 3.5)]
    assert rows(events) == [["10", "5.0000 ± 0.0500"], ["20", "4.0000 ± 0.0500"], ["30", "3.5000 ± 0.0500"]]
    assert last_measured(events)["bits_per_dim"] == 3.5


def test_one_picture_has_no_error_and_no_band():
    events = [measured(10, 5.0, None, num_images=1), measured(20, 4.0, None, num_images=1)]
    chart = held_out_chart([("r", events)])
    assert [row[1] for row in chart.table.rows] == ["5.0000", "4.0000"]
    assert "standard error" not in chart.reading


def test_a_bound_that_was_not_finite_is_passed_over():
    events = [measured(10, None, None), measured(20, 4.0), measured(30, None, None)]
    assert rows(events) == [["20", "4.0000 ± 0.0500"]]
    assert last_measured(events)["step"] == 20


def test_nothing_measured_is_no_chart():
    assert held_out_chart([("r", [])]) is None
    assert held_out_chart([("r", [measured(10, None)]), ("s", [])]) is None
    assert last_measured([]) is None


def test_another_protocol_is_another_line():
    chart = held_out_chart([("r", [*CURVE, measured(40, 4.4, num_images=256)])])
    assert [key.label.split(" held")[0] for key in chart.keys] == ["64", "256"]
    assert "only points of one line compare" in chart.reading
    assert list(chart.table.rows[-1]) == ["40", "–", "4.4000 ± 0.0500"]
    assert "Lowest: 4.4000 at step 40" in chart.reading


def test_runs_are_compared_by_their_latest_protocol_and_a_difference_is_said():
    longer = [measured(10, 5.5, num_steps=9), measured(20, 4.1), measured(40, 4.2)]
    same = held_out_chart([("a", CURVE), ("none", []), ("b", longer)])
    assert list(same.table.head) == ["step", "a", "b"]
    assert [row[2][:3] for row in same.table.rows] == ["–", "4.1", "–", "4.2"]
    assert "Measured on 64 held-out pictures" in same.reading
    other = held_out_chart([("a", CURVE), ("b", [measured(10, 5.0, num_steps=9)])])
    assert "do not compare: a: 64 held-out pictures, 50 steps" in other.reading


def test_the_band_is_as_high_as_two_errors():
    """The filled area's upper and lower edges, from the picture itself: at the ends they are as far from the line."""
    chart = held_out_chart([("r", [measured(10, 4.0, 0.5), measured(20, 4.0, 0.25)])])
    paths = re.findall(r'd="([^"]*)"', chart.svg)
    band = next(path for path in paths if path.rstrip().endswith("z") and path.count("L") >= 4)
    points = [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", band)]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    heights = [max(ys) - min(ys) for end in (left, right) for ys in [[y for x, y in points if x == end]]]
    assert heights[0] == pytest.approx(2 * heights[1], rel=0.01)
    assert heights[1] > 5


def test_the_way_it_was_measured_is_told_as_far_as_it_is_known():
    assert measured_on({"num_images": 1000}) == "1,000 held-out pictures"
    assert measured_on({}) == "held-out pictures"


def test_the_headline_has_it_where_nothing_better_was_measured():
    run = RunReport(name="r", events=CURVE)
    (fact,) = [fact for fact in facts(run) if fact.label.startswith("Bits")]
    assert (fact.label, fact.value) == ("Bits per dim, while training", "4.500 ± 0.050")
    assert "of step 30" in fact.note
    better = RunReport(name="r", events=CURVE, evaluations=[{"kind": "likelihood", "bits_per_dim": 3.0}])
    assert [fact.value for fact in facts(better) if fact.label.startswith("Bits")] == ["3.000"]


def test_a_comparison_has_it_only_where_a_run_has_it():
    bare = RunReport(name="bare")
    names = [row[0] for row in comparison_table([bare, bare]).rows]
    assert not [name for name in names if "while training" in name or "skipped" in name or "gone back" in name]
    row = next(
        row for row in comparison_table([RunReport(name="r", events=CURVE), bare]).rows if "while training" in row[0]
    )
    assert row[1:] == ["4.500 ± 0.050 (64 held-out pictures, 50 steps of the chain, weights ema-0.99)", "–"]

"""What the report reads out of a journal: curves, resumes, times, forecasts."""

import numpy as np
import pytest

from iddpm.report.content import RunReport
from iddpm.report.curves import Curve, curve, kept_steps, resumes, rollbacks, smoothed, thinned, window
from iddpm.report.figures import log_ticks
from iddpm.report.learning import charts, left_out, mark_note, marks
from iddpm.report.summary import differing_settings, flat, reached_step, status
from iddpm.report.timing import (
    foretold,
    images_per_second,
    saving_table,
    time_bar,
    training_phases,
    training_seconds,
)


def step(number: int, **more) -> dict:
    return {
        "event": "step",
        "step": number,
        "elapsed_seconds": number / 10,
        "loss": 1.0 / number,
        "seconds": {"forward": 0.2, "backward": 0.3},
        **more,
    }


KILLED = [
    {"event": "start", "step": 0, "time": 1000.0},
    step(10),
    {"event": "checkpoint", "step": 10},
    step(20, time=1010.0),
    step(30, loss=9.0, time=1020.0),
    {"event": "resume", "step": 10, "time": 1080.0, "changes": {"train.steps": [30, 50]}},
    step(20),
    step(30),
    step(40),
]


def test_a_run_that_was_killed_shows_the_steps_that_count_once():
    line = curve(kept_steps(KILLED), "loss")
    assert line.x.tolist() == [10, 20, 30, 40]
    assert line.y.tolist() == pytest.approx([1 / 10, 1 / 20, 1 / 30, 1 / 40])


ROLLED_BACK = [
    {"event": "start", "step": 0, "batch_size": 8},
    step(10),
    step(20),
    step(30, loss=9.0),
    {"event": "rollback", "step": 30, "to_step": 10, "lr_factor": 0.5, "reason": "not finite"},
    step(20, elapsed_seconds=4.0),
    step(30, elapsed_seconds=5.0),
]


def test_a_run_that_went_back_shows_the_steps_that_count_once():
    line = curve(kept_steps(ROLLED_BACK), "loss")
    assert line.x.tolist() == [10, 20, 30]
    assert line.y.tolist() == pytest.approx([1 / 10, 1 / 20, 1 / 30])
    (back,) = rollbacks(ROLLED_BACK)
    assert (back.step, back.to_step, back.lr_factor, back.reason) == (30, 10, 0.5, "not finite")


def test_the_clock_of_a_run_that_goes_back_runs_on():
    """What it did before is in its own count; a resume's is not."""
    assert training_seconds(ROLLED_BACK) == pytest.approx(5.0)
    killed = [*ROLLED_BACK, {"event": "resume", "step": 20}, step(30, elapsed_seconds=5.5)]
    assert training_seconds(killed) == pytest.approx(5.5 + 1.0)


def test_charts_are_marked_where_a_run_was_taken_up_or_went_back():
    assert marks([("r", ROLLED_BACK)]) == [10.0]
    assert marks([("r", [*ROLLED_BACK, {"event": "resume", "step": 20}])]) == [10.0, 20.0]
    assert marks([("r", ROLLED_BACK), ("s", [])]) == []
    assert mark_note(ROLLED_BACK) == "Dotted upright lines: the run went back to a checkpoint there."
    assert "was taken up again or went back" in mark_note([*ROLLED_BACK, {"event": "resume", "step": 20}])
    assert mark_note([step(10)]) == ""


def test_a_resume_tells_its_gap_and_what_was_lost():
    (resume,) = resumes(KILLED)
    assert (resume.step, resume.gap_seconds, resume.lost_steps) == (10, 60.0, 20)
    assert resume.lost_seconds == pytest.approx(2.0)
    assert resume.changes == {"train.steps": [30, 50]}


def test_lost_work_counts_as_time_spent():
    assert training_seconds(KILLED) == pytest.approx(4.0 + 2.0)
    assert training_phases(KILLED)["backward"] == pytest.approx(6 * 0.3)


def test_an_end_that_was_passed_over_does_not_count_twice():
    events = [step(10), {"event": "end", "step": 20, "elapsed_seconds": 7.0}, {"event": "resume", "step": 10}, step(20)]
    assert training_seconds(events) == pytest.approx(2.0)


def test_iso_times_are_read_and_missing_ones_leave_the_gap_open():
    def gap(first, second):
        events = [{"event": "start", "step": 0, "time": first}, {"event": "resume", "step": 0, "time": second}]
        return resumes(events)[0].gap_seconds

    assert gap("2026-03-02T10:00:00+00:00", "2026-03-02T11:30:00+01:00") == 30 * 60
    assert gap(None, 5.0) is None
    assert gap("yesterday", 5.0) is None


def test_values_that_are_not_finite_are_counted_and_left_out():
    steps = [step(10), step(20, loss=float("nan")), step(30, loss=None), step(40, loss=float("inf"))]
    line = curve(steps, "loss")
    assert (line.x.tolist(), line.left_out) == ([10], 2)
    assert left_out(steps) == 2


def test_curves_reach_into_parts_and_quartiles():
    steps = [step(10, parts={"mse": 2.0}, mse_by_quartile=[1.0, None, 3.0, 4.0]), step(20)]
    assert curve(steps, "parts.mse").y.tolist() == [2.0]
    assert curve(steps, "mse_by_quartile.2").y.tolist() == [3.0]
    assert len(curve(steps, "mse_by_quartile.1")) == 0
    assert len(curve(steps, "mse_by_quartile.9")) == 0


@pytest.mark.parametrize("n", [1, 5, 59, 60, 300])
def test_smoothing_is_a_centred_mean_that_keeps_straight_lines(n):
    values = np.random.default_rng(0).random(n)
    half, means = window(n) // 2, smoothed(values)
    assert np.allclose(smoothed(np.arange(n, dtype=np.float64)), np.arange(n))
    if half:
        middle = n // 2
        assert means[middle] == pytest.approx(values[middle - half : middle + half + 1].mean())
    assert means[0] == values[0]
    assert means[-1] == values[-1]


def test_thinning_keeps_both_ends():
    line = Curve(np.arange(1000.0), np.arange(1000.0))
    few = thinned(line, 50)
    assert len(few) == 50
    assert (few.x[0], few.x[-1]) == (0, 999)
    assert thinned(few, 50) is few


@pytest.mark.parametrize(("low", "high"), [(0.03, 1.2), (1.0, 1.9), (1e-6, 40.0), (2.0, 90.0), (1e-9, 1e9)])
def test_log_ticks_are_few_and_inside(low, high):
    ticks = log_ticks(low, high)
    assert 1 <= len(ticks) <= 6
    assert low <= ticks[0]
    assert ticks[-1] <= high


def test_the_bar_adds_up_to_all_the_time_with_what_no_phase_claims():
    run = RunReport(name="r", events=[step(10), step(20)], outside_seconds={"sample": 3, "prepare": 1.0})
    bar = time_bar(run)
    assert bar is not None
    assert bar.whole == pytest.approx(2.0 + 4.0)
    assert sum(part.share for part in bar.segments) == pytest.approx(1)
    assert [(part.group, part.label) for part in bar.segments] == [
        ("training", "everything else"),
        ("training", "backward"),
        ("training", "forward"),
        ("outside training", "sample"),
        ("outside training", "prepare"),
    ]


def test_checkpoints_count_once_wherever_they_are_told():
    told_twice = [step(10, seconds={"checkpoint": 2.0}), {"event": "checkpoint", "step": 10, "seconds": 2.0}]
    told_by_event = [step(10), {"event": "checkpoint", "step": 10, "seconds": 2.0}]
    told_at_end = [step(10), {"event": "end", "step": 10, "seconds": 99.0, "seconds_by_phase": {"checkpoint": 2.0}}]
    for events in (told_twice, told_by_event, told_at_end):
        assert training_phases(events)["checkpoint"] == 2.0


def test_saving_counts_only_while_training_stands_still():
    told = {"bytes": 3 * 2**20, "copy_seconds": 0.5, "wait_seconds": 0.25, "write_seconds": 8.0}
    events = [step(10), {"event": "checkpoint", "step": 10, **told}, {"event": "snapshot", "step": 20, **told}]
    assert training_phases(events)["checkpoint"] == 0.75
    table = saving_table(RunReport(name="r", events=events))
    assert table is not None
    assert table.head[0] == "2 saves, up to 3.00 MiB"
    assert [row[1:] for row in table.rows] == [
        ["0.50 s", "0.50 s", "1.0 s"],
        ["0.25 s", "0.25 s", "0.50 s"],
        ["8.0 s", "8.0 s", "16 s"],
    ]
    assert saving_table(RunReport(name="r", events=[{"event": "checkpoint", "step": 10}])) is None


def test_evaluations_are_a_phase():
    event = {"event": "evaluation", "step": 10, "bits_per_dim": 4.0, "seconds": 3.0}
    assert training_phases([step(10), event])["evaluation"] == 3.0
    assert training_phases([step(10, seconds={"evaluation": 3.5}), event])["evaluation"] == 3.5


def test_forecasts_are_judged_by_their_range_or_their_ratio():
    events = [step(10, images_per_second=100.0, peak_memory_bytes=3 * 2**30), step(20, images_per_second=100.0)]
    forecast = {
        "training_seconds": {"value": 1.5, "low": 1.0, "high": 2.5},
        "images_per_second": 125,
        "peak_memory_bytes": {"value": 2**30},
        "energy_joules": 5.0,
        "note": "text is passed over",
    }
    table = foretold(RunReport(name="r", events=events, forecast=forecast))
    assert table is not None
    assert [row[0] for row in table.rows] == ["training", "images per second", "peak memory", "energy joules"]
    assert [row[-1] for row in table.rows] == ["within the range", "20% less than forecast", "3.00× the forecast", "–"]
    assert table.rows[3][3] == "not measured"
    assert foretold(RunReport(name="r", events=events)) is None


def test_one_estimate_is_a_forecast_too():
    forecast = {"name": "training_seconds", "value": 2.0, "low": 1.0, "high": 3.0, "because": []}
    table = foretold(RunReport(name="r", events=[step(20)], forecast=forecast))
    assert table is not None
    assert table.rows[0] == ["training", "2.0 s", "1.0 s to 3.0 s", "2.0 s", "within the range"]


@pytest.mark.parametrize(
    ("events", "state", "words"),
    [
        ([], "new", "nothing journalled yet"),
        ([{"event": "start", "step": 0}], "going", "at step 0 of 50: still going, or stopped without a word"),
        (KILLED, "going", "at step 40 of 50: still going, or stopped without a word"),
        ([*KILLED, {"event": "interrupt", "step": 42}], "stopped", "interrupted at step 42 of 50"),
        ([*KILLED, {"event": "end", "step": 50}], "done", "finished at step 50"),
    ],
)
def test_status_says_how_the_run_stands(events, state, words):
    assert status(RunReport(name="r", events=events, train_steps=50)) == (state, words)


def test_the_reached_step_falls_back_with_a_resume():
    assert reached_step(RunReport(name="r", events=KILLED[:6])) == 10


def test_speed_is_the_median_of_steps_that_count():
    events = [step(10, images_per_second=90.0), step(20, images_per_second=1.0), {"event": "resume", "step": 10}]
    events += [step(20, images_per_second=110.0), step(30, images_per_second=100.0)]
    assert images_per_second(events) == 100.0


def test_settings_that_differ_are_found_at_any_depth():
    one = RunReport(name="a", config={"net": {"channels": 32, "heads": 4}, "lr": 1e-4})
    other = RunReport(name="b", config={"net": {"channels": 64, "heads": 4}, "lr": 1e-4, "extra": None})
    assert flat(one.config) == {"net.channels": "32", "net.heads": "4", "lr": "0.0001"}
    table = differing_settings([one, other])
    assert table is not None
    assert table.rows == [["net.channels", "32", "64"], ["extra", "–", "none"]]
    assert differing_settings([one, one]) is None


def test_only_charts_with_numbers_are_drawn():
    titles = [chart.title for chart in charts([("r", [step(10, grad_norm=1.0), step(20, grad_norm=0.5)])])]
    assert titles == ["Loss", "Gradient norm"]
    assert charts([("r", [])]) == []


def titles(*events):
    return [chart.title for chart in charts([("r", events)])]


def test_quarters_are_drawn_of_what_is_told():
    four = [4.0, 3.0, None, 1.0]
    told = {"mse_by_quartile": four, "loss_by_quartile": four, "bound_by_quartile": four}
    assert titles(step(10, **told)) == ["Loss", "Error by amount of noise", "Bound by amount of noise"]
    assert titles(step(10, loss_by_quartile=four)) == ["Loss", "Loss by amount of noise"]
    (_, chart) = charts([("r", [step(10, bound_by_quartile=four), step(20, bound_by_quartile=four)])])
    assert chart.keys[0].label == "first quarter: little noise"
    assert len(chart.keys) == 4


def test_fp16_has_its_loss_scale_drawn():
    assert titles(step(10, loss_scale=65536.0), step(20, loss_scale=32768.0)) == ["Loss", "Loss scale"]


def test_the_noise_scale_stands_beside_the_batch():
    events = [{"event": "start", "step": 0, "batch_size": 128}]
    events += [step(10 * n, gradient_noise_scale=None if n == 2 else 40.0 * n) for n in range(1, 5)]
    chart = charts([("r", events)])[-1]
    assert (chart.title, chart.unit) == ("Gradient noise scale", "pictures")
    assert [key.label for key in chart.keys] == ["noise scale", "batch: 128"]
    assert [row[0] for row in chart.table.rows] == ["10", "30", "40"]
    assert titles(step(10, gradient_noise_scale=None)) == ["Loss"]
    assert titles(step(10, gradient_noise_scale=-3.0)) == ["Loss"]
    without_batch = charts([("r", [step(10, gradient_noise_scale=5.0)])])[-1]
    assert without_batch.title == "Gradient noise scale"
    both = charts([("r", events), ("s", events)])
    assert both[-1].title == "Gradient noise scale"


@pytest.mark.parametrize("values", [[0.0], [5.0], [3.0, 3.0, 3.0], [-1.0, 1e-30, 1e30]])
def test_odd_curves_are_drawn(values):
    events = [step(10 * place, loss=value) for place, value in enumerate(values, start=1)]
    (chart,) = charts([("r", events)])
    assert chart.svg.startswith("<svg")
    assert chart.svg.count("<path") > 2


def test_one_spike_does_not_spoil_the_mean_elsewhere():
    values = np.ones(300)
    values[100] = 1e30
    assert smoothed(values)[200] == 1

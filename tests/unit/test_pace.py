import pytest

from iddpm.training.pace import Pace, duration


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def run(start, total, done, seconds=1.4, first=30.0):
    clock = Clock()
    pace = Pace(start, total, clock)
    for step in range(start + 1, start + done + 1):
        clock.now += first if step == start + 1 else seconds
        pace.mark(step)
    return pace


def test_tim_01_time_left_counts_the_steps_of_this_session_alone():
    assert run(128, 1000, 5).seconds_left == pytest.approx((1000 - 133) * 1.4)


def test_the_first_step_of_a_session_is_left_out():
    assert run(0, 100, 11).seconds_per_step == pytest.approx(1.4)


def test_nothing_is_said_before_the_second_step():
    assert run(128, 1000, 0).seconds_left is None
    assert run(128, 1000, 1).seconds_left is None


@pytest.mark.parametrize(("start", "total"), [(990, 1000), (995, 1000), (999, 990)])
def test_time_left_is_never_negative(start, total):
    assert run(start, total, 10).seconds_left == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (0.04, "40 ms"), (0.0012, "1.2 ms"), (0.996, "996 ms"), (0.9999, "1.0 s"), (1.25, "1.2 s"), (9, "9 s"), (12.4, "12 s"), (59.4, "59 s"), (59.7, "1 min"),
        (61, "1 min 1 s"), (725, "12 min 5 s"), (3600, "1 h"), (12000, "3 h 20 min"), (187200, "2 d 4 h"),
    ],
)  # fmt: skip
def test_durations_are_for_people(seconds, text):
    assert duration(float(seconds)) == text

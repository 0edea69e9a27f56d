import json
import math

import pytest
import torch

from iddpm.training.guard import Guard

CPU = torch.device("cpu")


def judged(guard, *norms, loss=1.0):
    return [float(guard.judge(torch.tensor(loss), torch.tensor(norm))) for norm in norms]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_is_skipped_and_counted(bad):
    guard = Guard(CPU, patience=10, scaled=False)
    assert judged(guard, 1.0, bad, bad, 2.0, bad) == [0.0, 1.0, 1.0, 0.0, 1.0]
    reading = guard.reading()
    assert (reading.skipped, reading.in_a_row, reading.loss_scale) == (3, 1, None)


def test_a_loss_that_is_not_finite_is_skipped_though_its_gradient_is():
    assert judged(Guard(CPU, patience=10, scaled=False), 1.0, loss=math.inf) == [1.0]


def test_after_patience_bad_steps_every_step_is_skipped_until_forgiven():
    guard = Guard(CPU, patience=3, scaled=False)
    assert judged(guard, math.nan, math.nan, 1.0, math.nan) == [1.0, 1.0, 0.0, 1.0]
    assert judged(guard, math.nan, math.nan, 1.0, 1.0) == [1.0, 1.0, 1.0, 1.0]
    assert guard.reading().in_a_row == 5
    guard.forgive()
    assert judged(guard, 1.0) == [0.0]
    assert guard.reading().skipped == 7


def test_mostly_bad_steps_are_given_up_though_never_many_in_a_row():
    guard = Guard(CPU, patience=10, scaled=False)
    rounds = 0
    while not guard.reading().given_up and rounds < 200:
        judged(guard, *[math.nan] * 3, 1.0)
        rounds += 1
    # With w = 100 the weighted share of three quarters bad passes one half after 110 steps.
    assert 100 <= 4 * rounds <= 120
    assert judged(guard, 1.0) == [1.0]
    guard.forgive()
    for _ in range(100):
        judged(guard, math.nan, 1.0, 1.0)
    assert not guard.reading().given_up


def test_loss_scale_halves_at_a_bad_step_and_never_below_one():
    guard = Guard(CPU, patience=10, scaled=True)
    assert guard.reading().loss_scale == 65536.0
    judged(guard, math.inf)
    assert guard.reading().loss_scale == 32768.0
    judged(guard, *[math.inf] * 40)
    assert guard.reading().loss_scale == 1.0


def test_loss_scale_doubles_after_2000_good_steps_in_a_row_and_never_beyond_2_to_the_24():
    guard = Guard(CPU, patience=10, scaled=True)
    judged(guard, *[1.0] * 1999)
    assert guard.reading().loss_scale == 65536.0
    judged(guard, 1.0)
    assert guard.reading().loss_scale == 2 * 65536.0
    judged(guard, *[1.0] * 1999, math.inf, *[1.0] * 1999)
    assert guard.reading().loss_scale == 65536.0
    guard.load_state_dict(guard.state_dict() | {"loss_scale": 2.0**24, "good_in_a_row": 1999})
    judged(guard, 1.0)
    assert guard.reading().loss_scale == 2.0**24


def test_state_goes_through_json_and_on():
    guard = Guard(CPU, patience=10, scaled=True)
    judged(guard, *[1.0] * 1500, math.inf, *[1.0] * 1500)
    other = Guard(CPU, patience=10, scaled=True)
    other.load_state_dict(json.loads(json.dumps(guard.state_dict())))
    assert other.state_dict() == guard.state_dict()
    for each in (guard, other):
        judged(each, *[1.0] * 500)
    assert other.reading() == guard.reading()
    assert guard.reading().loss_scale == 65536.0


def test_counts_pass_between_precisions_and_the_scale_does_not():
    scaled, plain = Guard(CPU, patience=10, scaled=True), Guard(CPU, patience=10, scaled=False)
    judged(scaled, math.inf)
    plain.load_state_dict(scaled.state_dict())
    assert (plain.reading().skipped, plain.reading().in_a_row, plain.reading().loss_scale) == (1, 1, None)
    fresh = Guard(CPU, patience=10, scaled=True)
    fresh.load_state_dict(plain.state_dict())
    assert (fresh.reading().skipped, fresh.reading().loss_scale) == (1, 65536.0)

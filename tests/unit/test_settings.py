import math

import pytest

from iddpm.runtime.errors import ConfigError
from iddpm.training.settings import (
    Adam,
    AdamW,
    ConstantRate,
    CosineRate,
    FaultPolicy,
    InverseRootRate,
    TrainConfig,
    learning_rate,
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0), ("steps", -1), ("batch_size", 0), ("micro_batch_size", 0), ("micro_batch_size", -2),
        ("preview_every", 0), ("log_every", 0), ("checkpoint_every", 0), ("keep_checkpoints", 0),
        ("keep_every", 0),
        ("lr", 0.0), ("lr", -1e-4), ("lr", math.nan), ("lr", math.inf), ("grad_clip", 0.0), ("grad_clip", math.nan),
        ("seed", -1), ("seed", 2**63), ("ema", ()), ("ema", (0.9, 0.9)), ("ema", (1.0,)), ("ema", (-0.1,)),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_name_and_what_can(name, value):
    with pytest.raises(ConfigError, match=rf"train\.{name} .*allowed") as refused:
        TrainConfig(**({"steps": 10} | {name: value}))
    assert f"--train.{name.replace('_', '-')}" in str(refused.value.fix)


def test_trn_09_rate_used_is_the_rate_asked_for():
    for batch_size, micro in ((8, None), (16, 8), (512, 1)):
        train = TrainConfig(steps=100, lr=1e-4, batch_size=batch_size, micro_batch_size=micro)
        assert {learning_rate(train, step) for step in range(100)} == {1e-4}


def test_warm_up_is_linear_and_ends_at_the_rate():
    train = TrainConfig(steps=100, lr=1e-3, lr_schedule=ConstantRate(warmup_steps=4))
    assert [learning_rate(train, step) for step in range(6)] == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])


def test_dst_07_cosine_is_a_function_of_the_step():
    train = TrainConfig(steps=100, lr=1e-3, lr_schedule=CosineRate(final=0.1))
    at = lambda step: learning_rate(train, step)  # noqa: E731
    assert at(0) == pytest.approx(1e-3)
    assert at(50) == pytest.approx(1e-3 * (0.1 + 0.9 / 2))
    assert at(99) == pytest.approx(1e-3 * (0.1 + 0.45 * (1 + math.cos(math.pi * 0.99))))
    assert at(100) == at(200) == pytest.approx(1e-4)
    assert all(at(step) > at(step + 1) for step in range(100))


def test_cosine_after_a_warm_up_starts_at_the_rate():
    train = TrainConfig(steps=100, lr=1e-3, lr_schedule=CosineRate(warmup_steps=10))
    assert learning_rate(train, 0) == pytest.approx(1e-4)
    assert learning_rate(train, 10) == pytest.approx(1e-3)
    assert learning_rate(train, 55) == pytest.approx(5e-4)


def test_rates_of_a_run_as_long_as_its_warm_up_are_finite():
    train = TrainConfig(steps=5, lr=1e-3, lr_schedule=CosineRate(warmup_steps=5))
    assert all(0 < learning_rate(train, step) <= 1e-3 for step in range(5))


def test_inverse_root_halves_the_rate_after_four_warm_ups():
    train = TrainConfig(steps=10_000, lr=1e-3, lr_schedule=InverseRootRate(warmup_steps=100))
    assert learning_rate(train, 49) == pytest.approx(5e-4)
    assert learning_rate(train, 99) == pytest.approx(1e-3)
    assert learning_rate(train, 399) == pytest.approx(5e-4)
    assert learning_rate(train, 9_999) == pytest.approx(1e-4)
    with pytest.raises(ConfigError, match=r"warmup_steps is 0; allowed: 1 or more"):
        InverseRootRate(warmup_steps=0)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Adam(beta1=1.0), r"optimizer\.beta1 is 1\.0"),
        (lambda: AdamW(beta2=-0.1), r"optimizer\.beta2"),
        (lambda: Adam(eps=0.0), r"optimizer\.eps is 0\.0; allowed: a number above 0"),
        (lambda: AdamW(weight_decay=-1.0), r"optimizer\.weight_decay"),
        (lambda: ConstantRate(warmup_steps=-5), r"lr_schedule\.warmup_steps"),
        (lambda: CosineRate(final=-5.0), r"lr_schedule\.final is -5\.0; allowed: 0 to 1"),
        (lambda: FaultPolicy(patience=0), r"faults\.patience"),
        (lambda: FaultPolicy(lr_factor=0.0), r"faults\.lr_factor"),
        (lambda: TrainConfig(steps=1, ema_widths=(0.3,)), r"ema_widths .* at most 0\.28"),
        (lambda: TrainConfig(steps=1, ema=(0.99999991, 0.99999992)), r"ema .*different in six digits"),
        (lambda: TrainConfig(steps=1, snapshot_every=5), r"snapshot_every .*unless ema_widths"),
        (lambda: TrainConfig(steps=1, keep_best=1), r"keep_best .*multiple of evaluate_every"),
        (lambda: TrainConfig(steps=1, keep_best=1, evaluate_every=3, checkpoint_every=10), r"keep_best"),
        (lambda: TrainConfig(steps=1, batch_size=1, gradient_noise_scale=True), r"gradient_noise_scale"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_meant_are_refused(make, named):
    with pytest.raises(ConfigError, match=named):
        make()

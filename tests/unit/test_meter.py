import math

import pytest
import torch

from iddpm.diffusion.objective import Terms
from iddpm.training.meter import Meter
from iddpm.training.step import StepResult


def step(*terms, norm=1.0, skipped=False, first_norm=None):
    first = None if first_norm is None else torch.tensor(first_norm)
    return StepResult(
        terms=terms,
        grad_norm=torch.tensor(norm),
        skipped=torch.tensor(float(skipped)),
        asked=torch.zeros(1, 0),
        first_norm=first,
        first_size=len(terms[0].loss),
    )


def terms(loss, t=None, weight=None, **parts):
    return Terms(
        torch.tensor(loss),
        {name: torch.tensor(values) for name, values in parts.items()},
        None if t is None else torch.tensor(t),
        None if weight is None else torch.tensor(weight),
    )


def test_means_are_over_examples_and_the_norm_over_steps():
    meter = Meter(8)
    meter.add(step(terms([1.0, 2.0], [0, 7], mse=[1.0, 3.0]), terms([6.0], [2], mse=[2.0]), norm=2.0))
    meter.add(step(terms([3.0, 3.0, 3.0], [3, 4, 5], mse=[0.0, 0.0, 0.0]), norm=4.0))
    reading = meter.read()
    assert reading["loss"] == 3.0
    assert reading["parts"] == {"mse": 1.0}
    assert reading["grad_norm"] == 3.0
    assert reading["loss_by_quartile"] == [1.0, 4.5, 3.0, 2.0]
    assert reading["mse_by_quartile"] == [1.0, 1.0, 0.0, 3.0]
    assert "skipped" not in reading
    assert meter.steps == 0


def test_quartile_where_no_t_fell_is_none_and_importance_weights_count():
    meter = Meter(4)
    meter.add(step(terms([2.0, 4.0], [0, 0], [0.5, 1.5], bound=[1.0, 1.0])))
    reading = meter.read()
    assert reading["loss"] == (2.0 * 0.5 + 4.0 * 1.5) / 2
    assert reading["loss_by_quartile"] == [(2.0 * 0.5 + 4.0 * 1.5) / 2.0, None, None, None]
    assert reading["bound_by_quartile"] == [1.0, None, None, None]


def test_skipped_steps_are_counted_and_have_no_part_in_the_means():
    meter = Meter(4)
    meter.add(step(terms([1.0], [0], mse=[1.0]), norm=2.0))
    meter.add(step(terms([math.nan], [1], mse=[math.inf]), norm=math.nan, skipped=True))
    meter.add(step(terms([3.0], [1], mse=[3.0]), norm=4.0))
    reading = meter.read()
    assert (reading["loss"], reading["grad_norm"], reading["skipped"]) == (2.0, 3.0, 1)
    assert reading["mse_by_quartile"] == [1.0, 3.0, None, None]


def test_nothing_but_skipped_steps_gives_no_means():
    meter = Meter(4)
    meter.add(step(terms([math.nan], [1]), norm=math.nan, skipped=True))
    assert meter.read() == {"skipped": 1}


def test_task_without_t_has_no_quartiles():
    meter = Meter(None)
    meter.add(step(terms([1.0, 3.0], other=[0.0, 1.0])))
    assert meter.read() == {"loss": 2.0, "parts": {"other": 0.5}, "grad_norm": 1.0}


def test_gradient_noise_scale_of_a_gaussian_gradient_is_its_variance_over_its_squared_mean():
    # Each image's gradient is N(mu, 1) in 1000 dimensions, |mu|^2 = 10: the noise scale is 1000 / 10 images.
    generator = torch.Generator().manual_seed(0)
    mu = torch.full((1000,), 0.1)
    meter = Meter(4)
    for _ in range(300):
        images = mu + torch.randn(32, 1000, generator=generator)
        few, all_of_it = images[:8].mean(0).norm(), images.mean(0).norm()
        parts = [terms([0.0] * count, [0] * count) for count in (8, 24)]
        meter.add(step(*parts, norm=float(all_of_it), first_norm=float(few)))
    assert meter.read()["gradient_noise_scale"] == pytest.approx(100, rel=0.05)


def test_noise_scale_whose_signal_is_lost_in_noise_is_none():
    meter = Meter(4)
    meter.add(step(terms([0.0], [0]), terms([0.0], [0]), norm=1.0, first_norm=2.0))
    assert meter.read()["gradient_noise_scale"] is None

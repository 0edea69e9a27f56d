"""What holds for every schedule, respaced or not."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iddpm.diffusion.process import q_posterior, q_sample
from iddpm.diffusion.schedule import Cosine, Linear, NoiseSchedule, noise_schedule
from iddpm.runtime.errors import ConfigError
from strategies import respaced, schedules, subsets

TABLES = [
    "beta",
    "beta_tilde",
    "beta_tilde_log_clipped",
    "log_beta",
    "log_beta_clipped",
    "log_one_minus_alpha_bar",
    "log_snr",
    "posterior_mean_coef1",
    "posterior_mean_coef2",
    "snr",
]


@settings(max_examples=20)
@given(schedules())
def test_alpha_bar_falls_strictly_inside_0_and_1(schedule):
    assert schedule.alpha_bar[0] < 1
    assert schedule.alpha_bar[-1] > 0
    assert (np.diff(schedule.alpha_bar) < 0).all()
    assert schedule.alpha_bar[-1] < 2e-3


@settings(max_examples=20)
@given(respaced())
def test_every_table_is_finite_in_float32(schedule):
    for name in TABLES:
        assert schedule.table(name, torch.device("cpu"), torch.float32).isfinite().all(), name


@settings(max_examples=20)
@given(schedules(max_timesteps=300), st.data())
def test_respacing_composes(schedule, data):
    everything = schedule.respace(range(schedule.timesteps))
    np.testing.assert_array_equal(everything.alpha_bar, schedule.alpha_bar)
    np.testing.assert_array_equal(everything.beta, schedule.beta)
    outer = data.draw(subsets(schedule.timesteps))
    inner = data.draw(subsets(len(outer)))
    twice, once = schedule.respace(outer).respace(inner), schedule.respace([outer[i] for i in inner])
    np.testing.assert_array_equal(twice.alpha_bar, once.alpha_bar)
    np.testing.assert_array_equal(twice.model_time, once.model_time)


@settings(max_examples=20)
@given(respaced())
def test_neighbours_and_ends(schedule):
    assert schedule.alpha_bar_prev[0] == 1
    assert schedule.alpha_bar_next[-1] == 0
    np.testing.assert_array_equal(schedule.alpha_bar_prev[1:], schedule.alpha_bar[:-1])
    np.testing.assert_array_equal(schedule.alpha_bar_next[:-1], schedule.alpha_bar[1:])
    assert schedule.beta_tilde[0] == 0
    assert schedule.posterior_mean_coef1[0] == pytest.approx(1, abs=1e-12)
    assert schedule.posterior_mean_coef2[0] == 0
    np.testing.assert_allclose(schedule.sqrt_alpha_bar**2 + schedule.sqrt_one_minus_alpha_bar**2, 1, rtol=1e-12)
    np.testing.assert_allclose(np.exp(schedule.log_snr), schedule.snr, rtol=1e-9)
    np.testing.assert_allclose(np.exp(schedule.log_one_minus_alpha_bar), 1 - schedule.alpha_bar, rtol=1e-9)


@settings(max_examples=20)
@given(respaced(min_size=2))
def test_the_fixed_variances_borrow_their_first_value(schedule):
    expected = np.log(schedule.beta_tilde[1])
    assert schedule.beta_tilde_log_clipped[0] == schedule.log_beta_clipped[0] == expected
    np.testing.assert_array_equal(schedule.beta_tilde_log_clipped[1:], np.log(schedule.beta_tilde[1:]))
    np.testing.assert_array_equal(schedule.log_beta_clipped[1:], np.log(schedule.beta[1:]))
    np.testing.assert_array_equal(schedule.log_beta, np.log(schedule.beta))
    assert (schedule.beta_tilde < schedule.beta).all()


def log_normal(x, mean, variance):
    return -0.5 * (math.log(2 * math.pi * variance) + (x - mean) ** 2 / variance)


@settings(max_examples=20)
@given(respaced(max_timesteps=1000, min_size=2), st.data())
def test_posterior_is_bayes_rule(schedule, data):
    """q(x_{t-1} | x_t, x0) q(x_t | x0) = q(x_t | x_{t-1}) q(x_{t-1} | x0), at every x."""
    t = data.draw(st.integers(1, schedule.timesteps - 1))
    x0, x_prev, x_t = (data.draw(st.floats(-2, 2)) for _ in range(3))
    q = q_posterior(schedule, torch.full((1, 1), x0).double(), torch.full((1, 1), x_t).double(), torch.tensor([t]))
    ab, prev = schedule.alpha_bar[t], schedule.alpha_bar[t - 1]
    step = ab / prev
    left = log_normal(x_prev, q.mean.item(), q.log_variance.exp().item())
    left += log_normal(x_t, ab**0.5 * x0, 1 - ab)
    right = log_normal(x_t, step**0.5 * x_prev, 1 - step) + log_normal(x_prev, prev**0.5 * x0, 1 - prev)
    assert left == pytest.approx(right, rel=1e-6, abs=1e-6)


@settings(max_examples=20)
@given(respaced(), st.data())
def test_values_are_taken_at_each_examples_own_index(schedule, data):
    t = data.draw(st.lists(st.integers(0, schedule.timesteps - 1), min_size=1, max_size=5))
    x0, noise = torch.full((len(t), 2, 3), 0.5), torch.full((len(t), 2, 3), -1.5)
    ours = q_sample(schedule, x0, torch.tensor(t), noise)
    for example, index in zip(ours, t, strict=True):
        expected = 0.5 * schedule.alpha_bar[index] ** 0.5 - 1.5 * (1 - schedule.alpha_bar[index]) ** 0.5
        assert example.dtype == torch.float32
        np.testing.assert_allclose(example, expected, rtol=2e-6, atol=1e-6)


def test_time_scales():
    np.testing.assert_allclose(noise_schedule(Cosine(timesteps=4000), "thousand").model_time, np.arange(4000) / 4)
    np.testing.assert_array_equal(noise_schedule(Cosine(timesteps=4000), "index").model_time, np.arange(4000))


def test_tables_are_copied_to_the_device_once_and_serve_training_after_sampling():
    schedule = noise_schedule(Linear(), "index")
    cpu = torch.device("cpu")
    with torch.inference_mode():
        first = schedule.table("beta", cpu, torch.float32)
    assert schedule.table("beta", cpu, torch.float32) is first
    assert schedule.table("beta", cpu, torch.float64) is not first
    weight = torch.ones(1000, requires_grad=True)
    (weight * first).sum().backward()
    assert torch.equal(weight.grad, first)


@pytest.mark.parametrize(
    "alpha_bar", [[], [0.5, 0.5], [0.4, 0.5], [1.0, 0.5], [0.5, 0.0], [0.5, -0.1], [0.5, float("nan")]]
)
def test_a_chain_that_does_not_fall_is_refused(alpha_bar):
    with pytest.raises(ConfigError, match="alpha_bar"):
        NoiseSchedule(np.array(alpha_bar, dtype=np.float64), np.zeros(len(alpha_bar)))


@pytest.mark.parametrize("keep", [[], [1, 0], [3, 3]])
def test_respacing_keeps_each_step_once_in_order(keep):
    with pytest.raises(ConfigError, match="increasing"):
        noise_schedule(Cosine(timesteps=10), "index").respace(keep)


@pytest.mark.parametrize(
    "settings_", [{"timesteps": 0}, {"s": -0.1}, {"max_beta": 1.0}, {"max_beta": 0.0}, {"max_beta": float("nan")}]
)
def test_cosine_settings_out_of_range_are_refused(settings_):
    with pytest.raises(ConfigError, match=next(iter(settings_))):
        Cosine(**settings_)

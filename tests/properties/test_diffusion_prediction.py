"""What holds for every prediction: targets, variances, clipping, guidance."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iddpm.diffusion.denoiser import Cond, Guided, NetDenoiser
from iddpm.diffusion.prediction import clipped, learned_range, target_value, to_prediction
from iddpm.diffusion.process import q_sample, reverse_step
from iddpm.diffusion.schedule import Cosine, noise_schedule
from iddpm.runtime.errors import ConfigError
from strategies import normal, respaced, shapes, targets

chains = respaced(max_timesteps=1000)
seeds = st.integers(0, 2**31)


def some_x(schedule, shape, seed, batch=3):
    """x0, noise, an index for each example and the x_t that they make."""
    x0, noise = normal(seed, batch, *shape), normal(seed + 1, batch, *shape)
    t = torch.randint(0, schedule.timesteps, (batch,), generator=torch.Generator().manual_seed(seed))
    return x0, noise, t, q_sample(schedule, x0, t, noise)


def assert_fits(schedule, x_t, t, prediction):
    again = q_sample(schedule, prediction.x0, t, prediction.eps)
    torch.testing.assert_close(again, x_t, rtol=1e-8, atol=1e-8)


@settings(max_examples=12)
@given(chains, shapes, seeds, targets, st.sampled_from(["learned_range", "fixed_small", "fixed_large"]))
def test_a_true_output_gives_the_data_and_the_noise_back(schedule, shape, seed, target, variance):
    x0, noise, t, x_t = some_x(schedule, shape, seed)
    output = target_value(schedule, t, x0, noise, target)
    if variance == "learned_range":
        output = torch.cat([output, torch.zeros_like(output)], dim=1)
    prediction = to_prediction(schedule, x_t, t, output, target, variance)
    torch.testing.assert_close(prediction.x0, x0, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(prediction.eps, noise, rtol=1e-6, atol=1e-6)


@settings(max_examples=12)
@given(chains, shapes, seeds, targets)
def test_x0_and_eps_fit_x_t_whatever_the_network_says(schedule, shape, seed, target):
    _, _, t, x_t = some_x(schedule, shape, seed)
    prediction = to_prediction(schedule, x_t, t, normal(seed + 2, *x_t.shape), target, "fixed_large")
    assert_fits(schedule, x_t, t, prediction)
    held = clipped(schedule, x_t, t, prediction)
    assert_fits(schedule, x_t, t, held)
    assert held.x0.abs().max() <= 1
    assert held.log_variance is prediction.log_variance
    unmoved = prediction.x0.abs() <= 1
    torch.testing.assert_close(held.eps[unmoved], prediction.eps[unmoved], rtol=1e-6, atol=1e-6)


@settings(max_examples=12)
@given(chains, shapes, seeds)
def test_learned_range_runs_from_beta_tilde_to_beta_and_on(schedule, shape, seed):
    _, _, t, x_t = some_x(schedule, shape, seed)
    low, high = schedule.beta_tilde_log_clipped[t], schedule.log_beta[t]
    for v in (-1.0, 1.0, 0.0, 3.0):
        ours = learned_range(schedule, t, torch.full_like(x_t, v)).flatten(1)
        expected = (v + 1) / 2 * high + (1 - v) / 2 * low
        np.testing.assert_allclose(ours, np.broadcast_to(expected[:, None], ours.shape), rtol=1e-9, atol=1e-9)


@settings(max_examples=12)
@given(chains, shapes, seeds, st.booleans())
def test_reverse_step_of_the_truth_is_the_posterior(schedule, shape, seed, clip):
    x0, noise, t, x_t = some_x(schedule, shape, seed)
    x0 = x0.clamp(-1, 1)
    x_t = q_sample(schedule, x0, t, noise)
    output = target_value(schedule, t, x0, noise, "v")
    p = reverse_step(schedule, x_t, t, to_prediction(schedule, x_t, t, output, "v", "fixed_small"), clip=clip)
    weight0, weight_t = (
        torch.from_numpy(table[t]) for table in (schedule.posterior_mean_coef1, schedule.posterior_mean_coef2)
    )
    expected = weight0 * x0.transpose(0, -1) + weight_t * x_t.transpose(0, -1)
    torch.testing.assert_close(p.mean.transpose(0, -1), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("target", ["eps", "x0", "v"])
@pytest.mark.parametrize("t", [0, 1, 2000, 3998, 3999])
def test_float32_keeps_x_t_at_both_ends_of_a_long_chain(target, t):
    """At alpha_bar = 1.5e-10 an error of eps is 80,000 times as large in x0: the pair must still fit x_t."""
    schedule = noise_schedule(Cosine(timesteps=4000), "thousand")
    x_t, output = normal(0, 4, 3, 8, 8, dtype=torch.float32), normal(1, 4, 3, 8, 8, dtype=torch.float32)
    t = torch.full((4,), t)
    prediction = to_prediction(schedule, x_t, t, output, target, "fixed_small")
    assert prediction.x0.dtype == prediction.eps.dtype == torch.float32
    torch.testing.assert_close(q_sample(schedule, prediction.x0, t, prediction.eps), x_t, rtol=2e-6, atol=2e-6)
    held = clipped(schedule, x_t, t, prediction)
    torch.testing.assert_close(q_sample(schedule, held.x0, t, held.eps), x_t, rtol=2e-6, atol=2e-6)


class LabelNet:
    """Its output depends on everything it is told; counts its forwards."""

    def __init__(self):
        self.batches = []

    def __call__(self, x, time, label, low_res, noise_level):
        self.batches.append((len(x), label.tolist()))
        scale = (label + 1).to(x.dtype) * 0.1 + noise_level
        mean = torch.tanh(scale.reshape(-1, 1, 1, 1) * x + low_res + 1e-3 * time.reshape(-1, 1, 1, 1))
        return torch.cat([mean, mean - 0.5 * low_res], dim=1)


@settings(max_examples=12)
@given(chains, seeds, targets, st.floats(0, 8), st.booleans())
def test_guidance_moves_from_the_null_to_the_labels_prediction(schedule, seed, target, weight, with_variance):
    _, _, t, x_t = some_x(schedule, (3, 2, 2), seed)
    net = LabelNet()
    denoiser = NetDenoiser(net, schedule, target, "learned_range")
    label, low_res, noise_level = torch.tensor([0, 3, 1]), normal(seed + 3, 3, 3, 2, 2), normal(seed + 4, 3)
    labelled = denoiser(x_t, t, Cond(label, low_res, noise_level))
    null = denoiser(x_t, t, Cond(torch.full((3,), 9), low_res, noise_level))
    net.batches.clear()
    guided = Guided(denoiser, weight, null_label=9)(x_t, t, Cond(label, low_res, noise_level))
    torch.testing.assert_close(guided.eps, null.eps + weight * (labelled.eps - null.eps), rtol=1e-7, atol=1e-6)
    torch.testing.assert_close(guided.log_variance, labelled.log_variance, rtol=1e-12, atol=1e-12)
    assert_fits(schedule, x_t, t, guided)
    assert net.batches == [(3, [0, 3, 1])] if weight == 1 else [(6, [0, 3, 1, 9, 9, 9])]


def test_guidance_of_weight_1_is_the_conditional_prediction_at_its_price():
    net, schedule = LabelNet(), noise_schedule(Cosine(timesteps=50), "index")
    denoiser = NetDenoiser(net, schedule, "eps", "learned_range")
    x_t, t, cond = (
        normal(0, 2, 3, 2, 2),
        torch.tensor([4, 40]),
        Cond(torch.tensor([1, 2]), normal(1, 2, 3, 2, 2), normal(2, 2)),
    )
    guided = Guided(denoiser, 1.0, null_label=9)
    assert torch.equal(guided(x_t, t, cond).eps, denoiser(x_t, t, cond).eps)
    assert [size for size, _ in net.batches] == [2, 2]
    assert guided.schedule is schedule
    with pytest.raises(ConfigError, match="label"):
        guided(x_t, t, Cond())


@pytest.mark.parametrize(("dtype", "heard"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_the_network_hears_the_time_exactly_and_may_answer_in_another_dtype(dtype, heard):
    times = []

    def net(x, time, label, low_res, noise_level):
        times.append(time)
        return x.to(torch.bfloat16)

    schedule = noise_schedule(Cosine(timesteps=4000), "index")
    x_t, t = torch.zeros(2, 1, 2, 2, dtype=dtype), torch.tensor([3998, 3999])
    prediction = NetDenoiser(net, schedule, "eps", "fixed_large")(x_t, t, Cond())
    assert times[0].dtype == heard
    assert times[0].tolist() == [3998, 3999]
    assert prediction.x0.dtype == prediction.eps.dtype == dtype


def test_an_output_of_the_wrong_channels_is_not_taken_for_a_broadcast():
    schedule = noise_schedule(Cosine(timesteps=50), "index")
    x_t, t = torch.zeros(2, 1, 2, 2), torch.tensor([3, 4])
    with pytest.raises(AssertionError, match="channels"):
        to_prediction(schedule, x_t, t, torch.zeros(2, 2, 2, 2), "eps", "fixed_large")

"""What holds for the bound and its parts."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iddpm.diffusion.bound import (
    bound,
    bound_steps,
    bound_term,
    continuous_log_likelihood,
    discretized_log_likelihood,
    normal_kl,
    prior_term,
)
from iddpm.diffusion.denoiser import Cond, NetDenoiser
from iddpm.diffusion.prediction import Prediction
from iddpm.diffusion.process import Gaussian, q_posterior, q_sample, reverse_step
from iddpm.diffusion.schedule import Cosine, Linear, noise_schedule
from strategies import normal, respaced, shapes

seeds = st.integers(0, 2**31)


def some_gaussian(seed, *shape):
    return Gaussian(normal(seed, *shape), normal(seed + 1, *shape))


def as_torch(p):
    return torch.distributions.Normal(p.mean, (0.5 * p.log_variance).exp())


def pictures(seed, *shape):
    """Data on the grid of 8-bit pictures, one example all black and one all white."""
    x0 = (normal(seed, *shape) * 80 + 128).round().clamp(0, 255) / 127.5 - 1
    x0[0], x0[1] = -1, 1
    return x0


def tanh_net(x, time, label, low_res, noise_level):
    mean = torch.tanh(0.8 * x + 0.001 * time.reshape(-1, *[1] * (x.ndim - 1)))
    return torch.cat([mean, torch.sin(x)], dim=1)


@settings(max_examples=12)
@given(seeds, shapes)
def test_kl_and_density_are_those_of_the_normal_distribution(seed, shape):
    q, p = some_gaussian(seed, 2, *shape), some_gaussian(seed + 7, 2, *shape)
    expected = torch.distributions.kl_divergence(as_torch(q), as_torch(p))
    torch.testing.assert_close(normal_kl(q, p), expected, rtol=1e-9, atol=1e-12)
    assert (normal_kl(q, q) == 0).all()
    x0 = normal(seed + 3, 2, *shape)
    torch.testing.assert_close(continuous_log_likelihood(x0, p), as_torch(p).log_prob(x0), rtol=1e-9, atol=1e-12)


def test_kl_of_near_equals_keeps_its_digits_in_float32():
    """1 + a - exp(a) written out has lost every digit here; 4,000 such terms are added up."""
    q, p = (Gaussian(torch.zeros(1, 1), torch.full((1, 1), value)) for value in (-9.0, -9.0 + 2**-12))
    difference = (q.log_variance - p.log_variance).double()
    exact = 0.5 * (torch.expm1(difference) - difference)
    assert normal_kl(q, p).item() == pytest.approx(exact.item(), rel=1e-2)


@settings(max_examples=12)
@given(seeds, st.floats(-6, 1))
def test_bins_are_near_those_of_the_true_normal_and_take_the_tails(seed, log_variance):
    x0 = pictures(seed, 4, 3, 2, 2)
    p = Gaussian(normal(seed + 1, *x0.shape) * 0.5, torch.full((4, 1, 1, 1), log_variance, dtype=torch.float64))
    true = as_torch(p)
    upper, lower = true.cdf(x0 + 1 / 255), true.cdf(x0 - 1 / 255)
    expected = torch.where(x0 == -1, upper, torch.where(x0 == 1, 1 - lower, upper - lower))
    # The published approximation of the CDF is good to 2e-4.
    torch.testing.assert_close(discretized_log_likelihood(x0, p).exp(), expected, rtol=0, atol=5e-4)


def test_no_bin_is_impossible_and_no_gradient_is_lost_to_nan():
    x0 = torch.tensor([[-1.0, 1.0, 0.5]])
    mean = torch.tensor([[1e3, -1e3, -1e3]], requires_grad=True)
    log_variance = torch.full((1, 3), -20.0, requires_grad=True)
    log_p = discretized_log_likelihood(x0, Gaussian(mean, log_variance))
    torch.testing.assert_close(log_p, torch.full((1, 3), math.log(1e-12)))
    log_p.sum().backward()
    assert mean.grad.isfinite().all()
    assert log_variance.grad.isfinite().all()


@settings(max_examples=12)
@given(respaced(max_timesteps=1000), seeds, st.sampled_from(["discretized", "continuous"]))
def test_a_term_is_the_decoders_at_index_0_and_a_kl_elsewhere(schedule, seed, decoder):
    x0, noise = pictures(seed, 4, 3, 2, 2), normal(seed + 1, 4, 3, 2, 2)
    t = torch.tensor([0, schedule.timesteps - 1, 0, schedule.timesteps // 2])
    x_t = q_sample(schedule, x0, t, noise)
    denoiser = NetDenoiser(tanh_net, schedule, "eps", "learned_range")
    p = reverse_step(schedule, x_t, t, denoiser(x_t, t, Cond()), clip=True)
    likelihood = {"discretized": discretized_log_likelihood, "continuous": continuous_log_likelihood}[decoder]
    kl = torch.distributions.kl_divergence(as_torch(q_posterior(schedule, x0, x_t, t)), as_torch(p))
    per_element = torch.where(t.reshape(4, 1, 1, 1) == 0, -likelihood(x0, p), kl)
    expected = per_element.reshape(4, -1).mean(1) / math.log(2)
    torch.testing.assert_close(bound_term(schedule, x0, x_t, t, p, decoder), expected, rtol=1e-9, atol=1e-12)


@settings(max_examples=12)
@given(respaced(max_timesteps=200), seeds, st.booleans(), st.sampled_from(["discretized", "continuous"]))
def test_the_bound_is_its_terms_one_index_at_a_time(schedule, seed, clip, decoder):
    n = schedule.timesteps
    x0, noise = pictures(seed, 3, 2, 2, 2), normal(seed + 1, n, 3, 2, 2, 2)
    denoiser = NetDenoiser(tanh_net, schedule, "eps", "learned_range")
    result = bound(denoiser, x0, Cond(), lambda k: noise[k], decoder, clip)
    for k in range(n):
        t = torch.full((3,), n - 1 - k)
        x_t = q_sample(schedule, x0, t, noise[k])
        prediction = denoiser(x_t, t, Cond())
        p = reverse_step(schedule, x_t, t, prediction, clip)
        torch.testing.assert_close(result.terms[:, k], bound_term(schedule, x0, x_t, t, p, decoder))
        eps = prediction.eps
        if clip:
            ab = schedule.alpha_bar[n - 1 - k]
            eps = (x_t - ab**0.5 * prediction.x0.clamp(-1, 1)) / (1 - ab) ** 0.5
        torch.testing.assert_close(result.mse[:, k], ((eps - noise[k]) ** 2).flatten(1).mean(1), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(result.total, prior_term(schedule, x0) + result.terms.sum(1))
    assert [step.index for step in bound_steps(denoiser, x0, Cond(), lambda k: noise[k])] == list(reversed(range(n)))


@settings(max_examples=20)
@given(respaced(), seeds, shapes)
def test_prior_is_the_kl_of_the_last_marginal_from_the_standard_normal(schedule, seed, shape):
    x0 = normal(seed, 2, *shape).clamp(-1, 1)
    ab = schedule.alpha_bar[-1]
    expected = 0.5 * (-ab - math.log1p(-ab) + ab * x0**2)
    expected = expected.reshape(2, -1).mean(1) / math.log(2)
    torch.testing.assert_close(prior_term(schedule, x0), expected, rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(prior_term(schedule, x0.float()).double(), expected, rtol=1e-4, atol=1e-9)


def test_a_perfect_denoiser_pays_the_prior_and_the_decoder_alone():
    schedule = noise_schedule(Linear(timesteps=50), "thousand")
    x0 = pictures(0, 2, 3, 4, 4).float()

    class Perfect:
        def __call__(self, x_t, t, cond):
            return Prediction(x0, torch.zeros_like(x0), schedule.at("beta_tilde_log_clipped", t, x_t))

    perfect = Perfect()
    perfect.schedule = schedule
    result = bound(perfect, x0, Cond(), lambda k: normal(k, 2, 3, 4, 4, dtype=torch.float32), clip=False)
    assert result.terms[:, :-1].abs().max() < 1e-6
    torch.testing.assert_close(result.total, result.prior + result.terms[:, -1], rtol=1e-6, atol=1e-5)


def test_the_bound_builds_no_graph():
    schedule = noise_schedule(Cosine(timesteps=5), "index")
    weight = torch.tensor(0.3, requires_grad=True, dtype=torch.float64)
    denoiser = NetDenoiser(lambda x, time, **_: weight * x, schedule, "eps", "fixed_small")
    x0 = pictures(0, 2, 3, 2, 2)
    for step in bound_steps(denoiser, x0, Cond(), lambda k: x0):
        assert not step.term.requires_grad
        assert not step.mse.requires_grad
        assert torch.is_grad_enabled()


def test_float32_adds_up_a_long_bound():
    """The same bound in float32 and in float64, over a chain of 4000 steps (every eightieth), to 2e-6 bits per dim."""
    schedule = noise_schedule(Cosine(timesteps=4000), "thousand").respace(range(0, 4000, 80))
    x0, noise = pictures(0, 2, 3, 2, 2), normal(1, 2, 3, 2, 2)

    def good_net(x, time, label, low_res, noise_level):
        return torch.cat([0.98 * noise.to(x.dtype), torch.zeros_like(x)], dim=1)

    denoiser = NetDenoiser(good_net, schedule, "eps", "learned_range")
    double = bound(denoiser, x0, Cond(), lambda k: noise)
    single = bound(denoiser, x0.float(), Cond(), lambda k: noise.float())
    np.testing.assert_allclose(single.total, double.total, atol=2e-6)
    np.testing.assert_allclose(single.terms, double.terms, atol=2e-6)
    assert double.total.max() < 12

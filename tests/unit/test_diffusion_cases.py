"""Cases from public bug reports about schedules, steps, samplers and the bound; each test is named for its id."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iddpm.diffusion.bound import bound, discretized_log_likelihood
from iddpm.diffusion.denoiser import Cond, NetDenoiser
from iddpm.diffusion.prediction import Prediction, eps_from_x0, learned_range
from iddpm.diffusion.process import Gaussian
from iddpm.diffusion.samplers import Ancestral, Ddim
from iddpm.diffusion.schedule import Cosine, Linear, NoiseSchedule, noise_schedule
from iddpm.diffusion.spacing import DdimSteps, EvenSteps, ListedSteps, SectionSteps, kept, parse_steps
from iddpm.runtime.errors import ConfigError
from strategies import even_or_listed, normal

LINEAR_40 = noise_schedule(Linear(timesteps=40), "thousand")
LINEAR_100 = noise_schedule(Linear(timesteps=100), "thousand")
LINEAR_1000 = noise_schedule(Linear(timesteps=1000), "thousand")


class PerfectDenoiser:
    """Knows the one picture there is, and notes where it was asked."""

    def __init__(self, schedule, x0):
        self.schedule, self.x0, self.asked = schedule, x0, []

    def __call__(self, x_t, t, cond):
        self.asked.append(t.tolist())
        log_variance = self.schedule.at("beta_tilde_log_clipped", t, x_t)
        return Prediction(self.x0, eps_from_x0(self.schedule, x_t, t, self.x0), log_variance)


def constant_picture(value, shape=(2, 3, 4, 4)):
    return torch.full(shape, value)


def original_indices(denoiser, keep):
    """Where the denoiser was asked, in the original chain, after checking that the whole batch was."""
    assert all(len(set(t)) == 1 for t in denoiser.asked)
    return [keep[t[0]] for t in denoiser.asked]


@pytest.mark.parametrize(
    ("timesteps", "last_alpha_bar"), [(100, 2.04e-5), (200, 3.03e-5), (1000, 4.04e-5), (4000, 4.25e-5)]
)
def test_trn_10_linear_endpoints_scale_with_timesteps(timesteps, last_alpha_bar):
    alpha_bar = noise_schedule(Linear(timesteps=timesteps), "thousand").alpha_bar
    assert alpha_bar[-1] == pytest.approx(last_alpha_bar, abs=0.005e-5)


@given(st.integers(-3, 400))
def test_trn_10_every_length_is_finite_or_refused_with_one_that_works(timesteps):
    if timesteps > 20:
        schedule = noise_schedule(Linear(timesteps=timesteps), "thousand")
        assert np.isfinite(schedule.log_beta).all()
        assert np.isfinite(schedule.beta_tilde_log_clipped).all()
        assert schedule.alpha_bar[-1] < 1e-4
    else:
        with pytest.raises(ConfigError, match=r"21|1000"):
            Linear(timesteps=timesteps)


@settings(max_examples=12)
@given(even_or_listed(40), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 99))
def test_smp_01_the_step_before_comes_from_the_list(spec, eta, seed):
    keep = kept(spec, 40)
    denoiser = PerfectDenoiser(LINEAR_40.respace(keep), constant_picture(0.5))
    levels = [1.0, *LINEAR_40.alpha_bar[list(keep)]]
    x_t = normal(seed, 2, 3, 4, 4).float()
    for k, state in enumerate(Ddim(eta=eta)(denoiser, x_t, Cond(), lambda k: torch.zeros(2, 3, 4, 4))):
        i = len(keep) - 1 - k
        sigma = eta * math.sqrt((1 - levels[i]) / (1 - levels[i + 1]) * (1 - levels[i + 1] / levels[i]))
        eps = (x_t - math.sqrt(levels[i + 1]) * 0.5) / math.sqrt(1 - levels[i + 1])
        expected = math.sqrt(levels[i]) * 0.5 + math.sqrt(max(1 - levels[i] - sigma**2, 0)) * eps
        torch.testing.assert_close(state.x, expected, rtol=1e-4, atol=1e-5)
        x_t = state.x
    torch.testing.assert_close(x_t, constant_picture(0.5), rtol=0, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 2, 5, 7, 99, 100])
def test_smp_01_a_perfect_denoiser_gives_the_picture_whatever_the_steps(steps):
    keep = kept(EvenSteps(steps), 100)
    if steps == 5:
        assert keep == (0, 25, 50, 74, 99)
    denoiser = PerfectDenoiser(LINEAR_100.respace(keep), constant_picture(0.5))
    *_, last = Ddim(eta=0.0)(denoiser, normal(0, 2, 3, 4, 4).float(), Cond(), lambda k: None)
    torch.testing.assert_close(last.x, constant_picture(0.5), rtol=0, atol=1e-5)
    assert original_indices(denoiser, keep) == list(reversed(keep))


@settings(max_examples=200)
@given(st.integers(1, 1500).flatmap(lambda timesteps: st.tuples(st.just(timesteps), st.integers(1, timesteps))))
def test_smp_02_exactly_as_many_distinct_steps_as_asked(request_):
    timesteps, count = request_
    keep = kept(EvenSteps(count), timesteps)
    assert len(set(keep)) == len(keep) == count
    assert list(keep) == sorted(keep)
    assert keep[-1] == timesteps - 1
    assert keep[0] == (0 if count > 1 else timesteps - 1)


def test_smp_02_the_reported_counts():
    assert len(kept(EvenSteps(53), 1000)) == 53
    assert len(kept(EvenSteps(30), 100)) == 30
    assert kept(EvenSteps(100), 100) == tuple(range(100))


@pytest.mark.parametrize(
    "text", ["0", "-1", "10.5", "abc", "", "1e2", "10,", "10,-1", "0,0", "ddim", "ddim0", "at:", "at:1.5"]
)
def test_smp_02_texts_that_are_no_number_of_steps(text):
    with pytest.raises(ConfigError, match="steps") as error:
        parse_steps(text)
    assert error.value.fix


@pytest.mark.parametrize(
    ("spec", "timesteps", "nearest"),
    [
        (EvenSteps(101), 100, EvenSteps(100)),
        (SectionSteps((60, 10)), 100, SectionSteps((50, 10))),
        (SectionSteps((1,) * 6), 4, SectionSteps((1, 1, 1, 1, 0, 0))),
        (DdimSteps(300), 1000, DdimSteps(334)),
        (DdimSteps(1001), 1000, DdimSteps(1000)),
        (DdimSteps(1), 1000, DdimSteps(2)),
        (ListedSteps((5, -1, 200, 5)), 100, ListedSteps((0, 5, 99))),
        (ListedSteps(()), 100, ListedSteps((99,))),
    ],
)
def test_smp_02_what_a_chain_cannot_meet_is_refused_with_the_nearest(spec, timesteps, nearest):
    with pytest.raises(ConfigError) as error:
        kept(spec, timesteps)
    assert repr(str(nearest)) in error.value.fix
    assert kept(nearest, timesteps)


@pytest.mark.parametrize("sampler", [Ddim(eta=0.0), Ddim(eta=0.0, clip=False)])
def test_smp_05_noise_is_derived_again_after_clipping(sampler):
    schedule = NoiseSchedule(np.array([0.8, 0.5]), np.array([0.0, 1.0]))
    denoiser = NetDenoiser(lambda x, time, **_: torch.full_like(x, -1.0), schedule, "eps", "fixed_small")
    state = next(iter(sampler(denoiser, torch.full((1, 1), 2.0, dtype=torch.float64), Cond(), lambda k: None)))
    unclipped = (2 + math.sqrt(0.5)) / math.sqrt(0.5)
    assert unclipped == pytest.approx(3.828, abs=1e-3)
    if sampler.clip:
        assert state.x0.item() == 1
        assert state.x.item() == pytest.approx(1.71212, abs=1e-5)
    else:
        assert state.x.item() == pytest.approx(math.sqrt(0.8) * unclipped - math.sqrt(0.2))


def test_smp_06_learned_range_uses_the_reduced_chains_beta():
    keep = [0, 250, 500, 750, 999]
    schedule = LINEAR_1000.respace(keep)
    np.testing.assert_allclose(schedule.beta, [1e-4, 0.47852, 0.85080, 0.95758, 0.98777], atol=5e-6)
    at_2 = torch.tensor([2, 2, 2])
    v = torch.tensor([[1.0], [-1.0], [0.0]], dtype=torch.float64)
    variance = learned_range(schedule, at_2, v).exp().flatten()
    np.testing.assert_allclose(variance, [0.85080, 0.44152, 0.61290], atol=5e-6)
    assert learned_range(schedule, torch.zeros(3, dtype=torch.int64), v).isfinite().all()


@pytest.mark.parametrize("sampler", [Ancestral(), Ddim(), Ddim(eta=1.0)])
def test_smp_06_the_network_still_gets_the_original_time(sampler):
    heard = []

    def net(x, time, label, low_res, noise_level):
        heard.append(time.tolist())
        return torch.zeros_like(x).repeat(1, 2, 1, 1)

    keep = [0, 250, 500, 750, 999]
    denoiser = NetDenoiser(net, LINEAR_1000, "eps", "learned_range").respace(keep)
    x_t = normal(0, 2, 3, 4, 4).float()
    *_, last = sampler(denoiser, x_t, Cond(), lambda k: x_t)
    assert heard == [[float(index)] * 2 for index in reversed(keep)]
    assert last.x.isfinite().all()


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [("10", 999, 0), ("3", 999, 0), ("1", 999, 999), ("10,10", 999, 0), ("ddim10", 900, 0), ("at:7,500", 500, 7)],
)
@pytest.mark.parametrize("sampler", [Ancestral(), Ddim()])
def test_smp_13_where_each_spacing_starts_and_ends(text, first, last, sampler):
    keep = kept(parse_steps(text), 1000)
    denoiser = PerfectDenoiser(LINEAR_1000.respace(keep), constant_picture(-0.25))
    noise = normal(0, 2, 3, 4, 4).float()
    *_, end = sampler(denoiser, noise, Cond(), lambda k: noise)
    asked = original_indices(denoiser, keep)
    assert (asked[0], asked[-1]) == (first, last)
    torch.testing.assert_close(end.x, constant_picture(-0.25), rtol=0, atol=1e-5)


@settings(max_examples=10)
@given(even_or_listed(25), st.integers(1, 3))
def test_nll_01_every_term_has_its_own_timestep(spec, batch):
    keep = kept(spec, 25)
    schedule = noise_schedule(Cosine(timesteps=25), "thousand").respace(keep)
    denoiser = PerfectDenoiser(schedule, normal(1, batch, 3, 2, 2).clamp(-1, 1) * 0.5)
    result = bound(denoiser, normal(2, batch, 3, 2, 2).clamp(-1, 1), Cond(), lambda k: normal(k, batch, 3, 2, 2))
    assert denoiser.asked == [[index] * batch for index in reversed(range(len(keep)))]
    assert result.terms.shape == result.mse.shape == (batch, len(keep))
    torch.testing.assert_close(result.total, result.prior + result.terms.sum(1), rtol=0, atol=1e-6)
    assert (result.terms[:, :-1] > 0).all()


@pytest.mark.parametrize(("mean", "std"), [(0, 1e-4), (0.3, 0.05), (-1, 0.5), (2, 0.1), (1, 1e-4), (-0.7, 3.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nll_03_the_256_bins_add_up_to_1(mean, std, dtype):
    x0 = torch.arange(256, dtype=dtype).reshape(256, 1) / 127.5 - 1
    p = Gaussian(torch.full_like(x0, mean), torch.full_like(x0, 2 * math.log(std)))
    log_p = discretized_log_likelihood(x0, p)
    assert log_p.isfinite().all()
    # In float32 the levels themselves are off by some 4e-8, which a narrow normal tells.
    tolerance = 1e-6 if dtype == torch.float64 else 2e-6 + 4e-8 / std
    assert log_p.exp().double().sum().item() == pytest.approx(1, abs=tolerance)
    # A mean beyond the last level leaves it the whole tail.
    if mean == 2:
        assert log_p.argmax() == 255
        assert log_p[255].exp().item() == pytest.approx(1, abs=1e-6)

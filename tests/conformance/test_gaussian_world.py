"""Against closed forms: data N(mu, s0^2), whose best denoiser, bound, marginals and flow are known exactly."""

import numpy as np
import pytest
import torch

from gaussian_world import GaussianWorld
from iddpm.diffusion.bound import bound, bound_term, prior_term
from iddpm.diffusion.denoiser import Cond, NetDenoiser
from iddpm.diffusion.objective import Hybrid, Vlb
from iddpm.diffusion.process import q_sample, reverse_step
from iddpm.diffusion.samplers import Ancestral, Ddim, invert_ddim
from iddpm.diffusion.schedule import Cosine, Linear, noise_schedule
from iddpm.diffusion.spacing import EvenSteps, kept

WORLD = GaussianWorld(mu=0.3, s0=0.7)
SCHEDULES = {"linear": Linear, "cosine": Cosine}

# Bound minus entropy in bits per dim, measured once outside this project: (T = 50, 200, 1000, 4000).
EXCESS = {
    ("linear", "beta"): (0.0080, 0.0020, 0.00039, 0.00010),
    ("cosine", "beta"): (0.0045, 0.0011, 0.00023, 0.00006),
    ("linear", "beta_tilde"): (3.07, 1.33, 0.83, 0.70),
    ("cosine", "beta_tilde"): (1.34, 1.01, 0.77, 0.68),
}
TIMESTEPS = (50, 200, 1000, 4000)


def chain(kind, timesteps):
    return noise_schedule(SCHEDULES[kind](timesteps=timesteps), "index")


def terms_of(schedule, variance):
    """The bound's terms, all indices at once, means exact."""
    x0, noise = WORLD.four_corners((schedule.timesteps,))
    t = torch.arange(schedule.timesteps)
    x_t = q_sample(schedule, x0, t, noise)
    p = reverse_step(schedule, x_t, t, WORLD.denoiser(schedule, variance)(x_t, t, Cond()), clip=False)
    return bound_term(schedule, x0, x_t, t, p, "continuous")


def excess(schedule, variance):
    prior = prior_term(schedule, WORLD.four_corners((1,))[0])
    return (terms_of(schedule, variance).sum() + prior.sum()).item() - WORLD.entropy_bits_per_dim


@pytest.mark.parametrize("timesteps", TIMESTEPS)
@pytest.mark.parametrize("kind", SCHEDULES)
def test_bound_with_the_best_variance_is_the_entropy(kind, timesteps):
    assert 0 <= excess(chain(kind, timesteps), "best") < 3e-6


@pytest.mark.parametrize(("kind", "variance"), EXCESS)
def test_excess_of_the_fixed_variances(kind, variance):
    ours = [excess(chain(kind, timesteps), variance) for timesteps in TIMESTEPS]
    # Half a unit of the figures' last digit, which is the fourth decimal at T <= 200 and the fifth above.
    half_units = (5e-5, 5e-5, 5e-6, 5e-6) if variance == "beta" else 5e-3
    assert (np.abs(np.subtract(ours, EXCESS[kind, variance])) <= half_units).all(), ours


@pytest.mark.parametrize("kind", SCHEDULES)
def test_excess_with_beta_falls_as_one_over_timesteps(kind):
    ours = [excess(chain(kind, timesteps), "beta") for timesteps in TIMESTEPS]
    slope = np.polyfit(np.log(TIMESTEPS), np.log(ours), 1)[0]
    assert slope == pytest.approx(-1, abs=0.05)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_beta_tilde_pays_at_the_datas_end(kind):
    schedule = chain(kind, 1000)
    paid = terms_of(schedule, "beta_tilde") - terms_of(schedule, "best")
    assert (paid > -1e-12).all()
    assert paid[0] > 0.15
    assert paid[:2].sum() > 0.5 * paid.sum()
    assert paid[:10].sum() > 0.85 * paid.sum()


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("steps", [1, 2, 10, 37])
def test_bound_of_a_respaced_chain_is_the_entropy_too(kind, steps):
    denoiser = WORLD.denoiser(chain(kind, 1000).respace(kept(EvenSteps(steps), 1000)))
    x0, noise = WORLD.four_corners((1,))
    result = bound(denoiser, x0, Cond(), lambda k: noise, decoder="continuous", clip=False)
    # One step leaves x0 to the decoder alone, given almost nothing: the bound is still tight, as p is exact.
    assert 0 <= result.total.item() - WORLD.entropy_bits_per_dim < 4e-5
    assert result.terms.shape == (1, steps)


@pytest.mark.parametrize("objective", [Hybrid(decoder="continuous"), Vlb(decoder="continuous")])
def test_learned_range_reaches_the_best_variance(objective):
    schedule = chain("cosine", 8)
    x0, noise = WORLD.four_corners((8, 1))
    t = torch.arange(8)
    v = torch.zeros(8, dtype=torch.float64, requires_grad=True)

    def net(x, time, label, low_res, noise_level):
        best = WORLD.denoiser(schedule)(x, time.long(), Cond())
        return torch.cat([best.eps, v[time.long()].reshape(-1, 1, 1).expand_as(x)], dim=1)

    denoiser = NetDenoiser(net, schedule, "eps", "learned_range")
    # Newton's method: each v has a convex loss of its own.
    for _ in range(25):
        loss = objective(denoiser, x0, t, noise, Cond()).loss.sum()
        (slope,) = torch.autograd.grad(loss, v, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), v)
        with torch.no_grad():
            v -= slope / curvature
    result = bound(denoiser, x0[:1], Cond(), lambda k: noise[:1], decoder="continuous", clip=False)
    assert 0 <= result.total.item() - WORLD.entropy_bits_per_dim < 5e-6
    learned = denoiser(x0, t, Cond()).log_variance[:, 0, 0].detach()
    np.testing.assert_allclose(learned, np.log(WORLD.best_variance(schedule.alpha_bar)), atol=1e-9)


def order_of(errors, steps):
    return -np.polyfit(np.log(steps), np.log(errors), 1)[0]


def run(states):
    *_, last = states
    return last.x


def test_ddim_is_of_first_order():
    schedule, steps = chain("cosine", 4000), (20, 40, 80, 160)
    x_t = torch.tensor([[-1.0, 0.5, 2.0]], dtype=torch.float64)
    exact = WORLD.flow(schedule.alpha_bar[-1], x_t)
    errors = []
    for count in steps:
        denoiser = WORLD.denoiser(schedule.respace(kept(EvenSteps(count), 4000)))
        x = run(Ddim(eta=0.0, clip=False)(denoiser, x_t, Cond(), lambda k: x_t))
        errors.append((x - exact).abs().max().item())
    assert order_of(errors, steps) == pytest.approx(1, abs=0.15)


def test_ddim_inversion_is_of_first_order():
    schedule, steps = chain("cosine", 4000), (20, 40, 80, 160)
    x0 = torch.tensor([[-0.5, 0.3, 1.2]], dtype=torch.float64)
    exact = WORLD.flow(1.0, x0, to=0.0)
    errors = []
    for count in steps:
        denoiser = WORLD.denoiser(schedule.respace(kept(EvenSteps(count), 4000)))
        errors.append((run(invert_ddim(denoiser, x0, Cond(), clip=False)) - exact).abs().max().item())
    assert order_of(errors, steps) == pytest.approx(1, abs=0.15)


def affine_coefficients(sampler, denoiser):
    """The last state as c + a x_T + sum of b_k noise(k): every step of this world is affine. Gives (c, [a, b...])."""
    n = denoiser.schedule.timesteps
    sources = torch.cat([torch.zeros(1, n, dtype=torch.float64), torch.eye(n, dtype=torch.float64)])
    x = run(sampler(denoiser, sources[:, :1], Cond(), lambda k: sources[:, k + 1 : k + 2]))
    return x[0].item(), (x[1:] - x[0]).flatten().numpy()


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("steps", [2, 5, 25, 100])
def test_strided_ancestral_sampling_has_the_datas_marginal(kind, steps):
    schedule = chain(kind, 1000).respace(kept(EvenSteps(steps), 1000))
    constant, weights = affine_coefficients(Ancestral(clip=False), WORLD.denoiser(schedule))
    last = schedule.alpha_bar[-1]
    weights[0] *= WORLD.variance_of_x(last) ** 0.5
    mean = constant + weights[0] / WORLD.variance_of_x(last) ** 0.5 * last**0.5 * WORLD.mu
    # The last step adds no noise: what x0 varies by, given the last x_t, is missing.
    missing = WORLD.variance_of_x0(schedule.alpha_bar[0])
    assert mean == pytest.approx(WORLD.mu, rel=1e-9)
    assert (weights**2).sum() + missing == pytest.approx(WORLD.s0**2, rel=1e-9)


def test_ddim_with_eta_1_is_ancestral_sampling_with_beta_tilde():
    schedule = chain("cosine", 1000).respace(kept(EvenSteps(25), 1000))
    ours = affine_coefficients(Ddim(eta=1.0, clip=False), WORLD.denoiser(schedule))
    theirs = affine_coefficients(Ancestral(clip=False), WORLD.denoiser(schedule, "beta_tilde"))
    assert ours[0] == pytest.approx(theirs[0], rel=1e-9)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-9, atol=1e-12)

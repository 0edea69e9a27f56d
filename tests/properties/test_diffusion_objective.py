"""What holds for every objective."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iddpm.diffusion.denoiser import Cond, NetDenoiser
from iddpm.diffusion.objective import Hybrid, Simple, Vlb
from iddpm.diffusion.prediction import target_value
from iddpm.diffusion.schedule import Cosine, Linear, noise_schedule
from iddpm.runtime.errors import ConfigError
from strategies import normal, respaced, shapes, targets

OBJECTIVES = [Simple(), Simple(min_snr_gamma=5.0), Hybrid(), Hybrid(bound_weight="unscaled"), Vlb()]
chains = respaced(max_timesteps=1000)
seeds = st.integers(0, 2**31)


class TableNet:
    """Puts out what it was made with, one leaf for the target and one for the variance; counts its forwards."""

    def __init__(self, value, v=None):
        self.value, self.v, self.calls = value.requires_grad_(), None if v is None else v.requires_grad_(), 0

    def __call__(self, x, time, label, low_res, noise_level):
        self.calls += 1
        return self.value if self.v is None else torch.cat([self.value, self.v], dim=1)


def drawn(schedule, shape, seed, batch=3):
    t = torch.randint(0, schedule.timesteps, (batch,), generator=torch.Generator().manual_seed(seed))
    return normal(seed, batch, *shape).clamp(-1, 1), t, normal(seed + 1, batch, *shape)


def learned(schedule, shape, seed, target="eps", batch=3):
    net = TableNet(normal(seed + 2, batch, *shape), normal(seed + 3, batch, *shape))
    return NetDenoiser(net, schedule, target, "learned_range")


def gradients(objective, denoiser, data):
    terms = objective(denoiser, *data, Cond())
    net = denoiser.net
    return terms, torch.autograd.grad(terms.loss.sum(), [net.value, net.v], allow_unused=True)


@settings(max_examples=12)
@given(chains, shapes, seeds, targets, st.sampled_from(OBJECTIVES))
def test_one_forward_and_parts_that_hold_no_graph(schedule, shape, seed, target, objective):
    denoiser, data = learned(schedule, shape, seed, target), drawn(schedule, shape, seed)
    terms = objective(denoiser, *data, Cond())
    assert denoiser.net.calls == 1
    assert terms.loss.requires_grad
    assert not any(part.requires_grad for part in terms.parts.values())
    assert torch.equal(terms.t, data[1])
    assert set(terms.parts) == ({"mse"} if isinstance(objective, Simple) else {"mse", "bound"})


@settings(max_examples=12)
@given(chains, shapes, seeds, targets, st.sampled_from(["scaled", "unscaled"]))
def test_hybrid_trains_the_mean_by_simple_and_the_variance_by_the_bound(schedule, shape, seed, target, weight):
    denoiser, data = learned(schedule, shape, seed, target), drawn(schedule, shape, seed)
    simple, (simple_mean, simple_v) = gradients(Simple(), denoiser, data)
    vlb, (vlb_mean, vlb_v) = gradients(Vlb(), denoiser, data)
    hybrid, (hybrid_mean, hybrid_v) = gradients(Hybrid(bound_weight=weight), denoiser, data)
    share = 1 / 1000 if weight == "scaled" else 1 / schedule.timesteps
    assert simple_v is None or not simple_v.any()
    torch.testing.assert_close(hybrid_mean, simple_mean, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(hybrid_v, share * vlb_v, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(hybrid.loss, simple.loss + share * vlb.loss, rtol=1e-9, atol=1e-12)
    assert vlb_mean.abs().sum() > 0


@settings(max_examples=12)
@given(chains, shapes, seeds, targets)
def test_parts_mean_the_same_whatever_the_objective(schedule, shape, seed, target):
    denoiser, data = learned(schedule, shape, seed, target), drawn(schedule, shape, seed)
    simple, hybrid, vlb = (objective(denoiser, *data, Cond()) for objective in (Simple(), Hybrid(), Vlb()))
    for other in (Simple(min_snr_gamma=1.0)(denoiser, *data, Cond()), hybrid, vlb):
        torch.testing.assert_close(other.parts["mse"], simple.loss.detach(), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(hybrid.parts["bound"], vlb.loss.detach(), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(vlb.parts["bound"], vlb.loss.detach(), rtol=1e-12, atol=1e-14)


@settings(max_examples=12)
@given(chains, shapes, seeds, targets)
def test_simple_is_the_error_of_what_the_network_puts_out(schedule, shape, seed, target):
    denoiser, (x0, t, noise) = learned(schedule, shape, seed, target), drawn(schedule, shape, seed)
    expected = (denoiser.net.value - target_value(schedule, t, x0, noise, target)) ** 2
    ours = Simple()(denoiser, x0, t, noise, Cond()).loss
    torch.testing.assert_close(ours, expected.reshape(3, -1).mean(1), rtol=1e-6, atol=1e-9)


@settings(max_examples=12)
@given(chains, seeds, st.floats(0.1, 20))
def test_min_snr_weighs_the_error_of_x0_alike_for_every_target(schedule, seed, gamma):
    """One belief told in three ways costs min(snr, gamma) times the squared error of x0 each time."""
    x0, t, noise = drawn(schedule, (2, 3), seed)
    wrong_x0 = x0 + normal(seed + 5, 3, 2, 3)
    ab = torch.from_numpy(schedule.alpha_bar[t]).reshape(3, 1, 1)
    wrong_eps = noise + (ab / (1 - ab)).sqrt() * (x0 - wrong_x0)
    snr = (ab / (1 - ab)).flatten()
    expected = snr.clamp(max=gamma) * ((wrong_x0 - x0) ** 2).flatten(1).mean(1)
    for target in ("eps", "x0", "v"):
        net = TableNet(target_value(schedule, t, wrong_x0, wrong_eps, target).clone())
        denoiser = NetDenoiser(net, schedule, target, "fixed_small")
        ours = Simple(min_snr_gamma=gamma)(denoiser, x0, t, noise, Cond()).loss
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("decoder", ["discretized", "continuous"])
def test_the_decoder_is_the_one_asked_for(decoder):
    schedule = noise_schedule(Cosine(timesteps=100), "index")
    x0, noise = normal(0, 2, 4, 2, 2).clamp(-1, 1), normal(1, 2, 4, 2, 2)
    t = torch.zeros(2, dtype=torch.int64)
    terms = {}
    for objective in (Hybrid(decoder=decoder), Vlb(decoder=decoder)):
        terms[type(objective)] = objective(learned(schedule, (4, 2, 2), 3, batch=2), x0, t, noise, Cond())
    torch.testing.assert_close(terms[Hybrid].parts["bound"], terms[Vlb].parts["bound"])
    # A density and the mass of a bin of width 2/255 differ by the logarithm of that width, and a little for curvature.
    other = Vlb(decoder="continuous")(learned(schedule, (4, 2, 2), 3, batch=2), x0, t, noise, Cond())
    gap = (terms[Vlb].loss - other.loss) / schedule.timesteps
    expected = 0.0 if decoder == "continuous" else -math.log2(2 / 255)
    assert (gap - expected).abs().max() < 1.5
    assert (gap.abs() > 3).all() == (decoder == "discretized")


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("spec", [Cosine(timesteps=4000), Linear(timesteps=4000)])
@pytest.mark.parametrize("target", ["eps", "x0", "v"])
def test_float32_losses_and_gradients_are_finite_all_along_a_long_chain(objective, spec, target):
    schedule = noise_schedule(spec, "thousand")
    t = torch.tensor([0, 0, 1, 2, 2000, 3998, 3999, 3999])
    x0, noise = torch.tanh(normal(0, 8, 3, 4, 4)).float(), normal(1, 8, 3, 4, 4).float()
    x0[0], x0[1] = -1, 1
    net = TableNet(normal(2, 8, 3, 4, 4).float(), normal(3, 8, 3, 4, 4).float())
    denoiser = NetDenoiser(net, schedule, target, "learned_range")
    terms, (mean, v) = gradients(objective, denoiser, (x0, t, noise))
    assert terms.loss.dtype == torch.float32
    for value in (terms.loss, mean, *([] if v is None else [v]), *terms.parts.values()):
        assert value.isfinite().all()


@pytest.mark.parametrize("gamma", [0.0, -1.0, float("nan")])
def test_a_cap_on_the_snr_that_is_not_positive_is_refused(gamma):
    with pytest.raises(ConfigError, match="min_snr_gamma"):
        Simple(min_snr_gamma=gamma)

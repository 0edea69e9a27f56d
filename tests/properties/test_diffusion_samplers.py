"""What holds for every sampler."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from iddpm.diffusion.denoiser import Cond, NetDenoiser
from iddpm.diffusion.samplers import Ancestral, Ddim, invert_ddim
from iddpm.diffusion.schedule import Cosine, noise_schedule
from iddpm.runtime.errors import ConfigError
from strategies import normal, respaced, shapes

SAMPLERS = [Ancestral(), Ancestral(clip=False), Ddim(), Ddim(eta=0.5), Ddim(eta=1.0, clip=False)]
COSINE = noise_schedule(Cosine(timesteps=40), "thousand")
samplers = st.sampled_from(SAMPLERS)
chains = respaced(max_timesteps=300)
seeds = st.integers(0, 2**31)


def net(x, time, label, low_res, noise_level):
    mean = torch.tanh(0.7 * x + 0.001 * time.reshape(-1, *[1] * (x.ndim - 1)))
    return torch.cat([mean, torch.sin(x)], dim=1)


def denoiser_of(schedule):
    return NetDenoiser(net, schedule, "eps", "learned_range")


@settings(max_examples=12)
@given(chains, shapes, seeds, samplers)
def test_a_sample_depends_on_its_own_noise_alone(schedule, shape, seed, sampler):
    """Whatever else is in the batch, and for vectors, latents, volumes and any number of channels."""
    n = schedule.timesteps
    noise = normal(seed, n + 1, 3, *shape)
    together = [state.x for state in sampler(denoiser_of(schedule), noise[0], Cond(), lambda k: noise[k + 1])]
    assert len(together) == n
    alone = noise[:, 1:2]
    for ours, state in zip(
        together, sampler(denoiser_of(schedule), alone[0], Cond(), lambda k: alone[k + 1]), strict=True
    ):
        torch.testing.assert_close(ours[1:2], state.x, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sampler", SAMPLERS)
@settings(max_examples=5)
@given(schedule=chains, seed=seeds)
def test_states_run_down_the_chain_and_noise_is_drawn_where_it_counts(schedule, seed, sampler):
    n, asked = schedule.timesteps, []

    def noise(k):
        asked.append(k)
        return normal(seed + k, 2, 3, 2, 2)

    states = list(sampler(denoiser_of(schedule), normal(seed, 2, 3, 2, 2), Cond(), noise))
    assert [state.index for state in states] == list(reversed(range(n)))
    assert asked == ([] if sampler == Ddim() else list(range(n - 1)))
    if sampler.clip:
        assert all(state.x0.abs().max() <= 1 for state in states)
    torch.testing.assert_close(states[-1].x, states[-1].x0, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_clipping_is_what_was_asked(sampler):
    def loud_net(x, time, label, low_res, noise_level):
        return torch.cat([torch.full_like(x, -5.0), torch.zeros_like(x)], dim=1)

    denoiser = NetDenoiser(loud_net, COSINE, "eps", "learned_range")
    first = next(iter(sampler(denoiser, normal(0, 1, 3, 2, 2), Cond(), lambda k: normal(k, 1, 3, 2, 2))))
    assert (first.x0.abs().max() <= 1) == sampler.clip


@settings(max_examples=12)
@given(chains, shapes, seeds, st.booleans())
def test_inversion_runs_up_the_chain(schedule, shape, seed, clip):
    x0 = normal(seed, 2, *shape)
    states = list(invert_ddim(denoiser_of(schedule), x0, Cond(), clip=clip))
    assert [state.index for state in states] == list(range(schedule.timesteps))
    # The last step leads to alpha_bar = 0, where x is all noise: what the last prediction says of it.
    x_last = states[-2].x if len(states) > 1 else x0
    ab = schedule.alpha_bar[-1]
    expected = (x_last - ab**0.5 * states[-1].x0) / (1 - ab) ** 0.5
    torch.testing.assert_close(states[-1].x, expected, rtol=1e-7, atol=1e-7)


def test_sampling_builds_no_graph_and_leaves_the_callers_grad_mode_alone():
    weight = torch.tensor(0.3, requires_grad=True, dtype=torch.float64)
    denoiser = NetDenoiser(lambda x, time, **_: weight * x, COSINE, "eps", "fixed_small")
    x = normal(0, 2, 3, 2, 2)
    runs = [sampler(denoiser, x, Cond(), lambda k: x) for sampler in (Ancestral(), Ddim(eta=0.5))]
    for states in (*runs, invert_ddim(denoiser, x, Cond())):
        for state in states:
            assert not state.x.requires_grad
            assert not state.x0.requires_grad
            assert torch.is_grad_enabled()


class Operations(TorchDispatchMode):
    """Notes the operations that reach the device."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("sampler", [Ancestral(), Ddim(), Ddim(eta=0.5)])
def test_a_step_neither_copies_to_the_device_nor_waits_for_it(sampler):
    """The denoiser here does nothing, so that what is noted is the sampler's; a first run has laid the tables out."""
    prepared = torch.zeros(2, 6, 4, 4)
    denoiser = NetDenoiser(lambda x, time, **_: prepared, COSINE, "eps", "learned_range")
    x = normal(0, 2, 3, 4, 4).float()
    for _ in sampler(denoiser, x, Cond(), lambda k: x):
        pass
    with Operations() as operations:
        for _ in sampler(denoiser, x, Cond(), lambda k: x):
            pass
    copies = {"_to_copy", "lift_fresh", "_local_scalar_dense", "copy_", "full", "zeros", "nonzero", "item"}
    assert not copies & set(operations.names)
    assert operations.names.count("arange") == 1
    # A third of them views; a network has hundreds.
    assert len(operations.names) / COSINE.timesteps < 40


@pytest.mark.parametrize("eta", [-0.1, 1.1, float("nan")])
def test_eta_out_of_range_is_refused(eta):
    with pytest.raises(ConfigError, match="eta"):
        Ddim(eta=eta)

"""What holds for every timestep sampler."""

from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iddpm.diffusion.timesteps import SecondMoment, Uniform
from iddpm.runtime.errors import ConfigError, RunError
from strategies import normal

updates = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.floats(0.0, 50.0)), min_size=1, max_size=30), min_size=1, max_size=12
)


def feed(sampler, pairs):
    t, losses = zip(*pairs, strict=True)
    sampler.update(torch.tensor(t), torch.tensor(losses, dtype=torch.float64))


def plain_probabilities(history, uniform_part, pairs, timesteps=5):
    """The definition, one pair at a time."""
    last = [deque(maxlen=history) for _ in range(timesteps)]
    for t, loss in pairs:
        last[t].append(loss)
    root = np.array([np.sqrt(np.mean(np.square(losses))) if losses else 0.0 for losses in last])
    if any(len(losses) < history for losses in last) or root.sum() == 0:
        return np.full(timesteps, 1 / timesteps)
    return (1 - uniform_part) * root / root.sum() + uniform_part / timesteps


@settings(max_examples=20)
@given(updates, st.integers(1, 6), st.sampled_from([0.001, 0.25, 1.0]))
def test_second_moment_probabilities_follow_the_definition(batches, history, uniform_part):
    spec = SecondMoment(history=history, uniform_part=uniform_part)
    at_once, in_batches = spec.build(5), spec.build(5)
    pairs = [pair for batch in batches for pair in batch]
    for batch in batches:
        feed(in_batches, batch)
    feed(at_once, pairs)
    expected = plain_probabilities(history, uniform_part, pairs)
    np.testing.assert_allclose(in_batches.probabilities(), expected, rtol=1e-9)
    np.testing.assert_allclose(at_once.probabilities(), expected, rtol=1e-9)
    assert in_batches.probabilities().sum().item() == pytest.approx(1)


def warm_sampler(seed, timesteps=7, history=3):
    sampler = SecondMoment(history=history).build(timesteps)
    for round_ in range(history):
        sampler.update(torch.arange(timesteps), normal(seed + round_, timesteps).abs() * torch.arange(1, timesteps + 1))
    return sampler


@settings(max_examples=12)
@given(st.integers(0, 1000))
def test_weights_keep_the_mean_unbiased(seed):
    sampler = warm_sampler(seed)
    u = (torch.arange(20000, dtype=torch.float64) + 0.5) / 20000
    t, weight = sampler.draw(u)
    value = normal(seed + 99, 7)
    assert (weight * value[t]).mean().item() == pytest.approx(value.mean().item(), abs=3e-3)
    shares = torch.bincount(t, minlength=7) / len(t)
    np.testing.assert_allclose(shares, sampler.probabilities(), atol=2e-4)
    assert sampler.probabilities().std() > 0.01


@given(st.integers(1, 4000), st.lists(st.floats(0, 1, exclude_min=True, exclude_max=True), min_size=1, max_size=50))
def test_uniform_draws_the_cell_that_u_falls_in(timesteps, numbers):
    sampler = Uniform().build(timesteps)
    t, weight = sampler.draw(torch.tensor(numbers, dtype=torch.float64))
    assert t.tolist() == [min(int(u * timesteps), timesteps - 1) for u in numbers]
    assert (weight == 1).all()


@given(st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_a_sampler_that_is_not_warm_draws_like_uniform(u):
    u = torch.tensor([u, 0.3, 0.125, 0.5], dtype=torch.float64)
    t, weight = SecondMoment().build(8).draw(u)
    assert torch.equal(t, Uniform().build(8).draw(u)[0])
    assert (weight == 1).all()


@settings(max_examples=12)
@given(st.integers(0, 1000))
def test_a_restored_sampler_goes_on_as_if_never_stopped(seed):
    one = warm_sampler(seed)
    as_lists = {name: value.tolist() for name, value in one.state_dict().items()}
    for state in (one.state_dict(), as_lists):
        other = SecondMoment(history=3).build(7)
        other.load_state_dict(state)
        assert torch.equal(other.probabilities(), one.probabilities())
        again = warm_sampler(seed)
        for sampler in (again, other):
            sampler.update(torch.tensor([3, 3, 0, 6]), torch.tensor([5.0, 1.0, 2.0, 8.0]))
        assert torch.equal(other.probabilities(), again.probabilities())


def test_a_state_is_a_copy():
    sampler = warm_sampler(0)
    before = sampler.state_dict()["losses"].clone()
    state = sampler.state_dict()
    sampler.update(torch.arange(7), torch.ones(7))
    assert torch.equal(state["losses"], before)


def test_a_state_of_another_run_is_refused():
    with pytest.raises(RunError, match="timestep"):
        SecondMoment(history=3).build(8).load_state_dict(warm_sampler(0).state_dict())


def test_a_loss_that_is_not_finite_is_not_remembered():
    sampler, clean = warm_sampler(0), warm_sampler(0)
    sampler.update(torch.tensor([2, 3, 2, 2]), torch.tensor([float("nan"), 1.0, float("inf"), 4.0]))
    clean.update(torch.tensor([3, 2]), torch.tensor([1.0, 4.0]))
    assert torch.equal(sampler.probabilities(), clean.probabilities())
    assert torch.equal(sampler.state_dict()["counts"], clean.state_dict()["counts"])


def test_losses_that_are_all_0_leave_the_draws_uniform():
    sampler = SecondMoment(history=2).build(4)
    sampler.update(torch.arange(4).repeat(2), torch.zeros(8))
    assert (sampler.probabilities() == 0.25).all()
    assert sampler.draw(torch.tensor([0.6], dtype=torch.float64))[0].item() == 2


def test_uniform_has_nothing_to_keep():
    sampler = Uniform().build(8)
    sampler.update(torch.tensor([1]), torch.tensor([2.0]))
    assert sampler.state_dict() == {}
    sampler.load_state_dict({})


@pytest.mark.parametrize("settings_", [{"history": 0}, {"uniform_part": 0.0}, {"uniform_part": 1.5}])
def test_settings_out_of_range_are_refused(settings_):
    with pytest.raises(ConfigError, match=next(iter(settings_))):
        SecondMoment(**settings_)

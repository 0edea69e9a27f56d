"""Hypothesis strategies for the mathematics of diffusion."""

import functools
import random

import torch
from hypothesis import strategies as st

from iddpm.diffusion.schedule import Cosine, Linear, noise_schedule
from iddpm.diffusion.spacing import DdimSteps, EvenSteps, ListedSteps, SectionSteps

__all__ = ["even_or_listed", "normal", "respaced", "schedules", "shapes", "specs", "subsets", "targets", "text_specs"]


def _quiet(build):
    """Leave `random` as it was: the type checks of a construction draw from it, which hypothesis forbids strategies."""

    @functools.wraps(build)
    def quiet(*args, **kwargs):
        state = random.getstate()
        try:
            return build(*args, **kwargs)
        finally:
            random.setstate(state)

    return quiet


targets = st.sampled_from(["eps", "x0", "v"])


def specs(min_timesteps=1, max_timesteps=4000):
    """Schedule specs; the linear one needs more than 20 steps."""
    cosine = st.builds(_quiet(Cosine), timesteps=st.integers(min_timesteps, max_timesteps))
    linear = st.builds(_quiet(Linear), timesteps=st.integers(max(min_timesteps, 21), max(max_timesteps, 21)))
    return st.one_of(cosine, linear)


def schedules(min_timesteps=1, max_timesteps=4000):
    """Full chains."""
    return st.builds(
        _quiet(noise_schedule), specs(min_timesteps, max_timesteps), st.sampled_from(["thousand", "index"])
    )


def subsets(size, min_size=1):
    """Increasing indices below `size`."""
    return st.sets(st.integers(0, size - 1), min_size=min(min_size, size), max_size=20).map(sorted)


@st.composite
def respaced(draw, max_timesteps=4000, min_size=1):
    """Chains of at most 20 of the steps of a full one."""
    schedule = draw(schedules(min_timesteps=min_size, max_timesteps=max_timesteps))
    return _quiet(schedule.respace)(draw(subsets(schedule.timesteps, min_size)))


def even_or_listed(timesteps):
    """Requests for steps that a chain of this length can meet."""
    return st.one_of(
        st.builds(_quiet(EvenSteps), st.integers(1, timesteps)),
        st.builds(_quiet(ListedSteps), subsets(timesteps).map(tuple)),
    )


text_specs = st.one_of(
    st.builds(_quiet(EvenSteps), st.integers(1, 5000)),
    st.builds(_quiet(DdimSteps), st.integers(1, 5000)),
    st.builds(_quiet(SectionSteps), st.lists(st.integers(1, 50), min_size=2, max_size=6).map(tuple)),
    st.builds(_quiet(ListedSteps), st.lists(st.integers(-5, 5000), min_size=1, max_size=6).map(tuple)),
)

shapes = st.sampled_from([(3,), (1, 4), (3, 2, 2), (4, 2, 3), (2, 2, 2, 2)])
"""Shapes of one example: vectors, pictures of any number of channels, latents, volumes."""


def normal(seed, *shape, dtype=torch.float64):
    """Standard normal numbers, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)

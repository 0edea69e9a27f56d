"""Whole trajectories and the whole bound on respaced chains, against the original's on the toy network."""

import pytest
import torch

from conformance.reference_files import arrays, assert_agree, reference_steps, toy_denoiser
from iddpm.diffusion.bound import bound
from iddpm.diffusion.denoiser import Cond
from iddpm.diffusion.samplers import Ancestral, Ddim, invert_ddim

FILE = {name: torch.from_numpy(array) for name, array in arrays("sampling.npz").items()}


def named(what):
    return [name for name in FILE if name.split(".", 3)[3].startswith(what)]


def setting(name, variance="learned"):
    """The toy denoiser on the respaced chain, and the prefix of its arrays."""
    schedule, timesteps, spec, _ = name.split(".", 3)
    keep = reference_steps(spec, timesteps)
    return toy_denoiser(schedule, timesteps, variance).respace(keep), f"{schedule}.{timesteps}.{spec}"


def last_of(states):
    *_, last = states
    return last.x


@pytest.mark.parametrize("name", named("ancestral."))
def test_ancestral_trajectory_equals_the_originals(name):
    denoiser, prefix = setting(name, name.rsplit(".", 1)[1])
    noise = FILE[f"{prefix}.noise"]
    ours = last_of(Ancestral(clip=True)(denoiser, noise[0], Cond(), lambda k: noise[k + 1]))
    assert_agree(ours, FILE[name], atol=1e-12)


@pytest.mark.parametrize("name", named("ddim.eta"))
def test_ddim_trajectory_equals_the_originals(name):
    denoiser, prefix = setting(name)
    noise = FILE[f"{prefix}.noise"]
    sampler = Ddim(eta=float(name.split(".eta")[1]), clip=True)
    ours = last_of(sampler(denoiser, noise[0], Cond(), lambda k: noise[k + 1]))
    assert_agree(ours, FILE[name], atol=1e-12)


@pytest.mark.parametrize("name", [name for name in named("ddim_invert") if not name.endswith(".x0")])
def test_ddim_inversion_equals_the_originals(name):
    denoiser, _ = setting(name)
    ours = last_of(invert_ddim(denoiser, FILE[f"{name}.x0"], Cond(), clip=True))
    assert_agree(ours, FILE[name], atol=1e-12)


@pytest.mark.parametrize("name", [name.removesuffix(".total_bpd") for name in named("bpd.") if "total" in name])
def test_bound_equals_the_originals_term_by_term(name):
    denoiser, prefix = setting(name, name.rsplit(".", 1)[1])
    noise = FILE[f"{prefix}.bpd.noise"]
    ours = bound(denoiser, FILE[f"{prefix}.bpd.x0"], Cond(), lambda k: noise[k], clip=True)
    assert_agree(ours.terms, FILE[f"{name}.vb"])
    assert_agree(ours.total, FILE[f"{name}.total_bpd"])
    assert_agree(ours.prior, FILE[f"{name}.prior_bpd"], rtol=0, atol=1e-12)

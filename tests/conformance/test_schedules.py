"""Schedules at any T, against the original's tables."""

import pytest

from conformance.reference_files import arrays, assert_agree, reference_schedule

FILE = arrays("schedules.npz")
TABLES = {
    "betas": "beta",
    "alphas_cumprod": "alpha_bar",
    "posterior_variance": "beta_tilde",
    "posterior_log_variance_clipped": "beta_tilde_log_clipped",
    "posterior_mean_coef1": "posterior_mean_coef1",
    "posterior_mean_coef2": "posterior_mean_coef2",
}


@pytest.mark.parametrize("name", [name for name in FILE if not name.startswith("index.")])
def test_table_equals_the_originals(name):
    schedule, timesteps, table = name.split(".")
    ours = getattr(reference_schedule(schedule, timesteps), TABLES[table])
    assert ours.dtype == "float64"
    assert_agree(ours[FILE[f"index.{timesteps}"]], FILE[name], rtol=1e-10)

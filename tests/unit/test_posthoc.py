import math

import numpy as np
import pytest
import torch

from iddpm.training.ema import Ema, power_exponent, power_name
from iddpm.training.posthoc import GOOD_FIT, Fit, Snapshot, fit_width, nearest_width, reconstruct

WIDTHS = (0.05, 0.1)


def profile(step, width, steps):
    """Of every single step up to `steps`, by the closed form."""
    return np.diff(np.minimum(np.arange(steps + 1) / step, 1.0) ** (power_exponent(width) + 1))


def taken(every, steps, widths=WIDTHS):
    return [Snapshot(step, width) for step in range(every, steps + 1, every) for width in widths]


class Walk(torch.nn.Module):
    """Weights with an offset that take a random step each time, and the averages of all widths along the way."""

    def __init__(self, steps, every, widths):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.nn.Parameter(torch.full((200,), 100.0))
        ema = Ema(self, (), False, widths)
        self.kept = {}
        for step in range(steps):
            with torch.no_grad():
                self.weight += torch.randn(200, generator=generator)
            ema.update(step)
            if (step + 1) % every == 0:
                for width in widths:
                    self.kept[Snapshot(step + 1, width)] = ema.state_dict(power_name(width))["weight"].clone()

    def made(self, fit, snapshots):
        return reconstruct(fit.coefficients, lambda index: {"weight": self.kept[snapshots[index]]})["weight"]


@pytest.fixture(scope="module")
def walk():
    return Walk(600, 60, (0.04, 0.05, 0.06, 0.07, 0.1, 0.15, 0.2))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("step", [120, 600])
def test_width_that_was_tracked_comes_back_as_it_is(walk, width, step):
    snapshots = taken(60, step)
    fit = fit_width(snapshots, step, width)
    assert fit.residual == 0
    assert fit.coefficients.tolist() == [float(snapshot == Snapshot(step, width)) for snapshot in snapshots]
    assert torch.equal(walk.made(fit, snapshots), walk.kept[Snapshot(step, width)])


# Measured, relative to the distance to the nearest tracked width: 0.051, 0.016, 0.0087, 0.0068, 0.018.
@pytest.mark.parametrize(
    ("width", "error"), [(0.04, 0.1), (0.06, 0.03), (0.07, 0.02), (0.15, 0.02), (0.2, 0.04)], ids=str
)
def test_width_that_was_not_tracked_is_that_of_brute_force(walk, width, error):
    snapshots = taken(60, 600)
    made, true = walk.made(fit_width(snapshots, 600, width), snapshots), walk.kept[Snapshot(600, width)]
    nearest = min(float((walk.kept[Snapshot(600, there)] - true).norm()) for there in WIDTHS)
    assert float((made - true).norm()) < error * nearest


def test_average_at_a_step_without_a_snapshot_needs_one_near_it(walk):
    snapshots = taken(60, 540)
    assert fit_width(snapshots, 545, 0.1).residual < fit_width(snapshots, 570, 0.1).residual
    assert fit_width(snapshots, 570, 0.1).residual > GOOD_FIT


@pytest.mark.parametrize(("steps", "every"), [(7, 3), (40, 10), (900, 90)])
@pytest.mark.parametrize("width", [0.02, 0.08, 0.25])
def test_fit_is_the_least_squares_of_the_single_steps(steps, every, width):
    snapshots = [*taken(every, steps), Snapshot(steps, 0.05)]
    profiles = np.stack([profile(one.step, one.width, steps) for one in snapshots], 1)
    wanted = profile(steps, width, steps)
    fit = fit_width(snapshots, steps, width)
    # The optimum under the constraint, by a heavy row that says it.
    heavy = np.linalg.lstsq(np.vstack([profiles, np.full(len(snapshots), 1e5)]), np.append(wanted, 1e5), rcond=1e-13)[0]
    best = np.linalg.norm(profiles @ heavy - wanted) / np.linalg.norm(wanted)
    assert np.linalg.norm(profiles @ fit.coefficients - wanted) / np.linalg.norm(wanted) == pytest.approx(
        best, abs=1e-6
    )
    assert fit.residual == pytest.approx(best, abs=1e-6)


def test_coefficients_sum_to_one_where_the_fit_is_poor_too():
    for width in (0.01, 0.07, 0.28):
        assert fit_width(taken(100, 400), 400, width).coefficients.sum() == pytest.approx(1, abs=1e-12)
        assert fit_width([Snapshot(300, 0.1)], 400, width).coefficients.tolist() == [1.0]


def test_bins_of_a_long_run_give_the_fit_of_its_single_steps():
    steps, width = 20_000, 0.07
    snapshots = taken(2000, steps)
    fit = fit_width(snapshots, steps, width)
    made = sum(
        part * profile(one.step, one.width, steps) for part, one in zip(fit.coefficients, snapshots, strict=True)
    )
    wanted = profile(steps, width, steps)
    assert fit.residual == pytest.approx(np.linalg.norm(made - wanted) / np.linalg.norm(wanted), rel=1e-2)


def test_hundreds_of_snapshots_are_well_conditioned():
    fit = fit_width(taken(2500, 500_000, (0.02, 0.05, 0.1)), 500_000, 0.07)
    assert fit.residual < 1e-4
    assert np.abs(fit.coefficients).sum() < 10  # what float32 rounding of the snapshots is magnified by, at most
    assert fit.coefficients.sum() == pytest.approx(1, abs=1e-12)


def test_poor_fit_names_the_nearest_width_that_is_good():
    snapshots = taken(100, 1000)
    for width in (0.005, 0.28):
        assert fit_width(snapshots, 1000, width).residual > GOOD_FIT
        near = nearest_width(snapshots, 1000, width)
        assert min(width, 0.05) < near < max(width, 0.1)
        assert fit_width(snapshots, 1000, near).residual <= GOOD_FIT
        beyond = near * (0.97 if width < near else 1.03)
        assert fit_width(snapshots, 1000, beyond).residual > GOOD_FIT
    assert nearest_width([Snapshot(1000, 0.1)], 1000, 0.2) < 0.12


def test_sum_is_float32_and_reads_only_what_counts():
    read = []

    def load(index):
        read.append(index)
        return {"a": torch.full((2,), float(index + 1), dtype=torch.float16), "b": torch.ones(1)}

    made = reconstruct(Fit(np.array([0.5, 0.0, 0.5]), 0.0).coefficients, load)
    assert read == [0, 2]
    assert {name: (tensor.dtype, tensor.tolist()) for name, tensor in made.items()} == {
        "a": (torch.float32, [2.0, 2.0]),
        "b": (torch.float32, [1.0]),
    }


def test_snapshots_from_after_the_step_are_not_for_it():
    with pytest.raises(AssertionError, match="future"):
        fit_width([Snapshot(5, 0.1)], 4, 0.1)
    assert math.isfinite(fit_width([Snapshot(1, 0.1)], 1, 0.2).residual)

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from iddpm.data.loader import Batch
from iddpm.diffusion.denoiser import Cond
from iddpm.diffusion.prediction import Prediction
from iddpm.diffusion.schedule import Linear, NoiseSchedule, noise_schedule
from iddpm.evaluation.likelihood import likelihood
from iddpm.runtime.world import World
from tiny import Lines

ALONE = World(rank=0, size=1, device=torch.device("cpu"))


@dataclass(frozen=True)
class Rough:
    """A denoiser that takes every picture for half of x_t."""

    schedule: NoiseSchedule

    def __call__(self, x_t: torch.Tensor, t: torch.Tensor, cond: Cond) -> Prediction:
        alpha_bar = torch.tensor(self.schedule.alpha_bar, dtype=x_t.dtype)[t][:, None, None, None]
        x0 = (0.5 * x_t).clamp(-1, 1)
        eps = (x_t - alpha_bar.sqrt() * x0) / (1 - alpha_bar).sqrt()
        log_beta = torch.tensor(np.log(self.schedule.beta), dtype=x_t.dtype)[t][:, None, None, None]
        return Prediction(x0=x0, eps=eps, log_variance=log_beta.expand_as(x_t))


IMAGES = torch.randint(0, 256, (7, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def batches(size, images=IMAGES):
    for start in range(0, len(images), size):
        place = torch.arange(start, min(start + size, len(images)))
        yield Batch(images[place], None, place, place)


def evaluate(size=7, images=IMAGES, seed=0, listener=None):
    denoiser = Rough(noise_schedule(Linear(timesteps=25), "thousand"))
    told = listener or Lines()
    return likelihood(denoiser, list(batches(size, images)), len(images), lambda batch, x0: Cond(), seed, ALONE, told)


def test_total_is_the_prior_and_the_terms():
    result = evaluate()
    assert result.bits_per_dim == pytest.approx(result.prior_bits_per_dim + result.terms_bits_per_dim.sum(), abs=1e-6)
    assert result.terms_bits_per_dim.shape == result.mse.shape == (25,)
    assert result.total_bits_per_dim.shape == (7,)
    assert np.isfinite(result.total_bits_per_dim).all()
    assert result.prior_bits_per_dim > 0


def test_nll_05_batch_size_changes_nothing():
    whole = evaluate(7)
    for size in (1, 3):
        result = evaluate(size)
        assert result.bits_per_dim == pytest.approx(whole.bits_per_dim, abs=1e-5)
        np.testing.assert_allclose(result.total_bits_per_dim, whole.total_bits_per_dim, atol=1e-5)
        np.testing.assert_allclose(result.terms_bits_per_dim, whole.terms_bits_per_dim, atol=1e-5)


def test_seed_decides_the_noise_and_nothing_else_does():
    assert (evaluate().total_bits_per_dim == evaluate().total_bits_per_dim).all()
    assert (evaluate().total_bits_per_dim != evaluate(seed=1).total_bits_per_dim).all()


def test_pictures_and_steps_have_noise_of_their_own():
    same = IMAGES[:1].expand(6, -1, -1, -1)
    result = evaluate(3, same)
    assert len(np.unique(result.total_bits_per_dim)) == 6


def test_error_is_the_standard_error_over_pictures():
    result = evaluate()
    expected = result.total_bits_per_dim.std(ddof=1) / 7**0.5
    assert result.standard_error_bits_per_dim == pytest.approx(expected)
    assert evaluate(1, IMAGES[:1]).standard_error_bits_per_dim is None


def test_progress_counts_network_evaluations():
    told = Lines()
    evaluate(3, listener=told)
    total = told.progressed[-1][2]
    assert total % 7 == 0
    whole = [*range(3, 3 * total // 7 + 1, 3), *range(3 * total // 7 + 3, 6 * total // 7 + 1, 3)]
    last = range(6 * total // 7 + 1, total + 1)
    assert told.progressed == [("bits per dim", done, total) for done in (*whole, *last)]

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from iddpm.diffusion.denoiser import Cond
from iddpm.diffusion.prediction import Prediction
from iddpm.diffusion.samplers import Ancestral, Ddim
from iddpm.diffusion.schedule import Cosine, NoiseSchedule, noise_schedule
from iddpm.runtime.world import World
from iddpm.sampling.generate import Order, default_batch_size, generate
from tiny import Lines

CPU = torch.device("cpu")
ALONE = World(rank=0, size=1, device=CPU)


@dataclass(frozen=True)
class Seen:
    """A denoiser that takes the picture for grey, and keeps what it was told."""

    schedule: NoiseSchedule
    calls: list

    def __call__(self, x_t: torch.Tensor, t: torch.Tensor, cond: Cond) -> Prediction:
        self.calls.append((t, cond, x_t))
        alpha_bar = torch.tensor(self.schedule.alpha_bar, dtype=x_t.dtype)[t][:, None, None, None]
        level = torch.zeros(len(x_t)) if cond.label is None else cond.label / 10
        x0 = level[:, None, None, None].expand_as(x_t) + 0.1 * torch.tanh(x_t)
        eps = (x_t - alpha_bar.sqrt() * x0) / (1 - alpha_bar).sqrt()
        log_variance = torch.full_like(x_t, -4.0)
        return Prediction(x0=x0, eps=eps, log_variance=log_variance)


def seen(timesteps=5):
    return Seen(noise_schedule(Cosine(timesteps=timesteps), "thousand"), [])


def order(num, batch_size=4, **settings):
    return Order(**({"num": num, "shape": (3, 4, 4), "seed": 0, "batch_size": batch_size} | settings))


@pytest.mark.parametrize("num", [1, 3, 4, 5, 8, 9])
def test_as_many_pictures_as_asked_each_in_a_full_batch(num):
    denoiser = seen()
    images = generate(denoiser, Ancestral(), order(num), ALONE)
    assert images.shape == (num, 4, 4, 3)
    assert images.dtype == np.uint8
    assert {len(x) for _, _, x in denoiser.calls} == {4}
    assert len(denoiser.calls) == 5 * -(-num // 4)


@pytest.mark.parametrize("sampler", [Ancestral(), Ddim(), Ddim(eta=1.0)])
def test_picture_is_a_function_of_seed_and_index(sampler):
    many = generate(seen(), sampler, order(9), ALONE)
    few = generate(seen(), sampler, order(3), ALONE)
    assert (many[:3] == few).all()
    assert (generate(seen(), sampler, order(2, first=5), ALONE) == many[5:7]).all()
    assert (generate(seen(), sampler, order(9, batch_size=3), ALONE) == many).mean() > 0.999
    assert (generate(seen(), sampler, order(3, seed=1), ALONE) != few).any()
    assert (many[0] != many[1]).any()


def test_samplers_start_from_the_same_noise():
    starts = []
    for sampler in (Ancestral(), Ddim()):
        denoiser = seen()
        generate(denoiser, sampler, order(3), ALONE)
        starts.append(denoiser.calls[0][2])
    assert torch.equal(*starts)


def test_steps_of_a_sampler_have_noise_of_their_own():
    denoiser = seen()
    generate(denoiser, Ancestral(), order(1, batch_size=1), ALONE)
    states = torch.stack([x[0] for _, _, x in denoiser.calls]).flatten(1)
    assert torch.corrcoef(states).triu(1).abs().max() < 0.999
    assert [int(t[0]) for t, _, _ in denoiser.calls] == [4, 3, 2, 1, 0]


def test_each_row_has_its_own_label_and_padding_repeats_the_last():
    denoiser = seen()
    images = generate(denoiser, Ddim(), order(5, labels=torch.tensor([0, 5, 9, 0, 5])), ALONE)
    assert denoiser.calls[0][1].label.tolist() == [0, 5, 9, 0]
    assert denoiser.calls[-1][1].label.tolist() == [5, 5, 5, 5]
    means = images.reshape(5, -1).mean(1)
    assert means[0] < means[1] < means[2]
    assert means[0] == pytest.approx(means[3], abs=15)


def test_each_row_has_its_own_small_picture_in_model_space():
    denoiser = seen()
    low_res = torch.arange(5, dtype=torch.uint8)[:, None, None, None].expand(5, 3, 2, 2) * 51
    generate(denoiser, Ddim(), order(5, low_res=low_res), ALONE)
    assert torch.allclose(denoiser.calls[0][1].low_res[:, 0, 0, 0], torch.tensor([-1.0, -0.6, -0.2, 0.2]))
    assert torch.allclose(denoiser.calls[-1][1].low_res, torch.full((4, 3, 2, 2), 0.6))


def test_progress_counts_the_steps_of_all_batches():
    told = Lines()
    generate(seen(), Ddim(), order(5), ALONE, told)
    assert told.progressed == [("sampling", done, 10) for done in range(1, 11)]


def test_default_batch_fits_the_device_and_the_side():
    assert default_batch_size(CPU, 32) == 16
    assert default_batch_size(CPU, 64) == 4
    assert default_batch_size(CPU, 1024) == 1
    assert default_batch_size(torch.device("cuda"), 32) == 256

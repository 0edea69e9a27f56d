"""This project's side of the benchmark: its own training step and its own sampler, as `iddpm train` and `sample` run them."""

import torch
from torch import nn

from iddpm.data.loader import Batch
from iddpm.diffusion.denoiser import Cond
from iddpm.diffusion.objective import Hybrid
from iddpm.diffusion.samplers import Ancestral
from iddpm.diffusion.schedule import Cosine
from iddpm.diffusion.spacing import EvenSteps, kept
from iddpm.experiment.build import build_denoiser, build_net, build_task
from iddpm.experiment.config import DataConfig, DiffusionConfig, RunConfig
from iddpm.networks.unet import UNetConfig
from iddpm.runtime.precision import Precision
from iddpm.runtime.seeds import Draws, Stream
from iddpm.runtime.world import World
from iddpm.training.clock import PhaseClock
from iddpm.training.meter import Meter
from iddpm.training.settings import AdamW, TrainConfig
from iddpm.training.state import new_state
from iddpm.training.step import train_step

__all__ = ["Ours"]

CPU = torch.device("cpu")


class Ours:
    """The 32x32 net, 64 channels wide, ready to train and to sample."""

    def __init__(self, *, batch_size: int, timesteps: int, channels_last: str, precision: Precision):
        self.config = RunConfig(
            recipe="benchmark",
            data=DataConfig(source="none", size=32),
            diffusion=DiffusionConfig(schedule=Cosine(timesteps=timesteps)),
            objective=Hybrid(),
            optimizer=AdamW(),
            net=UNetConfig(channels=64, multipliers=(1, 2, 2, 2), blocks=3, attention_at=(16, 8), heads=4),
            train=TrainConfig(
                steps=1000, batch_size=batch_size, grad_clip=1.0, precision=precision, channels_last=channels_last
            ),
        )
        self.net: nn.Module = build_net(self.config, CPU)
        task = build_task(self.config, self.net, CPU)
        self.state = new_state(task, self.config.optimizer, self.config.train)
        self.meter = Meter(task.timesteps)
        images = torch.randint(0, 256, (batch_size, 3, 32, 32), dtype=torch.uint8)
        order = torch.arange(batch_size)
        self.batch = Batch(images, None, order, order)

    def train(self) -> None:
        """One training step: draws, loss, backward, clipping, AdamW, EMA, the meter."""
        world = World(rank=0, size=1, device=CPU)
        self.meter.add(train_step(self.state, self.batch, self.config.train, world, PhaseClock()))

    def sampling(self, steps: int):
        """An iterator over ancestral sampling: each `next` is one step."""
        denoiser = build_denoiser(self.config, self.net, self.config.train.precision, CPU)
        denoiser = denoiser.respace(kept(EvenSteps(steps), denoiser.schedule.timesteps))
        shape, index = self.batch.images.shape[1:], self.batch.index
        start = Draws(0, 0, index).normal(Stream.SAMPLE_START, *shape)
        return Ancestral()(
            denoiser, start, Cond(), lambda step: Draws(0, step, index).normal(Stream.SAMPLE_NOISE, *shape)
        )

"""From a config to the things it describes: network, denoiser, task."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from iddpm.data.codec import PixelCodec
from iddpm.data.loader import Batch
from iddpm.diffusion.denoiser import NetDenoiser
from iddpm.diffusion.objective import Objective, Terms
from iddpm.diffusion.schedule import noise_schedule
from iddpm.diffusion.timesteps import TimestepSampler
from iddpm.experiment.conditioning import conditioning, null_label
from iddpm.experiment.config import DataConfig, RunConfig
from iddpm.networks.unet import UNet
from iddpm.runtime.precision import Precision, autocast
from iddpm.runtime.seeds import Draws, Stream, derived_seed

__all__ = ["DiffusionTask", "InPrecision", "build_denoiser", "build_net", "build_task", "net_inputs"]


def build_net(config: RunConfig, device: torch.device) -> UNet:
    """The network with its initial weights, a function of the seed; on the meta device without any."""
    learned = config.diffusion.variance == "learned_range"
    # Drawn on the CPU whatever the device, so that a seed means the same weights everywhere.
    cradle = device if device.type == "meta" else torch.device("cpu")
    with torch.random.fork_rng(devices=[]), cradle:
        torch.manual_seed(derived_seed(config.train.seed, Stream.INIT))
        net = UNet(
            config.net,
            size=config.data.size,
            in_channels=config.data.channels,
            out_channels=config.data.channels * (2 if learned else 1),
            num_classes=config.data.classes,
            null_label=config.diffusion.label_drop > 0,
            low_res_channels=config.data.channels if config.data.low_res else 0,
        )
    net = net.to(device)
    choice = config.train.channels_last
    if choice == "yes" or (choice == "auto" and device.type in ("cpu", "cuda")):
        net.use_memory_format(torch.channels_last)
    net.use_activation_checkpointing(config.train.activation_checkpointing)
    return net


def net_inputs(config: RunConfig, batch: int, device: torch.device) -> dict[str, Tensor]:
    """Inputs of the right shapes for the network of a config, by argument name; for counting and warming up."""
    side, channels, small = config.data.size, config.data.channels, config.data.low_res
    inputs = {
        "x": torch.zeros(batch, channels, side, side, device=device),
        "time": torch.zeros(batch, device=device),
    }
    if config.data.classes:
        inputs["label"] = torch.zeros(batch, dtype=torch.int64, device=device)
    if small:
        inputs["low_res"] = torch.zeros(batch, channels, small, small, device=device)
    return inputs


@dataclass(frozen=True)
class InPrecision:
    """A network whose forward pass runs in a precision; its inputs and what is made of its output stay float32."""

    net: Callable[..., Tensor]
    precision: Precision
    device: torch.device

    def __call__(self, *inputs: Any, **named: Any) -> Tensor:
        """The network's output, in the precision's type."""
        with autocast(self.precision, self.device):
            return self.net(*inputs, **named)


def build_denoiser(
    config: RunConfig, net: Callable[..., Tensor], precision: Precision, device: torch.device
) -> NetDenoiser:
    """The network as a denoiser on the full chain of the config."""
    return NetDenoiser(
        net=InPrecision(net, precision, device),
        schedule=noise_schedule(config.diffusion.schedule, config.diffusion.time_scale),
        target=config.diffusion.target,
        variance=config.diffusion.variance,
    )


@dataclass
class DiffusionTask:
    """An objective as the trainer's task: draws t and noise, hides labels, weighs by importance."""

    module: nn.Module
    denoiser: NetDenoiser
    objective: Objective
    sampler: TimestepSampler
    data: DataConfig
    label_drop: float

    @property
    def timesteps(self) -> int:
        """Length of the chain."""
        return self.denoiser.schedule.timesteps

    def __call__(self, batch: Batch, draws: Draws) -> Terms:
        """The loss of each example, with its importance weight."""
        x0 = PixelCodec().encode(batch.images)
        t, weight = self.sampler.draw(draws.uniform(Stream.TIMESTEP))
        noise = draws.normal(Stream.NOISE, *x0.shape[1:])
        cond = conditioning(self.data, batch, x0)
        cond = replace(cond, label=self._with_hidden(cond.label, draws))
        terms = self.objective(self.denoiser, x0, t, noise, cond)
        return replace(terms, t=t, weight=weight.to(terms.loss.dtype))

    def _with_hidden(self, labels: Int[Tensor, "b"] | None, draws: Draws) -> Int[Tensor, "b"] | None:
        if labels is None or self.label_drop == 0:
            return labels
        hidden = draws.uniform(Stream.LABEL_DROP) < self.label_drop
        return torch.where(hidden, null_label(self.data), labels)

    def after_step(self, terms: Sequence[Terms]) -> None:
        """Tell the timestep sampler the losses of the whole step, in the order of the examples."""
        t = torch.cat([micro.t for micro in terms if micro.t is not None])
        losses = torch.cat([micro.loss.detach() for micro in terms])
        self.sampler.update(t, losses)

    def state_dict(self) -> dict[str, Tensor]:
        """The timestep sampler's history."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Put back what `state_dict` gave."""
        self.sampler.load_state_dict(state)


def build_task(
    config: RunConfig, net: nn.Module, device: torch.device, forward: Callable[..., Tensor] | None = None
) -> DiffusionTask:
    """The task that trains a network as the config says, `forward` being how it is called if not directly."""
    denoiser = build_denoiser(config, forward or net, config.train.precision, device)
    return DiffusionTask(
        module=net,
        denoiser=denoiser,
        objective=config.objective,
        sampler=config.timestep_sampling.build(denoiser.schedule.timesteps, device),
        data=config.data,
        label_drop=config.diffusion.label_drop,
    )

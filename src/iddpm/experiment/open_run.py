"""A run directory as a denoiser that is ready to be asked: settings come from it, never from flags."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from iddpm.artifacts.run_dir import RunDir, open_run_dir
from iddpm.diffusion.denoiser import NetDenoiser
from iddpm.experiment.build import build_denoiser, build_net
from iddpm.experiment.config import RunConfig
from iddpm.experiment.identity import config_from_json
from iddpm.experiment.weights import find_weights
from iddpm.networks.unet import UNet
from iddpm.runtime.errors import RunError
from iddpm.runtime.precision import Arithmetic, Precision, resolve_precision
from iddpm.runtime.telling import SILENT, Listener

__all__ = ["OpenRun", "load_weights", "open_run"]


@dataclass(frozen=True, kw_only=True)
class OpenRun:
    """A trained network at a checkpoint. `weights` is "ema-RATE", "power-WIDTH" or "model" (the raw ones)."""

    run: RunDir
    config: RunConfig
    denoiser: NetDenoiser
    step: int
    weights: str
    device: torch.device
    precision: Arithmetic

    @property
    def stamp(self) -> str:
        """What a result's key says of the weights and the arithmetic it was made with (float32 goes without saying)."""
        arithmetic = "" if self.precision == "float32" else f"-{self.precision}"
        return f"step{self.step}-{self.weights.replace('-', '', 1)}{arithmetic}"

    @property
    def settings(self) -> str:
        """The settings that decide what the samples mean, for people."""
        schedule, diffusion = self.config.diffusion.schedule, self.config.diffusion
        kind = type(schedule).__name__.lower()
        return f"{kind} schedule, T={schedule.timesteps}, {diffusion.variance} variance, {self.weights} weights of step {self.step}"


def open_run(
    path: Path,
    *,
    device: torch.device,
    weights: str = "ema",
    step: int | None = None,
    precision: Precision | None = None,
    listener: Listener = SILENT,
) -> OpenRun:
    """Open a run for sampling and evaluation.

    Args:
        path: The run directory.
        device: Where to compute.
        weights: "ema" (the run's first rate), "ema-RATE", "power-WIDTH" (any width, where the run keeps some) or "model".
        step: The checkpoint's step; None: the newest that is whole.
        precision: None: as the config says, on this device ("auto" is resolved here).
        listener: Told when a damaged checkpoint or snapshot was passed over, and how well a width was made.

    Raises:
        RunError: The path holds no run, or no whole checkpoint, or no such weights.
    """
    run = open_run_dir(path)
    config = config_from_json(run.config)
    checkpoint, complaints = run.checkpoint_at(step)
    for complaint in complaints:
        listener.say(f"warning: {complaint}; using the checkpoint of step {checkpoint.step}")
    group, tensors = find_weights(run, config, checkpoint, weights, listener)
    net = build_net(config, device)
    load_weights(net, tensors, f"{checkpoint.path}/{group}")
    resolved = resolve_precision(precision or config.train.precision, device)
    denoiser = build_denoiser(config, net.eval().requires_grad_(False), resolved, device)
    return OpenRun(
        run=run,
        config=config,
        denoiser=denoiser,
        step=checkpoint.step,
        weights=group,
        device=device,
        precision=resolved,
    )


def load_weights(net: UNet, tensors: dict[str, Tensor], name: str) -> None:
    """Load weights strictly; half-precision files become float32.

    Raises:
        RunError: A name is missing or unknown, or a shape differs; the message names the first.
    """
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise RunError(
            f"{name} does not fit the network of config.json: {reason}", "restore the file that belongs to it"
        ) from error

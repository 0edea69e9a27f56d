"""The averaged weights of a run that trains, as something to sample from and to measure. Training does not notice."""

from collections.abc import Callable

import torch

from iddpm.artifacts.run_dir import RunDir
from iddpm.experiment.build import build_denoiser, build_net
from iddpm.experiment.config import RunConfig
from iddpm.experiment.open_run import OpenRun
from iddpm.networks.unet import UNet
from iddpm.runtime.precision import Precision, resolve_precision
from iddpm.training.ema import ema_name
from iddpm.training.state import TrainState, whole_tensors

__all__ = ["averaged_run"]


def averaged_run(
    config: RunConfig, run: RunDir, device: torch.device, precision: Precision
) -> Callable[[TrainState], OpenRun]:
    """Opens the state of a run with a copy of its first average, in a network of its own.

    The network is built when it is first wanted and kept: what was opened before then holds the newer weights too.
    """
    weights, resolved = ema_name(config.train.ema[0]), resolve_precision(precision, device)
    net: UNet | None = None

    def opened(state: TrainState) -> OpenRun:
        nonlocal net
        net = net or build_net(config, device).eval().requires_grad_(False)
        net.load_state_dict(whole_tensors(state, (weights,), (weights,))[weights])
        return OpenRun(
            run=run,
            config=config,
            denoiser=build_denoiser(config, net, resolved, device),
            step=state.step,
            weights=weights,
            device=device,
            precision=resolved,
        )

    return opened

"""Previews while training: a grid of samples from a copy of the averaged weights. Training does not notice."""

import time
from dataclasses import replace
from typing import Any

import torch

from iddpm.artifacts.run_dir import RunDir
from iddpm.commands.averaged import averaged_run
from iddpm.commands.draw import SampleRequest, draw_samples, save_samples
from iddpm.diffusion.samplers import Ddim
from iddpm.diffusion.spacing import EvenSteps
from iddpm.experiment.config import RunConfig
from iddpm.training.hooks import Hook
from iddpm.training.state import TrainState

__all__ = ["preview_hook"]

_NUM, _STEPS = 20, 25


def preview_hook(config: RunConfig, run: RunDir, device: torch.device) -> Hook:
    """A hook that draws a preview every `config.train.preview_every` steps, the same noise each time."""
    every = config.train.preview_every
    assert every is not None, "previews are asked for"
    opened = averaged_run(config, run, device, config.train.precision)

    def preview(state: TrainState) -> dict[str, Any] | None:
        if state.step % every:
            return None
        began = time.perf_counter()
        averaged = opened(state)
        steps = EvenSteps(min(_STEPS, averaged.denoiser.schedule.timesteps))
        samples = draw_samples(averaged, SampleRequest(num=_NUM, steps=steps, sampler=Ddim()))
        folder = run.samples(f"preview-{state.step:09d}")
        save_samples(folder, replace(samples, facts={**samples.facts, "kind": "preview"}))
        return {
            "event": "preview",
            "step": state.step,
            "path": str(folder.relative_to(run.path)),
            "seconds": round(time.perf_counter() - began, 3),
        }

    return preview

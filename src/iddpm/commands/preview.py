"""Previews while training: a grid of samples from a copy of the averaged weights. Training does not notice."""

import time
from dataclasses import replace
from typing import Any

from iddpm.artifacts.run_dir import RunDir
from iddpm.commands.averaged import averaged_run
from iddpm.commands.draw import SampleRequest, draw_samples, save_samples
from iddpm.diffusion.samplers import Ddim
from iddpm.diffusion.spacing import EvenSteps
from iddpm.experiment.config import RunConfig
from iddpm.runtime.sharing import together
from iddpm.runtime.world import World
from iddpm.sampling.generate import default_batch_size
from iddpm.training.hooks import Hook
from iddpm.training.state import TrainState

__all__ = ["preview_hook"]

_NUM, _STEPS = 20, 25


def preview_hook(config: RunConfig, run: RunDir, world: World) -> Hook:
    """A hook that draws a preview every `config.train.preview_every` steps, the same noise each time.

    All processes draw; the first writes.
    """
    every = config.train.preview_every
    assert every is not None, "previews are asked for"
    opened = averaged_run(config, run, world.device, config.train.precision)
    batch_size = min(default_batch_size(world.device, config.data.size), -(-_NUM // world.size))

    def preview(state: TrainState) -> dict[str, Any] | None:
        if state.step % every:
            return None
        began = time.perf_counter()
        with world.patient("preview"):
            averaged = together(world, lambda: opened(state))
        steps = EvenSteps(min(_STEPS, averaged.denoiser.schedule.timesteps))
        request = SampleRequest(num=_NUM, steps=steps, sampler=Ddim(), batch_size=batch_size)
        samples = draw_samples(averaged, request, world)
        folder = run.samples(f"preview-{state.step:09d}")

        def write() -> dict[str, Any]:
            save_samples(folder, replace(samples, facts={**samples.facts, "kind": "preview"}))
            return {
                "event": "preview",
                "step": state.step,
                "path": str(folder.relative_to(run.path)),
                "seconds": round(time.perf_counter() - began, 3),
            }

        with world.patient("preview"):
            return world.channel.first(write)

    return preview

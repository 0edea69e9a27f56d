"""Bits per dim of held-out pictures while training: what `iddpm likelihood` says of the checkpoint of the same step."""

import math
import time
from functools import partial
from typing import Any

from iddpm.artifacts.run_dir import RunDir
from iddpm.commands.averaged import averaged_run
from iddpm.commands.likelihood import LikelihoodRequest
from iddpm.data.store import Store
from iddpm.diffusion.spacing import EvenSteps, kept
from iddpm.evaluation.likelihood import Likelihood, likelihood
from iddpm.evaluation.pictures import InOrder
from iddpm.experiment.conditioning import conditioning
from iddpm.experiment.config import RunConfig
from iddpm.experiment.open_run import OpenRun
from iddpm.runtime.errors import ConfigError
from iddpm.runtime.sharing import together
from iddpm.runtime.telling import SILENT, Listener
from iddpm.runtime.world import World
from iddpm.training.hooks import Hook
from iddpm.training.state import TrainState

__all__ = ["check_held_out", "held_out_hook"]


def check_held_out(config: RunConfig, store: Store) -> None:
    """Refuse to measure where there is nothing to measure on.

    Raises:
        ConfigError: Measurements are asked for, and the store holds out no pictures.
    """
    if config.train.evaluate_every is not None and not len(store.held_out):
        raise ConfigError(
            f"train.evaluate_every is {config.train.evaluate_every}, but {store.path} holds out none of its "
            f"{len(store)} pictures",
            "leave --train.evaluate-every out, or prepare data of which some are held out",
        )


def held_out_hook(config: RunConfig, run: RunDir, store: Store, world: World, listener: Listener = SILENT) -> Hook:
    """A hook that measures the averaged weights every `config.train.evaluate_every` steps, pictures and noise the same.

    All processes measure. A bound that is not finite is journalled as None.

    Raises:
        ConfigError: The store holds out no pictures.
    """
    every, num, steps = config.train.evaluate_every, config.train.evaluate_num, config.train.evaluate_steps
    assert every is not None, "measurements are asked for"
    check_held_out(config, store)
    chain = EvenSteps(min(steps, config.diffusion.schedule.timesteps))
    # The command's own defaults, so that both measure the same.
    request = LikelihoodRequest(num=min(num, len(store.held_out)), steps=chain)
    opened = averaged_run(config, run, world.device, request.precision)

    def held_out(state: TrainState) -> dict[str, Any] | None:
        if state.step % every:
            return None
        began = time.perf_counter()
        with world.patient("evaluation"):
            averaged = together(world, lambda: opened(state))
        result = _measure(averaged, store, request, chain, world)
        # The clock of the first process is that of all.
        seconds = world.channel.first(lambda: round(time.perf_counter() - began, 3))
        listener.say(f"step {state.step}: {_in_words(result)}")
        return {
            "event": "evaluation",
            "step": state.step,
            "bits_per_dim": _finite(result.bits_per_dim),
            "standard_error_bits_per_dim": _finite(result.standard_error_bits_per_dim),
            "num_images": len(result.total_bits_per_dim),
            "num_steps": len(result.terms_bits_per_dim),
            "weights": averaged.weights,
            "seconds": seconds,
        }

    return held_out


def _measure(averaged: OpenRun, store: Store, request: LikelihoodRequest, chain: EvenSteps, world: World) -> Likelihood:
    data, denoiser = averaged.config.data, averaged.denoiser
    assert request.num is not None, "the number of pictures is known"
    # Silent: one bar at a time, and training's own is on the screen.
    return likelihood(
        denoiser.respace(kept(chain, denoiser.schedule.timesteps)),
        InOrder(store, request.split, request.batch_size, request.num, data.size),
        request.num,
        partial(conditioning, data),
        request.seed,
        world,
    )


def _in_words(result: Likelihood) -> str:
    error = result.standard_error_bits_per_dim
    spread = "" if error is None else f" +/- {error:.4f}"
    return f"{result.bits_per_dim:.4f}{spread} bits/dim on {len(result.total_bits_per_dim)} held-out pictures"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None

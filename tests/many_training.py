"""Run by the processes of a job: trains one run after another, and leaves what each process saw. See test_many_training."""

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import iddpm.training.session
from iddpm.commands.train import train
from iddpm.diffusion.timesteps import SecondMoment, UniformSampler
from iddpm.experiment.build import DiffusionTask
from iddpm.experiment.config import RunConfig
from iddpm.runtime.errors import IddpmError
from iddpm.runtime.world import close_world
from many import rank, write_result
from tiny import Lines, tiny_config

__all__ = ["config_of", "spoilt"]

_SETTINGS: dict[str, Any] = {"timesteps": 200, "lr": 1e-4, "checkpoint_every": 5, "train_steps": 20}


def config_of(store: Path | str, settings: dict[str, Any]) -> RunConfig:
    """A small run; "importance" switches to t by importance, "hang_seconds" and "patience" set what is done about faults."""
    settings = _SETTINGS | settings
    importance, faults = settings.pop("importance", False), {}
    for name in ("hang_seconds", "patience"):
        if name in settings:
            faults[name] = settings.pop(name)
    config = tiny_config(store, **settings)
    config = replace(config, train=replace(config.train, faults=replace(config.train.faults, **faults)))
    return replace(config, timestep_sampling=SecondMoment(history=1)) if importance else config


def spoilt(steps: tuple[int, ...]) -> Callable[..., Any]:
    """The task's call, whose loss for the second half of a batch of 8 is NaN at these steps, until draws are others."""
    real = DiffusionTask.__call__

    def call(self: Any, batch: Any, draws: Any) -> Any:
        terms = real(self, batch, draws)
        bad = (batch.place >= 4) & (draws.step in steps) & (draws.seed == 0)
        return replace(terms, loss=torch.where(bad, math.nan, 1.0) * terms.loss)

    return call


class _Listener(Lines):
    """Sends this process a signal once training has come to a step."""

    def __init__(self, step: int | None):
        super().__init__()
        self._step = step

    def progress(self, task: str, done: int, total: int, detail: str = "") -> None:
        if task == "training" and done == self._step:
            signal.raise_signal(signal.SIGTERM)


def _fault(how: str, at: int) -> None:
    """In the second process, at a step of the first attempt: what clusters do to processes."""
    real = iddpm.training.session.train_step

    def step(state: Any, *rest: Any) -> Any:
        if state.step == at and rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # torchrun waits half a minute for one that does not end
            time.sleep(600)
        return real(state, *rest)

    iddpm.training.session.train_step = step


def _counted(config: RunConfig, out: Path) -> int:
    """Exchanges of a run, its start and end included."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        train(config, out, device="cpu")
    return sum(event.count for event in profile.key_averages() if event.key == "gloo:all_reduce")


def _run(plan: dict[str, Any], store: str, folder: Path) -> Any:
    drawn: list[list[int]] = []
    real_draw, real_call = UniformSampler.draw, DiffusionTask.__call__
    UniformSampler.draw = lambda self, u: (lambda found: (drawn.append(found[0].tolist()), found)[1])(
        real_draw(self, u)
    )
    DiffusionTask.__call__ = spoilt(tuple(plan.get("spoilt", ())))
    config, out = config_of(store, plan.get("settings", {})), folder / plan["out"]
    try:
        if plan.get("counted"):
            return {"exchanges": _counted(config, out)}
        listener = _Listener(plan.get("signalled") if rank() == 1 else None)
        result = train(config, out, device="cpu", listener=listener)
        return {**asdict(result), "drawn": drawn, "text": listener.text}
    except IddpmError as error:
        return {"error": error.what, "is_told_elsewhere": error.is_told_elsewhere}
    finally:
        UniformSampler.draw, DiffusionTask.__call__ = real_draw, real_call


def main() -> None:
    """Arguments: the store, a folder, and what to do, as JSON: a list of plans."""
    store, folder, plans = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    torch.set_num_threads(1)
    found = []
    for plan in plans:
        if "fault" in plan:
            _fault(plan["fault"], plan["at"])
        found.append(_run(plan, store, folder))
    write_result(folder, {"runs": found, "mpi": "mpi4py" in sys.modules})
    close_world()


if __name__ == "__main__":
    main()

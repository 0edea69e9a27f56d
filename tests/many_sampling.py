"""Run by the processes of a job: samples and measures in several ways, and leaves what each did. See test_many_sampling."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from iddpm.artifacts.run_dir import RunDir, open_run_dir
from iddpm.cli.main import main as iddpm
from iddpm.commands.draw import SampleRequest
from iddpm.commands.held_out import held_out_hook
from iddpm.commands.likelihood import LikelihoodRequest, likelihood
from iddpm.commands.preview import preview_hook
from iddpm.commands.sample import sample
from iddpm.data.store import open_store
from iddpm.diffusion.samplers import Ancestral
from iddpm.diffusion.spacing import EvenSteps
from iddpm.experiment.build import build_net, build_task
from iddpm.experiment.identity import config_from_json
from iddpm.runtime.errors import OutputError
from iddpm.runtime.sharing import Tally
from iddpm.runtime.world import World, close_world, open_world
from iddpm.sampling.parts import Parts
from iddpm.training.hooks import call
from iddpm.training.state import new_state
from many import rank, write_result
from tiny import Lines

__all__ = ["COUNTS", "asked", "hooked", "measured"]

COUNTS = (10, 1, 8, 9)
"""Pictures, in batches of 4."""
_PATIENCE_SECONDS, _SLOW_STEP_SECONDS = 10.0, 3.5


def asked(num: int, **settings: Any) -> SampleRequest:
    """Four steps, in batches of 4."""
    usual = {"steps": EvenSteps(4), "sampler": Ancestral(), "batch_size": 4, "device": "cpu"}
    return SampleRequest(num=num, **(usual | settings))


def measured(run: Path) -> list[dict[str, Any]]:
    """More batches than processes, fewer, and other weights."""
    request = LikelihoodRequest(steps=EvenSteps(5), batch_size=3, num=11, split="train", device="cpu")
    return [likelihood(run, one) for one in (request, replace(request, num=1), replace(request, weights="model"))]


def hooked(world: World, run: Path, out: Path) -> list[dict[str, Any] | None]:
    """What the hooks of a training say, at a step where they are due, and at one where they are not."""
    opened = open_run_dir(run)
    config = config_from_json(opened.config)
    due = {"preview_every": 2, "evaluate_every": 2, "evaluate_num": 70, "evaluate_steps": 5}
    config = replace(config, train=replace(config.train, **due))
    state = new_state(build_task(config, build_net(config, world.device), world.device), config.optimizer, config.train)
    hooks = [
        preview_hook(config, RunDir(out), world),
        held_out_hook(config, RunDir(out), open_store(Path(opened.store)), world),
    ]
    found = []
    for state.step in (3, 4):
        found += [call(hook, state) for hook in hooks]
    return found


def _failing(world: World, run: Path, out: Path) -> list[Any]:
    """The hooks, where one process alone has no room."""
    wrong = MemoryError("no room") if rank() else None
    full = OutputError("the disk is full") if not rank() else None
    with patch("iddpm.sampling.generate._walk", **_raising("iddpm.sampling.generate._walk", wrong)):
        memory = hooked(world, run, out)
    with patch("iddpm.commands.preview.save_samples", **_raising("iddpm.commands.preview.save_samples", full)):
        disk = hooked(world, run, out)
    with patch("iddpm.evaluation.likelihood._measure", **_raising("iddpm.evaluation.likelihood._measure", wrong)):
        bound = hooked(world, run, out)
    return [memory, disk, bound]


def _raising(name: str, error: Exception | None) -> dict[str, Any]:
    module, _, function = name.rpartition(".")
    return {"side_effect": error} if error else {"new": getattr(sys.modules[module], function)}


def _slowly(world: World, run: Path) -> Any:
    """The second process takes longer for a batch than the watch lets anybody stand still."""
    real = Tally.add

    def add(self: Tally, amount: int) -> None:
        real(self, amount)
        time.sleep(_SLOW_STEP_SECONDS if rank() else 0.0)

    assert world.watch is not None
    # Only here: on a busy machine others may stand still as long, and be taken for hanging.
    with patch.object(Tally, "add", add), patch.object(world.watch, "patience_seconds", _PATIENCE_SECONDS):
        return sample(run, asked(26, seed=5))


def main() -> None:
    """Arguments: a folder for results, a run, an upsampler, and a run whose sampling was stopped on the way."""
    folder, run, up, stopped = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    world = open_world("cpu")
    written: list[int] = []
    real = Parts.write

    def write(self: Parts, stage: int, number: int, images: Any) -> None:
        written.append(number)
        real(self, stage, number, images)

    def one(work: Any) -> dict[str, Any]:
        written.clear()
        facts = work()
        return {"facts": facts, "written": list(written), "ended": time.time()}

    found: dict[str, Any] = {}
    told = Lines()
    with patch.object(Parts, "write", write):
        found["counts"] = [one(lambda num=num: sample(run, asked(num))) for num in COUNTS]
        found["again"] = one(lambda: sample(run, asked(COUNTS[0])))
        found["cascade"] = one(lambda: sample(run, asked(7, batch_size=3), up))
        found["stopped"] = one(lambda: sample(stopped, asked(10), listener=told))
        found["slow"] = one(lambda: _slowly(world, run))
    found["progress"] = told.progressed
    found["measured"] = measured(run)
    found["failed"] = _failing(world, run, folder / "failed")
    found["hooked"] = hooked(world, run, folder / "hooked")
    label = ["sample", str(run), "--num", "3", "--label", "nine", "--device", "cpu"]
    found["refused"] = [iddpm(label), iddpm(["likelihood", str(folder), "--device", "cpu"])]
    write_result(folder, found)
    close_world()


if __name__ == "__main__":
    main()

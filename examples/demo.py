"""The whole of iddpm on a small scale: prepare, train, sample, measure, report. `make demo` runs it.

It measures this machine first and trains for as many steps as fit into the time, so that it takes about as long anywhere;
a faster machine gives better pictures. Run again, it goes on where it stopped, and does nothing twice.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch

from iddpm.artifacts.run_dir import open_run_dir
from iddpm.cli.console import telling
from iddpm.commands.draw import SampleRequest
from iddpm.commands.entering import config_for_store
from iddpm.commands.likelihood import LikelihoodRequest, likelihood
from iddpm.commands.report import report
from iddpm.commands.sample import sample
from iddpm.commands.store import store_for
from iddpm.commands.train import train
from iddpm.cost.probe import seconds_per_call
from iddpm.data.loader import Batches
from iddpm.diffusion.denoiser import Cond
from iddpm.diffusion.samplers import Ancestral, Ddim
from iddpm.diffusion.spacing import EvenSteps
from iddpm.experiment.build import build_denoiser, build_net, build_task
from iddpm.experiment.config import RunConfig
from iddpm.experiment.identity import config_from_json
from iddpm.experiment.recipes import recipe
from iddpm.runtime.errors import IddpmError
from iddpm.runtime.files import write_json
from iddpm.runtime.machine import describe_device
from iddpm.runtime.telling import Listener
from iddpm.runtime.world import open_world
from iddpm.training.clock import PhaseClock
from iddpm.training.pace import duration
from iddpm.training.state import new_state
from iddpm.training.step import train_step

BUDGETS = (10, 25, 50, 100)
SAMPLERS = (Ancestral(), Ddim())
PICTURES = 20
BOUND_PICTURES, BOUND_STEPS = 60, 50
FEWEST, MOST = 200, 12_000
FIXED_SECONDS = 12.0
"""Checkpoints, grids, the page, and what else does not depend on the number of steps."""


def main() -> None:
    """Parse the flags and run; a mistake gives a line or two."""
    flags = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    flags.add_argument("--out", type=Path, default=Path("runs/demo"), help="run directory (default: %(default)s)")
    flags.add_argument(
        "--minutes", type=float, default=7.0, help="time for everything, in minutes (default: %(default)s)"
    )
    arguments = flags.parse_args()
    try:
        with telling() as listener:
            run(arguments.out, arguments.minutes * 60, listener)
    except IddpmError as error:
        raise SystemExit(f"demo: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit("demo: interrupted; `make demo` goes on from what is there") from None


def run(out: Path, seconds: float, listener: Listener) -> None:
    """Everything, in about `seconds`."""
    began = time.perf_counter()
    config = recipe("demo").config()
    listener.say(
        f"iddpm demo on {describe_device(open_world().device)}: it has {duration(seconds)}, and says what it does with them"
    )
    store, prepare_seconds = store_for(config.data, listener)
    if (out / "config.json").is_file():
        config = replace(config, train=config_from_json(open_run_dir(out).config).train)
        foretold = None
    else:
        config, foretold = _planned(config, config_for_store(config, store), store, seconds, began, listener)
    trained = train(config, out, prepare_seconds=prepare_seconds, listener=listener)
    if foretold is not None:
        write_json(out / "forecast.json", {name: foretold[name] for name in ("training_seconds", "seconds_per_step")})
    if trained.stopped_by is not None:
        raise KeyboardInterrupt
    for sampler in SAMPLERS:
        for steps in BUDGETS:
            sample(
                out,
                SampleRequest(num=PICTURES, steps=EvenSteps(steps), sampler=sampler, batch_size=PICTURES),
                listener=listener,
            )
    bound = likelihood(out, LikelihoodRequest(num=BOUND_PICTURES, steps=EvenSteps(BOUND_STEPS)), listener)
    listener.say(
        f"{bound['bits_per_dim']:.2f} +- {bound['standard_error_bits_per_dim']:.2f} bits/dim on {bound['num_images']} held-out "
        f"pictures, {bound['num_steps']} steps of {bound['chain_steps']}"
    )
    page = report([out], listener=listener)
    took = time.perf_counter() - began
    promised = f" (foretold: {duration(foretold['total_seconds'])})" if foretold else ""
    listener.say(f"done in {duration(took)}{promised}. Open {page['path']}")


def _planned(config: RunConfig, known: RunConfig, store, seconds: float, began: float, listener: Listener):
    """The config with as many steps as fit, and what is foretold."""
    step_seconds, image_seconds = _measure(known, store)
    evaluations = PICTURES * len(SAMPLERS) * sum(BUDGETS) + BOUND_PICTURES * BOUND_STEPS
    after = evaluations * image_seconds + FIXED_SECONDS
    so_far = time.perf_counter() - began
    steps = round((seconds - so_far - after) / step_seconds)
    steps = min(max(steps, FEWEST), MOST)
    training = steps * step_seconds
    total = so_far + training + after
    listener.say(
        f"this will take about {duration(total)}: {duration(so_far)} so far, training {duration(training)} ({steps} steps of "
        f"{config.train.batch_size} images, {duration(step_seconds)} each), sampling and bits per dim {duration(after)} "
        f"({evaluations} network evaluations of a picture, {image_seconds * 1000:.1f} ms each)"
    )
    foretold = {"training_seconds": training, "total_seconds": total, "seconds_per_step": step_seconds}
    return replace(config, train=replace(config.train, steps=steps)), foretold


def _measure(config: RunConfig, store) -> tuple[float, float]:
    """Seconds of a training step, and of one network evaluation of one picture, on throw-away weights."""
    world = open_world()
    net = build_net(config, world.device)
    state = new_state(build_task(config, net, world.device), config.optimizer, config.train)
    batch = Batches(store, "train", config.train.batch_size, config.train.seed).at(0).to(world.device)
    step_seconds = seconds_per_call(
        lambda: _finished(train_step(state, batch, config.train, world, PhaseClock()), world.device)
    )
    denoiser = build_denoiser(config, net.eval(), config.train.precision, world.device)
    rows = PICTURES
    x = torch.randn(rows, config.data.channels, config.data.size, config.data.size, device=world.device)
    t = torch.full((rows,), 500, device=world.device)
    cond = Cond(label=torch.arange(rows, device=world.device) % (config.data.classes or 1))
    with torch.inference_mode():
        batch_seconds = seconds_per_call(lambda: _finished(denoiser(x, t, cond), world.device), seconds=2.0)
    return step_seconds, batch_seconds / rows


def _finished(result: object, device: torch.device) -> object:
    """Wait for the device; a GPU only queues what it is told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return result


if __name__ == "__main__":
    main()

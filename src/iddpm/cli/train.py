"""`iddpm train`: the recipe first, then any of its settings."""

import argparse
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from iddpm.cli.console import parse, print_json, telling
from iddpm.data.crop import CentreCrop, RandomCrop, WholePicture
from iddpm.diffusion.objective import Hybrid, Simple, Vlb
from iddpm.diffusion.schedule import Cosine, Linear
from iddpm.diffusion.timesteps import SecondMoment, Uniform
from iddpm.experiment.config import RunConfig
from iddpm.experiment.recipes import recipe
from iddpm.runtime.errors import ConfigError
from iddpm.training.settings import Adam, AdamW, ConstantRate, CosineRate, InverseRootRate

__all__ = ["Arguments", "config_of", "run"]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Train a recipe into a run directory. The same command again resumes it where it was stopped (on a CPU in the same
    layout to the very bits).

    A variant is switched whole (--optimizer adamw), then its settings can be given (--optimizer.weight-decay 0.1).
    On resume the number of steps, the micro-batch, the precision, the memory layout, the number of processes and how
    weights lie over them, how often it reports and saves, what it does about faults, and where the same data lies may change; nothing else.

    Over several processes: torchrun --nproc-per-node N -m iddpm train RECIPE --out RUN; the batch is that of all of them.

    Ctrl-C, SIGTERM, --time-limit and a file RUN/stop save and stop with exit status 0; a second Ctrl-C leaves at once.
    """

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    out: Path | None = None
    """Run directory: config, journal, checkpoints; samples and reports come to lie there too. None: runs/RECIPE in the
    current folder."""
    data: str | None = None
    """A store, or whatever `iddpm prepare` takes: a folder or file of pictures, or a set's name; None: the recipe's own.
    Prepared into the cache ($IDDPM_CACHE, else ~/.cache/iddpm) unless it is a store."""
    train_steps: int | None = None
    """Optimizer steps in all; the same as --train.steps."""
    micro_batch: int | Literal["auto"] | None = None
    """Images at a time, or auto: as many as memory holds; the same as --train.micro-batch-size."""
    crop: Literal["centre", "random", "whole"] | None = None
    """What is taken of each picture: its centre square; a random square of it, drawn anew each time (--data.crop.min-scale,
    --data.crop.max-scale); or square pictures whole, leaving others out."""
    schedule: Literal["linear", "cosine"] | None = None
    """Switch the noise schedule, keeping its T."""
    objective: Literal["simple", "hybrid", "vlb"] | None = None
    """Switch the objective; simple takes the fixed large variance with it, since it trains none."""
    timestep_sampling: Literal["uniform", "second-moment"] | None = None
    """Switch how t is drawn."""
    optimizer: Literal["adam", "adamw"] | None = None
    """Switch the optimizer."""
    lr_schedule: Literal["constant", "cosine", "inverse-root"] | None = None
    """Switch the course of the learning rate."""
    time_limit: float | None = None
    """Hours from the start of the command after which training saves and stops."""
    device: str | None = None
    """cpu, cuda, cuda:N or mps; None: a CUDA device where there is one."""
    json: bool = False
    """Print one JSON object at the end: path, step, train_steps, steps_done, seconds, stopped_by, resumed_from,
    skipped_steps, rollbacks, spent (seconds, device_seconds, images, flops), store."""


def run(argv: list[str]) -> None:
    """Parse and run."""
    arguments = _parse(argv)
    out = arguments.out or Path("runs") / arguments.config.recipe
    from iddpm.commands.train import train

    with telling() as listener:
        result = train(
            arguments.config,
            out,
            device=arguments.device,
            time_limit_hours=arguments.time_limit,
            listener=listener,
        )
    if arguments.json:
        print_json(asdict(result))
    else:
        print(result.path)


def _parse(argv: list[str]) -> Arguments:
    helping = any(word in ("-h", "--help") for word in argv)
    if not argv or (argv[0].startswith("-") and not helping):
        raise ConfigError("the recipe comes first: iddpm train RECIPE --out RUN", "`iddpm recipes` lists them")
    name, rest = ("demo", argv) if argv[0].startswith("-") else (argv[0], argv[1:])
    default = Arguments(config=_switched(recipe(name).config(), rest))
    arguments = parse(Arguments, rest, prog=f"train {'RECIPE' if argv[0].startswith('-') else name}", default=default)
    return replace(arguments, config=config_of(arguments))


def config_of(arguments: Arguments) -> RunConfig:
    """The config with the flags that are not its own leaves."""
    config = arguments.config
    if arguments.data is not None:
        config = replace(config, data=replace(config.data, source=arguments.data))
    if arguments.train_steps is not None:
        config = replace(config, train=replace(config.train, steps=arguments.train_steps))
    if arguments.micro_batch is not None:
        config = replace(config, train=replace(config.train, micro_batch_size=arguments.micro_batch))
    return config


def _switched(config: RunConfig, argv: list[str]) -> RunConfig:
    """The recipe with the variants that the flags switch; they are parsed again, and their leaves, by `parse`."""
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in ("crop", "schedule", "objective", "timestep-sampling", "optimizer", "lr-schedule"):
        flags.add_argument(f"--{flag}", f"--{flag.replace('-', '_')}")
    try:
        asked, _ = flags.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise ConfigError(str(error), "`iddpm train RECIPE --help` lists the flags") from None
    length = config.diffusion.schedule.timesteps
    schedule: dict[str | None, Any] = {"linear": Linear(timesteps=length), "cosine": Cosine(timesteps=length)}
    objective: dict[str | None, Any] = {"simple": Simple(), "hybrid": Hybrid(), "vlb": Vlb()}
    sampling: dict[str | None, Any] = {"uniform": Uniform(), "second-moment": SecondMoment()}
    optimizer: dict[str | None, Any] = {"adam": Adam(), "adamw": AdamW()}
    rate: dict[str | None, Any] = {
        "constant": ConstantRate(),
        "cosine": CosineRate(),
        "inverse-root": InverseRootRate(),
    }
    crop: dict[str | None, Any] = {"centre": CentreCrop(), "random": RandomCrop(), "whole": WholePicture()}
    diffusion = replace(config.diffusion, schedule=schedule.get(asked.schedule, config.diffusion.schedule))
    if asked.objective == "simple" and diffusion.variance == "learned_range":
        diffusion = replace(diffusion, variance="fixed_large")
    train = replace(config.train, lr_schedule=rate.get(asked.lr_schedule, config.train.lr_schedule))
    return replace(
        config,
        data=replace(config.data, crop=crop.get(asked.crop, config.data.crop)),
        diffusion=diffusion,
        objective=objective.get(asked.objective, config.objective),
        timestep_sampling=sampling.get(asked.timestep_sampling, config.timestep_sampling),
        optimizer=optimizer.get(asked.optimizer, config.optimizer),
        train=train,
    )

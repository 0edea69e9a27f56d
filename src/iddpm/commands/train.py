"""`iddpm train`: start a run, or resume it by the same command."""

import contextlib
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from iddpm.artifacts.checkpoint import list_checkpoints
from iddpm.artifacts.journal import Journal, Unwritten
from iddpm.artifacts.run_dir import RunDir, locked
from iddpm.commands.announcing import announce, estimate_hook, tell_end
from iddpm.commands.entering import Entered, check_init, check_source, config_for_store, enter, free_place, resume
from iddpm.commands.fitting import fits, micro_batch
from iddpm.commands.held_out import check_held_out, held_out_hook
from iddpm.commands.preview import preview_hook
from iddpm.commands.show import counts_of
from iddpm.commands.store import store_for
from iddpm.data.loader import Batches
from iddpm.data.store import Store
from iddpm.experiment.build import build_net, build_task
from iddpm.experiment.config import RunConfig
from iddpm.experiment.identity import config_to_json
from iddpm.experiment.initial import InitialWeights, describe, load_initial
from iddpm.runtime.errors import ConfigError
from iddpm.runtime.machine import describe_device
from iddpm.runtime.precision import resolve_precision
from iddpm.runtime.telling import SILENT, Listener
from iddpm.runtime.world import World, open_world
from iddpm.training.distribution import distribute
from iddpm.training.hooks import Hook
from iddpm.training.session import Session
from iddpm.training.state import TrainState, new_state
from iddpm.training.trainer import train as run_session

__all__ = ["TrainResult", "train"]


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How training ended.

    Attributes:
        steps_done: Steps of this session, `seconds` likewise.
        stopped_by: A signal's name, "the time limit", the path of RUN/stop, or None.
        skipped_steps: Of the whole run, their loss or gradient not being finite; `rollbacks` likewise.
        spent: Of the whole run: seconds, device_seconds, images and flops.
    """

    path: str
    step: int
    train_steps: int
    steps_done: int
    seconds: float
    stopped_by: str | None
    resumed_from: int | None
    skipped_steps: int
    rollbacks: int
    spent: dict[str, Any]
    store: str


def train(
    config: RunConfig,
    out: Path,
    *,
    device: str | None = None,
    time_limit_hours: float | None = None,
    prepare_seconds: float = 0.0,
    listener: Listener = SILENT,
) -> TrainResult:
    """Train to `config.train.steps` in the run directory `out`, from the beginning or from its newest whole checkpoint.

    Args:
        config: The run.
        out: The run directory; new, empty, or of the same run.
        device: A torch device; None: a CUDA device where there is one.
        time_limit_hours: Training saves and stops at the first step after so long, counted from this call.
        prepare_seconds: What preparing the data took before this call, for the record.
        listener: Told what happens.

    Raises:
        InputError: A setting, the data or the place cannot be used; nothing has been trained then.
        TrainingError: Losses or gradients are not finite any more, or memory has run out.
    """
    deadline = _deadline(time_limit_hours)
    world = open_world(device)
    line = world.channel
    with contextlib.ExitStack() as held:
        with world.patient("prepare"):
            place = line.together(lambda: _checked(config, out, world))
            store, seconds = line.in_turn(lambda: store_for(config.data, listener))
            config = line.together(lambda: _for_store(config, store))
            line.first(lambda: _hold(held, place))
            entered = line.together(lambda: enter(place, config, store, world, prepare_seconds + seconds))
        return _train(entered, store, world, deadline, listener)


def _hold(held: contextlib.ExitStack, place: Path) -> None:
    held.enter_context(locked(place))


def _for_store(config: RunConfig, store: Store) -> RunConfig:
    config = config_for_store(config, store)
    check_held_out(config, store)
    return config


def _checked(config: RunConfig, out: Path, world: World) -> Path:
    """The place of the run, where nothing had to be refused that can be before anything is prepared."""
    train = config.train
    resolve_precision(train.precision, world.device)  # one that the device has not is refused at once
    if train.batch_size < world.size or (train.parallel != "ddp" and train.batch_size % world.size):
        raise ConfigError(
            f"train.batch_size is {train.batch_size}, over {world.size} processes with train.parallel {train.parallel}",
            "allowed: a multiple of the processes"
            if train.parallel != "ddp"
            else "allowed: an image a process, or more",
        )
    if train.parallel != "ddp" and (train.micro_batch_size == "auto" or train.gradient_noise_scale):
        raise ConfigError(
            f"train.parallel {train.parallel} with micro_batch_size auto or gradient_noise_scale: no process has all weights",
            "give --micro-batch as a number, and leave the noise scale out; or take --train.parallel ddp",
        )
    check_source(config)
    check_init(config)
    build_net(config, torch.device("meta"))
    return free_place(out)


def _train(
    entered: Entered,
    store: Store,
    world: World,
    deadline: float | None,
    listener: Listener,
) -> TrainResult:
    run, config = entered.run, entered.config
    data, train = config.data, config.train
    batches = Batches(store, "train", train.batch_size, train.seed, data.flip, data.size, data.crop)
    with world.patient("start"):
        hooks = _hooks(config, run, store, world, listener)
        state, initial, resumed_from = _state(config, run, world, listener)
        micro, found = micro_batch(config, state, batches, world, run, listener)
        world.channel.first(lambda: entered.start(listener))
    announce(run, config, store, state, world, micro, listener)
    with _journal(run, world) as journal:
        _journal_start(journal, entered, store, world, state.step, resumed_from)
        if found:
            journal.write(
                "micro_batch",
                step=state.step,
                micro_batch_size=micro,
                fits=fits(config, world),
                reason="found by a trial",
            )
        if initial is not None:
            journal.write("init", **_told(initial))
        session = Session(
            state=state,
            config=train,
            run=run,
            run_config=config_to_json(config),
            journal=journal,
            world=world,
            listener=listener,
            hooks=hooks,
            data_cure=batches.cure,
            deadline=deadline,
            saved_at=resumed_from,
            save_first=initial is not None,
            micro_batch_size=micro,
            shrinks=train.micro_batch_size == "auto",
            fits=fits(config, world),
        )
        outcome = run_session(session, batches)
    tell_end(run, config, outcome, listener)
    return TrainResult(
        path=str(run.path),
        step=outcome.step,
        train_steps=train.steps,
        steps_done=outcome.steps_done,
        seconds=round(outcome.seconds, 3),
        stopped_by=outcome.stopped_by,
        resumed_from=resumed_from,
        skipped_steps=state.guard.reading().skipped,
        rollbacks=state.rollbacks,
        spent=state.spent.to_json(),
        store=str(store.path),
    )


def _state(
    config: RunConfig, run: RunDir, world: World, listener: Listener
) -> tuple[TrainState, InitialWeights | None, int | None]:
    """The state to go on from: a checkpoint's, another run's weights (and what came of them), or a new one."""
    net = build_net(config, world.device)
    initial = None
    if config.init is not None and not list_checkpoints(run.checkpoints):
        source = config.init
        initial = world.channel.together(lambda: load_initial(net, config, source))
        for line in describe(initial):
            listener.say(line)
    precision = resolve_precision(config.train.precision, world.device)
    spread = distribute(net, config.train.parallel, world, precision)
    state = new_state(build_task(config, net, world.device, spread), config.optimizer, config.train, spread)
    state.spent.flops_per_image = counts_of(config).training_flops_per_image
    return state, initial, resume(run, state, world, listener)


def _journal(run: RunDir, world: World) -> Journal:
    return world.channel.together(run.open_journal if world.is_first else Unwritten)


def _told(initial: InitialWeights) -> dict[str, Any]:
    told = asdict(initial)
    return {"step": 0, "source": told.pop("origin"), "source_step": told.pop("step"), **told}


def _journal_start(
    journal: Journal, entered: Entered, store: Store, world: World, step: int, resumed_from: int | None
) -> None:
    train = entered.config.train
    journal.write(
        "start" if resumed_from is None else "resume",
        step=step,
        train_steps=train.steps,
        batch_size=train.batch_size,
        precision=resolve_precision(train.precision, world.device),
        device=describe_device(world.device),
        processes=world.size,
        parallel=train.parallel,
        store=str(store.path.resolve()),
        changes=entered.changes,
    )


def _deadline(hours: float | None) -> float | None:
    if hours is None:
        return None
    if not hours > 0:
        raise ConfigError(f"a time limit of {hours} hours", "allowed: a number above 0; None for no limit")
    return time.monotonic() + 3600 * hours


def _hooks(config: RunConfig, run: RunDir, store: Store, world: World, listener: Listener) -> list[Hook]:
    hooks: list[Hook] = [estimate_hook(config, listener)]
    if config.train.preview_every is not None:
        hooks.append(preview_hook(config, run, world))
    if config.train.evaluate_every is not None:
        hooks.append(held_out_hook(config, run, store, world, listener))
    return hooks

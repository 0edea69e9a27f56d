"""`iddpm train`: start a run, or resume it by the same command."""

import dataclasses
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from iddpm.artifacts.run_dir import RunDir, locked, open_run_dir, start_run_dir
from iddpm.commands.preview import preview_hook
from iddpm.commands.store import store_for
from iddpm.data.loader import Batches
from iddpm.data.opening import NAMES
from iddpm.data.store import Store
from iddpm.experiment.build import build_net, build_task
from iddpm.experiment.config import RunConfig
from iddpm.experiment.identity import check_same_run, config_from_json, config_to_json
from iddpm.experiment.recipes import RECIPES
from iddpm.runtime.errors import ConfigError, DataError, OutputError, RunError
from iddpm.runtime.files import check_writable
from iddpm.runtime.machine import describe_device, provenance
from iddpm.runtime.precision import resolve_precision
from iddpm.runtime.telling import SILENT, Listener
from iddpm.runtime.world import World, open_world
from iddpm.training.pace import Pace, duration
from iddpm.training.state import TrainState, load_checkpoint, new_state
from iddpm.training.trainer import Hook, Session
from iddpm.training.trainer import train as run_session

__all__ = ["TrainResult", "config_for_store", "train"]

_FIRST_ESTIMATE = 10


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How training ended. `seconds` and `steps_done` are this session's; `stopped_by` is a signal's name,
    "the time limit", the path of RUN/stop, or None.
    """

    path: str
    step: int
    train_steps: int
    steps_done: int
    seconds: float
    stopped_by: str | None
    resumed_from: int | None
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
        TrainingError: The loss is no longer finite.
    """
    deadline = _deadline(time_limit_hours)
    world = open_world(device)
    _check_source(config)
    build_net(config, torch.device("meta"))  # a network that cannot be is refused before any data is prepared
    out = _free_place(out)
    store, seconds = store_for(config.data, listener)
    config = config_for_store(config, store)
    with locked(out):
        run, changes = _enter(out, config, store, world, prepare_seconds + seconds)
        return _train(config, run, changes, store, world, deadline, listener)


def _train(
    config: RunConfig,
    run: RunDir,
    changes: dict[str, Any],
    store: Store,
    world: World,
    deadline: float | None,
    listener: Listener,
) -> TrainResult:
    data, train = config.data, config.train
    batches = Batches(store, "train", train.batch_size, train.seed, data.flip, data.size, data.crop)
    task = build_task(config, build_net(config, world.device), world.device)
    state = new_state(task, config.optimizer, config.train)
    resumed_from = _resume(run, state, config, listener)
    _announce(run, config, store, state, world, listener)
    with run.open_journal() as journal:
        journal.write(
            "start" if resumed_from is None else "resume",
            step=state.step,
            train_steps=config.train.steps,
            batch_size=config.train.batch_size,
            precision=resolve_precision(config.train.precision, world.device),
            device=describe_device(world.device),
            store=str(store.path.resolve()),
            changes=changes,
        )
        session = Session(
            state=state,
            config=config.train,
            run=run,
            run_config=config_to_json(config),
            journal=journal,
            world=world,
            listener=listener,
            hooks=_hooks(config, run, world, listener),
            data_cure=batches.cure,
            deadline=deadline,
        )
        outcome = run_session(session, batches)
    _tell_end(run, config, outcome.step, outcome.seconds, outcome.stopped_by, listener)
    return TrainResult(
        path=str(run.path),
        step=outcome.step,
        train_steps=config.train.steps,
        steps_done=outcome.steps_done,
        seconds=round(outcome.seconds, 3),
        stopped_by=outcome.stopped_by,
        resumed_from=resumed_from,
        store=str(store.path),
    )


def _deadline(hours: float | None) -> float | None:
    if hours is None:
        return None
    if not hours > 0:
        raise ConfigError(f"a time limit of {hours} hours", "allowed: a number above 0; None for no limit")
    return time.monotonic() + 3600 * hours


def _check_source(config: RunConfig) -> None:
    """A recipe of the paper names data that is the user's to bring."""
    source = config.data.source
    if source not in NAMES and not source.startswith("hf:") and not Path(source).exists():
        named = config.recipe in RECIPES and RECIPES[config.recipe].config().data.source == source
        if named:
            raise DataError(f"recipe {config.recipe} brings no pictures ({source})", "give them with --data FOLDER")


def config_for_store(config: RunConfig, store: Store) -> RunConfig:
    """The config with what only the store knows: its classes, their names and its identity.

    Raises:
        ConfigError: The recipe is class-conditional and the store has no labels, or a batch asks for none.
    """
    data = replace(config.data, content_hash=store.content_hash)
    if data.classes is None:
        return replace(config, data=data)
    if store.labels is None:
        raise ConfigError(
            f"recipe {config.recipe} is class-conditional, and {config.data.source} has no labels",
            "give pictures in one sub-folder a class, or switch classes off with --data.classes None"
            + (" --diffusion.label-drop 0" if config.diffusion.label_drop else ""),
        )
    return replace(config, data=replace(data, classes=len(store.classes), class_names=tuple(store.classes)))


def _free_place(out: Path) -> Path:
    out = Path(out).resolve()
    check_writable(out)
    ours = ("provenance.json", ".lock")  # what a start that was cut short leaves
    if not (out / "config.json").is_file() and any(path.name not in ours for path in out.iterdir()):
        raise OutputError(f"{out} is not empty and holds no run", "give an empty or a new folder with --out")
    return out


def _enter(
    out: Path, config: RunConfig, store: Store, world: World, prepare_seconds: float
) -> tuple[RunDir, dict[str, Any]]:
    """Start the run directory, or open it if it is of the same run; and what changes."""
    if (out / "config.json").is_file():
        run = open_run_dir(out)
        return run, check_same_run(config_from_json(run.config), config)
    facts = provenance(world.device) | {
        "store": str(store.path.resolve()),
        "data": dataclasses.asdict(store.provenance) | {"ignored": None, "damaged": None},
        "prepare_seconds": round(prepare_seconds, 3),
    }
    return start_run_dir(out, config_to_json(config), facts), {}


def _resume(run: RunDir, state: TrainState, config: RunConfig, listener: Listener) -> int | None:
    checkpoint, complaints = run.newest_checkpoint()
    if checkpoint is None:
        if complaints:
            raise RunError(
                f"no checkpoint of {run.path} is whole: {complaints[0]}",
                "restore one from a copy, or remove the run to start anew",
            )
        return None
    for complaint in complaints:
        listener.say(f"warning: {complaint}; using the checkpoint of step {checkpoint.step}")
    load_checkpoint(state, checkpoint, config.train)
    listener.say(f"resumed step {state.step} from {checkpoint.path}")
    return state.step


def _announce(
    run: RunDir, config: RunConfig, store: Store, state: TrainState, world: World, listener: Listener
) -> None:
    train = config.train
    parameters = sum(parameter.numel() for parameter in state.task.module.parameters())
    classes = f", {config.data.classes} classes" if config.data.classes else ""
    listener.say(f"run: {run.path}")
    listener.say(
        f"{config.recipe}: {parameters / 1e6:.2f}M parameters on {describe_device(world.device)} "
        f"in {resolve_precision(train.precision, world.device)}, learning rate {train.lr:g}"
    )
    listener.say(
        f"{train.steps} steps of {train.batch_size} images ({train.steps * train.batch_size / len(store.train):.1f} epochs of "
        f"{len(store.train)}{classes}); checkpoints every {train.checkpoint_every} steps and at the end"
    )
    if len(store.train) < train.batch_size:
        listener.say(
            f"note: {len(store.train)} images are fewer than a batch of {train.batch_size}: images repeat within a batch"
        )


def _hooks(config: RunConfig, run: RunDir, world: World, listener: Listener) -> list[Hook]:
    hooks: list[Hook] = [_estimate_hook(config, listener)]
    if config.train.preview_every is not None:
        hooks.append(preview_hook(config, run, world.device))
    return hooks


def _estimate_hook(config: RunConfig, listener: Listener) -> Hook:
    """Says once, after a few steps, how long training will take at their pace."""
    pace: Pace | None = None

    def tell(state: TrainState) -> None:
        nonlocal pace
        if pace is None:
            pace = Pace(state.step, config.train.steps)
        pace.mark(state.step)
        if state.step - pace.start == _FIRST_ESTIMATE and pace.seconds_left:
            listener.say(f"about {duration(pace.seconds_left)} to go, at {duration(pace.seconds_per_step or 0)} a step")

    return tell


def _tell_end(
    run: RunDir, config: RunConfig, step: int, seconds: float, stopped_by: str | None, listener: Listener
) -> None:
    where = f"checkpoint in {run.checkpoints / f'{step:09d}'}"
    if stopped_by is not None:
        listener.say(
            f"stopped by {stopped_by} at step {step} of {config.train.steps}; {where}; the same command goes on from there"
        )
    elif seconds < 0.001 or step >= config.train.steps:
        listener.say(f"done: step {step} of {config.train.steps} after {duration(seconds)} in this session; {where}")

"""The way into a run directory: a new run, or one to go on with; what it starts from, and where it stands."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from iddpm.artifacts.checkpoint import Checkpoint, list_checkpoints
from iddpm.artifacts.run_dir import RunDir, open_run_dir, start_run_dir
from iddpm.artifacts.weights import WEIGHT_PLACES
from iddpm.data.opening import NAMES
from iddpm.data.store import Store
from iddpm.experiment.config import RunConfig
from iddpm.experiment.identity import check_same_run, config_from_json, config_to_json
from iddpm.experiment.recipes import RECIPES
from iddpm.runtime.errors import ConfigError, DataError, OutputError, RunError
from iddpm.runtime.files import check_writable, remove_folder, write_json
from iddpm.runtime.machine import provenance
from iddpm.runtime.telling import Listener
from iddpm.runtime.world import World
from iddpm.training.state import TrainState, load_checkpoint

__all__ = ["Entered", "check_init", "check_source", "config_for_store", "enter", "free_place", "resume"]


def check_source(config: RunConfig) -> None:
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


def free_place(out: Path) -> Path:
    """The absolute path of a run directory to be; made if it is not there.

    Raises:
        OutputError: It cannot be written, or holds something else.
    """
    out = Path(out).resolve()
    check_writable(out)
    foreign = [path for path in out.iterdir() if path.name != "provenance.json" and not path.name.startswith(".")]
    if foreign and not (out / "config.json").is_file():  # else it is what a start that was cut short leaves
        if left := list_checkpoints(RunDir(out).checkpoints):
            raise OutputError(
                f"{out} holds checkpoints of a run, but not its config.json",
                f"restore that file, or start a new run elsewhere with --init {left[-1].path}",
            )
        raise OutputError(f"{out} is not empty and holds no run", "give an empty or a new folder with --out")
    return out


@dataclass(frozen=True)
class Entered:
    """A run directory that training may go on in.

    Attributes:
        run: Where.
        config: What training is to go on with.
        changes: What that changes.
        provenance: Of a run that is new, or has lost it; None: it is there.
        is_new: Whether the run is.
    """

    run: RunDir
    config: RunConfig
    changes: dict[str, Any]
    provenance: dict[str, Any] | None
    is_new: bool

    def start(self, listener: Listener) -> None:
        """Write what is written once. What can be refused has been refused by now, so that no refused run lies about."""
        if self.provenance is None:
            return
        if not self.is_new:
            listener.say(f"warning: {self.run.path} has lost its provenance.json; one of this start is written")
            write_json(self.run.path / "provenance.json", self.provenance)
        else:
            start_run_dir(self.run.path, config_to_json(self.config), self.provenance)


def enter(out: Path, config: RunConfig, store: Store, world: World, prepare_seconds: float) -> Entered:
    """Open the run directory if it is of the same run, or say what a new one would be; nothing is written.

    Raises:
        ConfigError: It holds another run; the paths that differ are named.
    """
    if config.init is not None:
        config = replace(config, init=str(Path(config.init).resolve()))
    if (out / "config.json").is_file():
        run = open_run_dir(out)
        old = config_from_json(run.config)
        if config.init is None:  # it has had its effect already, and need not be said again
            config = replace(config, init=old.init)
        changes = check_same_run(old, config)
        if (out / "provenance.json").is_file():
            return Entered(run, config, changes, None, is_new=False)
        return Entered(run, config, changes, _facts(store, world, prepare_seconds), is_new=False)
    return Entered(RunDir(out), config, {}, _facts(store, world, prepare_seconds), is_new=True)


def _facts(store: Store, world: World, prepare_seconds: float) -> dict[str, Any]:
    """What is written of a run once, at its start."""
    return provenance(world.device) | {
        "store": str(store.path.resolve()),
        "data": dataclasses.asdict(store.provenance) | {"ignored": None, "damaged": None},
        "prepare_seconds": round(prepare_seconds, 3),
    }


def check_init(config: RunConfig) -> None:
    """A path that is not there is refused before any data is prepared.

    Raises:
        ConfigError: It is empty.
        RunError: It is not there.
    """
    if config.init == "":
        raise ConfigError("--init is empty", f"give {WEIGHT_PLACES}, or leave it out")
    if config.init is not None and not Path(config.init).exists():
        raise RunError(f"--init {config.init} does not exist", f"give {WEIGHT_PLACES}")


def _take_up(state: TrainState, events: Sequence[Mapping[str, Any]]) -> None:
    """What happened after the checkpoint that was resumed from, as far as the journal knows: it is not to be forgotten.

    That is what a kill has taken, which was spent all the same; and going back, which would else be done again, without end
    where every start is killed or fails.
    """
    since: list[Mapping[str, Any]] = []
    for event in events:
        since = [] if event["event"] == "checkpoint" else [*since, event] if event["event"] == "rollback" else since
        if "spent" in event and event["spent"]["seconds"] > state.spent.seconds:
            state.spent.load(event["spent"])
    if since and since[-1]["to_step"] == state.step:
        state.rollbacks, state.lr_factor, state.back_at = since[-1]["rollbacks"], since[-1]["lr_factor"], state.step
        state.guard.load_state_dict(since[-1]["guard"])


def _remove_newer(run: RunDir, step: int) -> None:
    for snapshot in list_checkpoints(run.averages):
        if snapshot.step > step and snapshot.is_named_by_us:  # this way may become another one
            remove_folder(snapshot.path)


def _lost(run: RunDir, checkpoint: Checkpoint, events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What should be beside a checkpoint and is not."""
    steps = [event["step"] for event in events if event["event"] in ("step", "checkpoint")]
    if checkpoint.step > max(steps, default=0):  # the journal is written before a checkpoint is
        yield f"{run.journal_path} ends before step {checkpoint.step}: curves and counts of what is missing are lost"
    there = {snapshot.step for snapshot in list_checkpoints(run.averages)}
    told = {event["step"] for event in events if event["event"] == "snapshot" and event["step"] <= checkpoint.step}
    if gone := sorted(told - there):
        yield (
            f"{run.averages} lacks {len(gone)} of {len(told)} snapshots that were written (the first of step {gone[0]}): "
            "other widths of the average can be made less well"
        )


def resume(run: RunDir, state: TrainState, world: World, listener: Listener) -> int | None:
    """Put the newest whole checkpoint into the state; None where the run has none yet.

    Raises:
        RunError: None of its checkpoints is whole, or those it has told of are gone.
    """
    checkpoint, complaints = world.channel.first(run.newest_checkpoint)
    if checkpoint is None:
        if complaints:
            raise RunError(
                f"no checkpoint of {run.path} is whole: {complaints[0]}",
                "restore one from a copy, or remove the run to start anew",
            )
        told = [event["step"] for event in run.events() if event["event"] == "checkpoint"]
        if told:
            raise RunError(
                f"{run.path} has written checkpoints (the last of step {told[-1]}), and {run.checkpoints} holds none",
                "put them back, or remove the run to start anew",
            )
        return None
    for complaint in complaints:
        listener.say(f"warning: {complaint}; using the checkpoint of step {checkpoint.step}")
    world.channel.together(lambda: load_checkpoint(state, checkpoint))
    events = world.channel.first(run.events)
    _take_up(state, events)
    for loss in world.channel.first(lambda: list(_lost(run, checkpoint, events))):
        listener.say(f"warning: {loss}")
    world.channel.first(lambda: _remove_newer(run, state.step))
    listener.say(f"resumed step {state.step} from {checkpoint.path}")
    return state.step

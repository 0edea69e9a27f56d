"""What `iddpm train` says of a run as it starts, after its first steps, and as it ends."""

from iddpm.artifacts.checkpoint import checkpoint_name, list_checkpoints
from iddpm.artifacts.run_dir import RunDir
from iddpm.data.store import Store
from iddpm.experiment.config import RunConfig
from iddpm.runtime.machine import describe_device
from iddpm.runtime.precision import resolve_precision
from iddpm.runtime.telling import Listener
from iddpm.runtime.world import World
from iddpm.training.hooks import Hook
from iddpm.training.pace import Pace, duration
from iddpm.training.session import Outcome
from iddpm.training.state import TrainState

__all__ = ["announce", "estimate_hook", "tell_end"]

_FIRST_ESTIMATE = 10


def announce(
    run: RunDir,
    config: RunConfig,
    store: Store,
    state: TrainState,
    world: World,
    micro_batch_size: int | None,
    listener: Listener,
) -> None:
    """Say where the run is, what it is and how much of it there is."""
    train = config.train
    parameters = sum(parameter.numel() for parameter in state.task.module.parameters())
    lowered = "" if state.lr_factor == 1 else f" times {state.lr_factor:g} since it went back"
    listener.say(f"run: {run.path}")
    listener.say(
        f"{config.recipe}: {parameters / 1e6:.2f}M parameters on {_devices(config, world)} "
        f"in {resolve_precision(train.precision, world.device)}, learning rate {train.lr:g}{lowered}"
    )
    listener.say(
        f"{train.steps} steps of {train.batch_size} images{_apart(train.batch_size, micro_batch_size)} "
        f"({train.steps * train.batch_size / len(store.train):.1f} epochs of {_pictures(config, store)}); "
        f"checkpoints every {train.checkpoint_every} steps and at the end"
    )
    if len(store.train) < train.batch_size:
        listener.say(
            f"note: {len(store.train)} images are fewer than a batch of {train.batch_size}: images repeat within a batch"
        )


def _devices(config: RunConfig, world: World) -> str:
    device = describe_device(world.device)
    return device if world.size == 1 else f"{world.size} processes ({config.train.parallel}), each with {device}"


def _apart(batch_size: int, micro: int | None) -> str:
    return "" if micro is None or micro >= batch_size else f", {micro} at a time"


def _pictures(config: RunConfig, store: Store) -> str:
    return f"{len(store.train)}" + (f", {config.data.classes} classes" if config.data.classes else "")


def estimate_hook(config: RunConfig, listener: Listener) -> Hook:
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


def tell_end(run: RunDir, config: RunConfig, outcome: Outcome, listener: Listener) -> None:
    """Say how far it came, and where the checkpoint is."""
    step, train_steps = outcome.step, config.train.steps
    places = [checkpoint.path for checkpoint in list_checkpoints(run.checkpoints) if checkpoint.step == step]
    where = f"checkpoint in {places[-1] if places else run.checkpoints / checkpoint_name(step)}"
    if outcome.steps_done == 0 and outcome.stopped_by is None:
        listener.say(f"nothing to do: the run is at step {step} of {train_steps}; {where}")
        return
    if outcome.stopped_by is not None:
        listener.say(
            f"stopped by {outcome.stopped_by} at step {step} of {train_steps}; {where}; "
            "the same command goes on from there"
        )
    else:
        listener.say(f"done: step {step} of {train_steps} after {duration(outcome.seconds)} in this session; {where}")

"""The training loop. It knows a task, batches and hooks; it knows no sampler, network or objective."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from iddpm.artifacts.journal import Journal
from iddpm.artifacts.run_dir import RunDir
from iddpm.data.loader import Batches, Prefetch
from iddpm.runtime.errors import TrainingError
from iddpm.runtime.telling import Listener
from iddpm.runtime.world import World
from iddpm.training.meter import Meter, PhaseClock, peak_memory_bytes
from iddpm.training.settings import TrainConfig, learning_rate
from iddpm.training.state import TrainState, save_state
from iddpm.training.step import train_step
from iddpm.training.stop import StopRequest

__all__ = ["Hook", "Outcome", "Session", "train"]

WAIT_SHARE = 0.05  # of the time between two entries of the journal; more is worth a warning


@runtime_checkable
class Hook(Protocol):
    """Called after every step; must change nothing in training."""

    def __call__(self, state: TrainState) -> dict[str, Any] | None:
        """Look at the state; return an event to journal (its fields, "event" among them), or None."""
        ...


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a session of training ended. `steps_done` and `seconds` are this session's."""

    step: int
    steps_done: int
    seconds: float
    stopped_by: str | None


@dataclass(kw_only=True)
class Session:
    """One stretch of training, from a state to a stop, and where it reports.

    Attributes:
        data_cure: What to do where training waits for data.
        deadline: When to stop, by `time.monotonic`; None: at the last step.
    """

    state: TrainState
    config: TrainConfig
    run: RunDir
    run_config: dict[str, Any]
    journal: Journal
    world: World
    listener: Listener
    hooks: Sequence[Hook] = ()
    data_cure: str = "copy the store to a faster disk"
    deadline: float | None = None
    clock: PhaseClock = field(default_factory=PhaseClock)

    def __post_init__(self) -> None:
        self._meter = Meter(self.state.task.timesteps)
        # A state that is not new came from a checkpoint, so that there is one of its step.
        self._first_step, self._saved_at = self.state.step, self.state.step
        self._began, self._elapsed_before = time.perf_counter(), self.state.elapsed_seconds
        self._logged_at = (self.state.step, self._began)
        self._detail = ""
        self._waited = 0.0  # for batches, since the last entry of the journal
        self._warned = False

    def step(self, batches: Prefetch) -> None:
        """One step and what follows it: hooks, the journal, a checkpoint where one is due."""
        state, config = self.state, self.config
        with self.clock.phase("data"):
            batch = next(batches)[1].to(self.world.device)
        if state.step > self._first_step:  # the first batch of a session cannot be made ahead of its use
            self._waited += batches.wait_seconds
        self._meter.add(*train_step(state, batch, config, self.world, self.clock))
        for hook in self.hooks:
            if (event := hook(state)) is not None:
                self.journal.write(**event)
        if state.step % config.log_every == 0 or state.step == config.steps:
            self.log()
        if state.step % config.checkpoint_every == 0:
            self.save()
        self.listener.progress("training", state.step, config.steps, self._detail)

    def log(self) -> None:
        """Journal the means since the last entry.

        Raises:
            TrainingError: The loss or the gradient is no longer finite.
        """
        state, now = self.state, time.perf_counter()
        reading = self._meter.read()
        if not (math.isfinite(reading["loss"]) and math.isfinite(reading["grad_norm"])):
            self.journal.write("failed", step=state.step, reason="the loss or the gradient is no longer finite")
            raise TrainingError(
                f"step {state.step}: loss {reading['loss']}, gradient norm {reading['grad_norm']}: no longer finite",
                "no checkpoint holds it; take a lower --train.lr or a --train.grad-clip in a new run",
            )
        since, moment = self._logged_at
        self._logged_at = (state.step, now)
        waited, self._waited = self._waited, 0.0
        state.elapsed_seconds = self._elapsed()
        images_per_second = (state.step - since) * self.config.batch_size / (now - moment)
        self._detail = f"loss {reading['loss']:.4f}  {images_per_second:.0f} images/s"
        self.journal.write(
            "step",
            step=state.step,
            elapsed_seconds=round(state.elapsed_seconds, 3),
            **reading,
            lr=learning_rate(self.config, state.step - 1),
            images_per_second=round(images_per_second, 3),
            seconds=self.clock.read(),
            data_wait_seconds=round(waited, 6),
            peak_memory_bytes=peak_memory_bytes(self.world.device),
        )
        if waited > WAIT_SHARE * (now - moment) and not self._warned:
            self._warned = True
            share = waited / (now - moment)
            self.listener.say(f"warning: {share:.0%} of the time goes into waiting for data; {self.data_cure}")
            self.journal.write("data_wait", step=state.step, share=round(share, 4), cure=self.data_cure)

    def save(self) -> None:
        """Write a checkpoint of this step, unless there is one. Weights that are not finite are never written."""
        if self._saved_at == self.state.step:
            return
        if self._meter.steps:
            self.log()
        self.state.elapsed_seconds = self._elapsed()
        with self.clock.phase("checkpoint"):
            saved = save_state(self.state, self.run, self.config, self.run_config)
        self._saved_at = self.state.step
        self.journal.write("checkpoint", step=self.state.step, path=str(saved.path.relative_to(self.run.path)))
        self.journal.sync()

    def end(self, stopped_by: str | None) -> Outcome:
        """Save, journal the end, and say how it went."""
        self.save()
        seconds = time.perf_counter() - self._began
        finished = self.state.step >= self.config.steps
        self.journal.write(
            "end" if finished else "interrupt",
            step=self.state.step,
            seconds=round(seconds, 3),
            elapsed_seconds=round(self._elapsed(), 3),
            seconds_by_phase=self.clock.read(),
            stopped_by=stopped_by,
        )
        return Outcome(
            step=self.state.step,
            steps_done=self.state.step - self._first_step,
            seconds=seconds,
            stopped_by=None if finished else stopped_by,
        )

    def _elapsed(self) -> float:
        return self._elapsed_before + time.perf_counter() - self._began


def train(session: Session, batches: Batches) -> Outcome:
    """Train to the last step, or until a signal, the deadline or a file RUN/stop asks to stop; a checkpoint is left.

    Raises:
        TrainingError: A loss or a gradient is no longer finite; the last good checkpoint stands.
    """
    state, config = session.state, session.config
    asked = None
    with (
        StopRequest(session.run.path / "stop", session.deadline) as stop,
        Prefetch(batches, state.step, config.steps) as stream,
    ):
        while state.step < config.steps and (asked := stop.asked()) is None:
            session.step(stream)
        return session.end(asked)

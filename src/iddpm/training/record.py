"""What the journal is told of training: means, rates, seconds by phase, waits for data."""

import time

from iddpm.artifacts.journal import Journal
from iddpm.runtime.telling import Listener
from iddpm.runtime.world import World
from iddpm.training.clock import PhaseClock, peak_memory_bytes
from iddpm.training.meter import Meter
from iddpm.training.settings import TrainConfig, learning_rate
from iddpm.training.state import TrainState
from iddpm.training.step import StepResult

__all__ = ["Record"]

_RUN_AWAY = 10.0
WAIT_SHARE = 0.05  # of the time between two entries of the journal; more is worth a warning


class Record:
    """Takes in every step of a session, and writes an entry whenever it is asked to.

    Attributes:
        clock: Seconds by phase since the last entry.
        detail: The last entry in a few words, for the progress bar.
    """

    def __init__(
        self,
        state: TrainState,
        config: TrainConfig,
        journal: Journal,
        world: World,
        listener: Listener,
        data_cure: str,
    ):
        self.clock, self.detail = PhaseClock(self._begins if world.size > 1 else None), ""
        self._state, self._config, self._journal, self._world = state, config, journal, world
        self._listener, self._data_cure = listener, data_cure
        self._meter = Meter(state.task.timesteps)
        self._counted_at = time.perf_counter()
        self._last_at = self._counted_at
        self._waited, self._warned, self._journal_failed = 0.0, False, False
        self._first_loss: float | None = None

    def _begins(self, phase: str) -> None:
        # A slow disk is no hang.
        self._world.at(phase, self._state.step + 1, patient=phase == "checkpoint")

    def add(self, result: StepResult, waited_seconds: float) -> None:
        """Take in one step, and how long it waited for its batch."""
        self._meter.add(result)
        self._waited += waited_seconds

    def count_time(self) -> None:
        """Bring the seconds spent up to now."""
        now = time.perf_counter()
        self._state.spent.add_seconds(now - self._counted_at, self._world.size)
        self._counted_at = now

    def write(self) -> None:
        """Journal what was taken in since the last entry, if anything was."""
        if not self._meter.steps:
            return
        self.count_time()
        state, now = self._state, self._counted_at
        moment, self._last_at = self._last_at, now
        waited, self._waited = self._waited, 0.0
        steps, reading, scale = self._meter.steps, self._meter.read(), state.guard.reading().loss_scale
        images_per_second = steps * self._config.batch_size / (now - moment)
        self.detail = f"{_loss(reading.get('loss'))}  {images_per_second:.0f} images/s"
        self._journal.write(
            "step",
            step=state.step,
            elapsed_seconds=round(state.spent.seconds, 3),
            spent=state.spent.to_json(),
            **reading,
            **({} if scale is None else {"loss_scale": scale}),
            lr=learning_rate(self._config, state.step - 1) * state.lr_factor,
            images_per_second=round(images_per_second, 3),
            seconds=self.clock.read(),
            data_wait_seconds=round(waited, 6),
            peak_memory_bytes=peak_memory_bytes(self._world.device),
        )
        if skipped := reading.get("skipped"):
            scaled = "" if scale is None else f"; the loss scale is {scale:g} now"
            self._listener.say(
                f"warning: {skipped} of {steps} steps up to step {state.step} were skipped: their loss or gradient was not finite{scaled}"
            )
        self._warn_of_loss(reading.get("loss"))
        self._warn_of_waiting(waited / (now - moment))
        self._warn_of_journal()

    def restart(self) -> None:
        """Forget what was taken in since the last entry: the run has gone back."""
        self._meter = Meter(self._state.task.timesteps)
        self._last_at = time.perf_counter()
        self._waited = 0.0

    def _warn_of_loss(self, loss: float | None) -> None:
        """A loss can run away through finite numbers too, which no policy stops: it may come back."""
        if loss is None:
            return
        first = self._first_loss = loss if self._first_loss is None else self._first_loss
        if loss > _RUN_AWAY * first > 0:
            self._first_loss = loss  # the next warning is for what is as much worse again
            self._listener.say(
                f"warning: the loss of {loss:.3g} at step {self._state.step} is {loss / first:.0f} times that of earlier in "
                "this session; where it does not come back, start anew with a lower --train.lr or a --train.grad-clip"
            )

    def _warn_of_waiting(self, share: float) -> None:
        if share <= WAIT_SHARE or self._warned:
            return
        self._warned = True
        self._listener.say(f"warning: {share:.0%} of the time goes into waiting for data; {self._data_cure}")
        self._journal.write("data_wait", step=self._state.step, share=round(share, 4), cure=self._data_cure)

    def _warn_of_journal(self) -> None:
        error = self._journal.pending
        if error is not None and not self._journal_failed:
            self._listener.say(f"warning: {error.what}; training goes on, and what is to be told waits in memory")
        self._journal_failed = error is not None


def _loss(loss: float | None) -> str:
    return "every step skipped" if loss is None else f"loss {loss:.4f}"

"""When a checkpoint is written, what becomes of one that cannot be, and which one a run may go back to."""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from iddpm.artifacts.checkpoint import Checkpoint, check_checkpoint, list_checkpoints
from iddpm.artifacts.journal import Journal
from iddpm.artifacts.run_dir import RunDir
from iddpm.runtime.errors import OutputError, RunError
from iddpm.runtime.files import remove_folder
from iddpm.runtime.telling import Listener
from iddpm.runtime.world import World
from iddpm.training.ema import power_name
from iddpm.training.saving import Retention, Saved, Saver, is_good
from iddpm.training.settings import TrainConfig
from iddpm.training.state import TrainState, state_scalars, state_tensors, written_here

__all__ = ["GO_ON", "HOLD", "TRY_AGAIN", "Keeper"]

_RETRY_SECONDS = 60.0
_LAST_RETRIES = 10
GO_ON, HOLD, TRY_AGAIN = range(3)


class Keeper:
    """Saves a session's state beside training, and tells journal and listener once it is done.

    A checkpoint that falls due while steps are being skipped waits for a good one. One that cannot be written is told,
    and tried again after a minute: training goes on, since stopping would lose what is in memory.
    """

    def __init__(
        self,
        state: TrainState,
        run: RunDir,
        config: TrainConfig,
        run_config: dict[str, Any],
        journal: Journal,
        listener: Listener,
        saved_at: int | None,
        world: World,
    ):
        self._state, self._run, self._config, self._world = state, run, config, world
        self._journal, self._listener = journal, listener
        retention = Retention(last=config.keep_checkpoints, every=config.keep_every, best=config.keep_best)
        self._saver = Saver(run_config, {run.checkpoints: retention}, world.line("save"))
        self._powers = tuple(power_name(width) for width in config.ema_widths)
        self._written_once = run.written_once() if world.is_first else {}
        self._begun_at = saved_at
        self._owed, self._failed, self._retry_at = False, False, 0.0
        self._metrics: tuple[int, dict[str, Any]] = (-1, {})

    def measured(self, step: int, metrics: dict[str, Any]) -> None:
        """Take note of a measurement of this step's weights; a checkpoint of the step will hold it."""
        self._metrics = (step, metrics)

    def mood(self) -> int:
        """What a save that failed means now: `GO_ON` where none has, `HOLD` for a minute, then `TRY_AGAIN`."""
        if not self._failed:
            return GO_ON
        return TRY_AGAIN if time.monotonic() >= self._retry_at else HOLD

    def is_due(self, mood: int) -> bool:
        """Whether a checkpoint is to be written after this step; `mood` is the first process's."""
        falls_due = mood == TRY_AGAIN or self._owed or self._state.step % self._config.checkpoint_every == 0
        return falls_due and mood != HOLD and self._state.guard.reading().in_a_row == 0

    def weights_are_finite(self) -> bool:
        """Whether every weight is a finite number."""
        weights = [parameter.detach() for parameter in self._state.distribution.weights.parameters()]
        return bool(self._state.distribution.norm(weights).isfinite())

    def after_step(self, due: bool) -> None:
        """Tell what has ended since the last step, and begin what is due."""
        self.tell()
        step, every = self._state.step, self._config.snapshot_every or self._config.checkpoint_every
        snapshot = self._powers if step % every == 0 else ()
        if due:
            self.begin(snapshot)
            return
        self._owed = self._owed or step % self._config.checkpoint_every == 0
        if snapshot:
            self._saver.begin(
                {self._run.averages: snapshot}, step, written_here(self._state, snapshot, self._world), {}
            )

    def begin(self, snapshot: Sequence[str] = ()) -> None:
        """Copy the state for a checkpoint of this step, unless there is one; it is written while training goes on.

        Args:
            snapshot: Averages of which a snapshot is written from the same copy.
        """
        step = self._state.step
        if self._world.size > 1:  # whether the save before has failed is known to all only once it has ended
            self.tell(wait=True)
        self._owed = self._failed = False
        if self._begun_at == step:
            return
        self._begun_at = step
        self._restore_run()
        measured_at, metrics = self._metrics
        scalars = state_scalars(self._state) | {"metrics": metrics if measured_at == step else {}}
        names = tuple(state_tensors(self._state))
        folders = {self._run.checkpoints: names} | ({self._run.averages: tuple(snapshot)} if snapshot else {})
        self._saver.begin(folders, step, written_here(self._state, names, self._world), scalars)

    def _restore_run(self) -> None:
        # Where the folder has gone, a checkpoint would make it anew, and it would be no run without these.
        with contextlib.suppress(OutputError):  # the checkpoint will say why
            if self._run.restore(self._written_once):
                self._listener.say(
                    f"warning: {self._run.path} has been moved or removed while training; it is made again, without "
                    "what was in it before"
                )

    def finish(self, hurried: Callable[[], object] = lambda: True) -> None:
        """Have a checkpoint of this step on the disk; where it cannot be written, try for ten minutes.

        Args:
            hurried: Asked in between; true: do not try again.

        Raises:
            OutputError: It cannot be written.
        """
        self.begin()
        failed = self.tell(wait=True, then="it is the last")
        for left in range(_LAST_RETRIES - 1, -1, -1):
            if failed is None or self._world.channel.first(lambda: bool(hurried())):
                break
            self._listener.say(f"trying again in a minute, {left} more times after that; Ctrl-C leaves")
            self._world.channel.first(lambda: _sleep(_RETRY_SECONDS, hurried))
            self.begin()
            failed = self.tell(wait=True, then="it is the last")
        if failed is not None:
            raise failed

    def go_back(self, before: int | None) -> Checkpoint | None:
        """The newest whole checkpoint that was written after a good step; what is newer is removed then.

        Args:
            before: Only one of a lower step will do.

        Returns:
            The checkpoint; None: there is none, and nothing was removed.
        """
        self.tell(wait=True)
        target = self._world.channel.first(lambda: self._clear_for(before))
        if target is not None:
            self._begun_at, self._owed, self._failed = target.step, False, False
        return target

    def _clear_for(self, before: int | None) -> Checkpoint | None:
        target = self._newest_good(before)
        if target is None:
            return None
        for newer in list_checkpoints(self._run.checkpoints) + list_checkpoints(self._run.averages):
            if newer.step > target.step and newer.is_named_by_us:
                remove_folder(newer.path)
        return target

    def _newest_good(self, before: int | None) -> Checkpoint | None:
        for checkpoint in reversed(list_checkpoints(self._run.checkpoints)):
            if (before is not None and checkpoint.step >= before) or not is_good(checkpoint):
                continue
            try:
                check_checkpoint(checkpoint)
            except RunError as error:
                self._listener.say(f"warning: {error.what}; looking for the one before")
            else:
                return checkpoint
        return None

    def tell(
        self, wait: bool = False, then: str = "training goes on and tries again in a minute"
    ) -> OutputError | None:
        """Journal what the saver has ended; the error of the last checkpoint among it.

        Args:
            wait: Wait for what is being written.
            then: What follows where a checkpoint could not be written.
        """
        failed = None
        for saved in self._saver.wait() if wait else self._saver.finished():
            is_checkpoint = saved.path.parent == self._run.checkpoints
            if saved.error is None:
                self._tell_saved(saved, "checkpoint" if is_checkpoint else "snapshot")
            elif is_checkpoint:
                self._tell_failed(saved, saved.error, then)
            else:
                self._journal.write("snapshot_failed", step=saved.step, reason=saved.error.what)
                self._listener.say(f"warning: {saved.error.what}; training goes on without that snapshot")
            failed = saved.error if is_checkpoint else failed
        return failed

    def _tell_saved(self, saved: Saved, event: str) -> None:
        self._journal.write(
            event,
            step=saved.step,
            path=str(saved.path.relative_to(self._run.path)),
            bytes=saved.bytes,
            copy_seconds=round(saved.copy_seconds, 6),
            wait_seconds=round(saved.wait_seconds, 6),
            write_seconds=round(saved.write_seconds, 6),
        )
        self._journal.sync()

    def _tell_failed(self, saved: Saved, error: OutputError, then: str) -> None:
        self._journal.write("checkpoint_failed", step=saved.step, reason=error.what)
        if self._begun_at == saved.step:
            self._begun_at, self._failed, self._retry_at = None, True, time.monotonic() + _RETRY_SECONDS
        stands = "none before it is known to stand"
        with contextlib.suppress(OSError):  # a place that is gone cannot say
            steps = [checkpoint.step for checkpoint in list_checkpoints(self._run.checkpoints)]
            stands = f"that of step {max(steps)} stands" if steps else "there is none yet"
        self._listener.say(f"warning: no checkpoint of step {saved.step}: {error.what}; {stands}; {then}")


def _sleep(seconds: float, hurried: Callable[[], object]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not hurried():
        time.sleep(0.2)

"""When a checkpoint is written, what becomes of one that cannot be, and which one a run may go back to."""

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from iddpm.artifacts.checkpoint import Checkpoint, list_checkpoints, load_state
from iddpm.artifacts.journal import Journal
from iddpm.artifacts.run_dir import RunDir
from iddpm.runtime.errors import OutputError
from iddpm.runtime.files import remove_folder, reported, write_bytes
from iddpm.runtime.telling import Listener
from iddpm.training.ema import power_name
from iddpm.training.saving import Retention, Saved, Saver
from iddpm.training.settings import TrainConfig
from iddpm.training.state import TrainState, state_scalars, state_tensors

__all__ = ["Keeper"]

_RETRY_SECONDS = 60.0
_WRITTEN_ONCE = ("config.json", "provenance.json")


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
    ):
        self._state, self._run, self._config = state, run, config
        self._journal, self._listener = journal, listener
        retention = Retention(last=config.keep_checkpoints, every=config.keep_every, best=config.keep_best)
        self._saver = Saver(run_config, {run.checkpoints: retention})
        self._powers = tuple(power_name(width) for width in config.ema_widths)
        self._begun_at = saved_at
        files = {run.path / name for name in _WRITTEN_ONCE}
        self._written_once = {file: file.read_bytes() for file in files if file.is_file()}
        self._owed, self._retry_at = False, 0.0
        self._metrics: tuple[int, dict[str, float]] = (-1, {})

    def measured(self, step: int, metrics: dict[str, float]) -> None:
        """Take note of a measurement of this step's weights; a checkpoint of the step will hold it."""
        self._metrics = (step, metrics)

    def is_due(self) -> bool:
        """Whether a checkpoint is to be written after this step."""
        self._owed = self._owed or self._state.step % self._config.checkpoint_every == 0
        if not self._owed or time.monotonic() < self._retry_at:
            return False
        return self._state.guard.reading().in_a_row == 0

    def after_step(self, due: bool) -> None:
        """Tell what has ended since the last step, and begin what is due."""
        self._tell()
        every = self._config.snapshot_every or self._config.checkpoint_every
        snapshot = self._powers if self._state.step % every == 0 else ()
        if due:
            self.begin(snapshot)
        elif snapshot:
            groups = {name: self._state.ema.state_dict(name) for name in snapshot}
            self._saver.begin({self._run.averages: snapshot}, self._state.step, groups, {})

    def begin(self, snapshot: Sequence[str] = ()) -> None:
        """Copy the state for a checkpoint of this step, unless there is one; it is written while training goes on.

        Args:
            snapshot: Averages of which a snapshot is written from the same copy.
        """
        step = self._state.step
        self._owed = False
        if self._begun_at == step:
            return
        self._begun_at = step
        self._make_again()
        measured_at, metrics = self._metrics
        scalars = state_scalars(self._state) | {"metrics": metrics if measured_at == step else {}}
        groups = state_tensors(self._state)
        folders = {self._run.checkpoints: tuple(groups)} | ({self._run.averages: tuple(snapshot)} if snapshot else {})
        self._saver.begin(folders, step, groups, scalars)

    def _make_again(self) -> None:
        """Write what is written once where somebody has removed it: without it no command takes the folder for a run."""
        gone = {file: content for file, content in self._written_once.items() if not file.exists()}
        # Where it cannot be done, neither can the checkpoint that follows, which tells so.
        with contextlib.suppress(OutputError), reported(self._run.path):
            for file, content in gone.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(file, content)
            if gone:
                self._listener.say(
                    f"warning: {self._run.path} has been moved or removed in part; it is made again with what comes from now on"
                )

    def finish(self) -> None:
        """Have a checkpoint of this step on the disk.

        Raises:
            OutputError: It cannot be written.
        """
        self.begin()
        failed = self._tell(wait=True)
        if failed is not None:
            raise failed

    def go_back(self) -> Checkpoint | None:
        """The newest checkpoint that was written after a good step; what is newer is removed. None: there is none."""
        self._tell(wait=True)
        target, _ = self._run.newest_checkpoint()
        while target is not None and load_state(target)["guard"]["in_a_row"]:
            remove_folder(target.path)
            target, _ = self._run.newest_checkpoint()
        if target is not None:
            for snapshot in list_checkpoints(self._run.averages):
                if snapshot.step > target.step:  # of the way that is given up
                    remove_folder(snapshot.path)
            self._begun_at = target.step
        self._owed = False
        return target

    def _tell(self, wait: bool = False) -> OutputError | None:
        """Journal what the saver has ended; the error of the last checkpoint among it."""
        failed = None
        for saved in self._saver.wait() if wait else self._saver.finished():
            is_checkpoint = saved.path.parent == self._run.checkpoints
            if saved.error is None:
                self._tell_saved(saved, "checkpoint" if is_checkpoint else "snapshot")
            else:
                self._tell_failed(saved, saved.error, is_checkpoint)
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

    def _tell_failed(self, saved: Saved, error: OutputError, is_checkpoint: bool) -> None:
        kind = "checkpoint_failed" if is_checkpoint else "snapshot_failed"
        self._journal.write(kind, step=saved.step, reason=error.what)
        if not is_checkpoint:
            self._listener.say(f"warning: {error.what}; training goes on without this snapshot of the averages")
            return
        if self._begun_at == saved.step:
            self._begun_at, self._owed, self._retry_at = None, True, time.monotonic() + _RETRY_SECONDS
        newest = max((checkpoint.step for checkpoint in list_checkpoints(self._run.checkpoints)), default=None)
        stands = "there is none yet" if newest is None else f"that of step {newest} stands"
        self._listener.say(
            f"warning: no checkpoint of step {saved.step}: {error.what}; {stands}; training goes on and tries again in a minute"
        )

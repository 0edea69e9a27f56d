"""A session of training: a step and all that follows it. It knows a task and hooks; no sampler, network or objective."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NoReturn

from iddpm.artifacts.journal import Journal
from iddpm.artifacts.run_dir import RunDir
from iddpm.data.loader import Batch, Prefetch
from iddpm.runtime.errors import OutputError, TrainingError
from iddpm.runtime.memory import first_line, is_out_of_memory, release_unused
from iddpm.runtime.telling import Listener
from iddpm.runtime.watch import Stalled
from iddpm.runtime.world import World, is_lost_contact
from iddpm.training.agreement import Agreement
from iddpm.training.hooks import FAILED, Hook, call
from iddpm.training.keeping import Keeper
from iddpm.training.record import Record
from iddpm.training.settings import TrainConfig
from iddpm.training.state import TrainState, load_checkpoint
from iddpm.training.step import StepResult, train_step

__all__ = ["Outcome", "Session"]

_LOOK_EVERY = 10  # steps between two looks at a GPU's counters, each of which waits for its queue


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
        saved_at: The step of the checkpoint that the state came from; None: it is new.
        save_first: Whether a checkpoint is written before the first step.
        micro_batch_size: Images a forward and backward pass; None: all of a batch.
        shrinks: Whether the micro-batch may be halved where memory runs out.
        fits: Under what conditions a micro-batch is known to fit, for the journal.
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
    saved_at: int | None = None
    save_first: bool = False
    micro_batch_size: int | None = None
    shrinks: bool = False
    fits: str = ""

    def __post_init__(self) -> None:
        self.record = Record(self.state, self.config, self.journal, self.world, self.listener, self.data_cure)
        self.keeper = Keeper(
            self.state, self.run, self.config, self.run_config, self.journal, self.listener, self.saved_at, self.world
        )
        self.agreement = Agreement(self.world, self.run.path / "stop", self.deadline, self.keeper)
        if self.world.watch is not None:
            self.world.watch.expect(self.config.faults.hang_seconds, self._journal_hang)
        self._began, self._steps_done, self._fresh = time.perf_counter(), 0, True
        # A CPU's counters can be read at no cost, a GPU's cannot.
        patience = self.config.faults.patience
        self._look_every = 1 if self.world.device.type == "cpu" else min(_LOOK_EVERY, patience)

    def step(self, batches: Prefetch) -> bool:
        """One step and what follows it: hooks, the journal, a checkpoint where one is due.

        Returns:
            Whether the run has gone back to a checkpoint, so that other batches are next.
        """
        state, config, record = self.state, self.config, self.record
        with record.clock.phase("data"):
            batch = next(batches)[1].to(self.world.device)
        # The first batch of a stretch cannot be made ahead of its use.
        result = self._take(batch)
        record.add(result, 0.0 if self._fresh else batches.wait_seconds)
        self._fresh = False
        self._steps_done += 1
        due = self.keeper.is_due(self.agreement.mood())
        if self._looks(due):
            self.agreement.hear(result.asked.tolist())
        if (reason := self._gone_bad(due)) is not None:
            self._go_back(reason)
            return True
        if self.agreement.asked() is not None:  # a hook may take longer than whoever asks will wait
            record.write()
            self.keeper.begin()
        self._call_hooks()
        # The journal never lags behind a checkpoint: what a kill takes is done again and told again.
        if due or state.step % config.log_every == 0 or state.step == config.steps:
            record.write()
        with record.clock.phase("checkpoint"):
            self.keeper.after_step(due)
        self.listener.progress("training", state.step, config.steps, record.detail)
        return False

    def _looks(self, due: bool) -> bool:
        """Whether the device is waited for at this step, to see how it stands."""
        return due or self.state.step == self.config.steps or self.state.step % self._look_every == 0

    def _journal_hang(self, found: Sequence[Stalled]) -> None:
        for one in found:
            self.journal.write("hang", **{**asdict(one), "step": one.step or self.state.step})

    def _take(self, batch: Batch) -> StepResult:
        """A step; where memory runs out and the micro-batch may shrink, again with a smaller one.

        Raises:
            TrainingError: Memory has run out.
        """
        while True:
            try:
                own, clock = self.agreement.own(), self.record.clock
                return train_step(self.state, batch, self.config, self.world, clock, self.micro_batch_size, own)
            except (RuntimeError, MemoryError) as error:
                if self.world.size > 1 and is_lost_contact(error):
                    raise TrainingError(
                        f"step {self.state.step + 1}: lost contact with another process ({first_line(error)[:160]})",
                        "it has ended, or its machine has; the same command goes on from the last checkpoint",
                    ) from error
                if not is_out_of_memory(error):
                    raise
                # Outside this block, so that what the failed pass holds can be freed.
                reason = first_line(error)
            self._shrink(len(batch), reason)

    def _shrink(self, batch_size: int, reason: str) -> None:
        self.state.optimizer.zero_grad(set_to_none=True)
        release_unused(self.world.device)
        micro = min(self.micro_batch_size or batch_size, batch_size)
        where = f"step {self.state.step + 1}: out of memory on {self.world.device} with {micro} images at a time"
        if not self.shrinks or micro == 1 or self.world.size > 1:  # the others are in the middle of the step
            self.keep(f"{where} ({reason})")
            smaller = f"--micro-batch {micro // 2} (or auto), " if micro > 1 else ""
            raise TrainingError(
                where,
                f"repeat the command with {smaller}--train.activation-checkpointing blocks or --train.precision bf16: "
                "it goes on from its last checkpoint, if it has one, by the same steps",
            )
        self.micro_batch_size = -(-micro // 2)
        self.listener.say(f"warning: {where}; going on with {self.micro_batch_size}")
        self.journal.write(
            "micro_batch",
            step=self.state.step,
            micro_batch_size=self.micro_batch_size,
            fits=self.fits,
            reason="out of memory",
        )

    def _call_hooks(self) -> None:
        for hook in self.hooks:
            before = time.perf_counter()
            event = call(hook, self.state)
            if event is None:
                continue
            self.journal.write(**event)
            if event["event"] == FAILED:
                release_unused(self.world.device)
                self.listener.say(f"warning: step {event['step']}: {event['reason']}; training goes on without it")
                continue
            self.record.clock.add(event["event"], time.perf_counter() - before)
            if event.get("bits_per_dim") is not None:
                told = ("bits_per_dim", "num_images", "num_steps", "weights")
                self.keeper.measured(event["step"], {name: event.get(name) for name in told})

    def _gone_bad(self, due: bool) -> str | None:
        """Why the run cannot go on from here, if anybody looks at this step."""
        last = self.state.step == self.config.steps
        if self._looks(due):
            reading = self.state.guard.reading()
            if reading.in_a_row >= self.config.faults.patience:
                return f"{reading.in_a_row} steps in a row without a finite loss and gradient"
            if reading.given_up:
                return "most of the last steps without a finite loss and gradient"
        if (due or last) and not self.keeper.weights_are_finite():
            return "weights are no longer finite"
        return None

    def _go_back(self, reason: str) -> None:
        """Put the last good checkpoint in place of the state, with other draws and a lower learning rate.

        Raises:
            TrainingError: There is none, or the run has gone back as often as it may.
        """
        state, faults = self.state, self.config.faults
        self.record.write()
        step, spent, guard = state.step, replace(state.spent), state.guard.reading()
        rollbacks, lr_factor = state.rollbacks + 1, state.lr_factor * faults.lr_factor
        # Where not one good step came after going back, what it went back to is at fault.
        fruitless = state.back_at is not None and guard.in_a_row >= step - state.back_at
        if state.rollbacks >= faults.rollbacks:
            self._fail(reason, _how_often(state.rollbacks), fruitless)
        target = self.keeper.go_back(state.back_at if fruitless else None)
        if target is None:
            why = "not one good step came from its checkpoints" if fruitless else "there is nothing to go back to"
            self._fail(reason, why, fruitless)
        state.guard.forgive()
        judged = state.guard.state_dict()
        load_checkpoint(state, target)
        state.guard.load_state_dict(judged)
        state.spent, state.rollbacks, state.lr_factor, state.back_at = spent, rollbacks, lr_factor, state.step
        self.record.restart()
        self._fresh = True
        self.journal.write(
            "rollback",
            step=step,
            to_step=state.step,
            rollbacks=rollbacks,
            lr_factor=lr_factor,
            reason=reason,
            guard=judged,
        )
        self.journal.sync()
        self.listener.say(
            f"warning: step {step}: {reason}; going back to step {state.step} (rollback {rollbacks} of {faults.rollbacks}) "
            f"with other draws and {lr_factor:g} times the learning rate"
        )

    def _fail(self, reason: str, why: str, fruitless: bool) -> NoReturn:
        self.keeper.tell(wait=True)
        self.journal.write("failed", step=self.state.step, reason=f"{reason}; {why}")
        newest, _ = self.world.channel.first(self.run.newest_checkpoint)
        stands = "no checkpoint was written" if newest is None else f"{newest.path} stands"
        error = TrainingError(
            f"step {self.state.step}: {reason}, and {why}; {stands}",
            "take a lower --train.lr, a --train.grad-clip or --train.precision float32, in a new run"
            + ("" if newest is None or fruitless else f" or from there (--init {newest.path})"),
        )
        error.is_told_elsewhere = not self.world.is_first
        raise error

    def keep(self, reason: str) -> None:
        """Save before leaving with an error, if there is something to save and it can be done.

        One process of several cannot do it alone: those go on from their last checkpoint.
        """
        self.record.write()
        self.journal.write("failed", step=self.state.step, reason=reason)
        if self._steps_done and self.world.size == 1:
            with contextlib.suppress(OutputError):
                self.keeper.finish()

    def end(self, stopped_by: str | None) -> Outcome:
        """Save, journal the end, and say how it went."""
        if not self.keeper.weights_are_finite():
            self._go_back("weights are no longer finite")
        self.record.write()
        self.record.count_time()
        with self.record.clock.phase("checkpoint"), self.world.patient("checkpoint"):
            # Who has asked to stop may not wait; after the last step there is time.
            self.keeper.finish(self.agreement.stop.asked)
        self.record.count_time()
        seconds, spent = time.perf_counter() - self._began, self.state.spent.to_json()
        finished = self.state.step >= self.config.steps
        self.journal.write(
            "end" if finished else "interrupt",
            step=self.state.step,
            seconds=round(seconds, 3),
            elapsed_seconds=spent["seconds"],
            seconds_by_phase=self.record.clock.read(),
            spent=spent,
            skipped=self.state.guard.reading().skipped,
            rollbacks=self.state.rollbacks,
            stopped_by=stopped_by,
        )
        return Outcome(
            step=self.state.step,
            steps_done=self._steps_done,
            seconds=seconds,
            stopped_by=None if finished else stopped_by,
        )


def _how_often(rollbacks: int) -> str:
    if rollbacks == 0:
        return "train.faults.rollbacks is 0"
    return "it has gone back once already" if rollbacks == 1 else f"it has gone back {rollbacks} times already"

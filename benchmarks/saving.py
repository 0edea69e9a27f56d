"""What leaving a run alone costs: journal, a checkpoint every 1000 steps and a bank of three averages against none of it.

Two sessions of the demo's net in one process, in turn in blocks of 5 steps: one with a single average that writes
nothing, one as it would be left alone. What is added is milliseconds a step, less than a step varies: so each part is
timed by itself, a checkpoint as if training stood still for all of it, and set against the median of the bare steps.
The blocks of the two sessions, compared with one another, say whether anything is left out; they need a quiet machine.
"""

import argparse
import datetime
import json
import os
import tempfile
import time
from dataclasses import replace
from operator import truediv
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from iddpm.artifacts.run_dir import start_run_dir
from iddpm.commands.entering import config_for_store
from iddpm.commands.store import store_for
from iddpm.data.loader import Batches, Prefetch
from iddpm.experiment.build import build_net, build_task
from iddpm.experiment.config import RunConfig
from iddpm.experiment.identity import config_to_json
from iddpm.experiment.recipes import recipe
from iddpm.runtime.machine import provenance
from iddpm.runtime.telling import SILENT
from iddpm.runtime.world import open_world
from iddpm.training.ema import Ema
from iddpm.training.session import Session
from iddpm.training.state import new_state

RECORDS = Path(__file__).parent / "records"
BLOCK, LOG_EVERY, CHECKPOINT_EVERY = 5, 25, 1000
ONE, BANK = (0.995,), (0.99, 0.995, 0.999)
NEVER = 10**9


def main() -> None:
    """Measure, print, write a record."""
    flags = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    flags.add_argument("--steps", type=int, default=300, help="of each session (default: %(default)s)")
    steps: int = flags.parse_args().steps
    config = recipe("demo").config()
    store, _ = store_for(config.data)
    config = config_for_store(config, store)
    train = replace(config.train, steps=2 * steps, ema=ONE, log_every=NEVER, checkpoint_every=NEVER)
    bare = replace(config, train=train)
    # One checkpoint falls into these steps, in the middle.
    kept = replace(config, train=replace(train, ema=BANK, log_every=LOG_EVERY, checkpoint_every=steps * 5 // 8))
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        arms = {name: _Arm(one, Path(folder) / name) for name, one in (("bare", bare), ("kept", kept))}
        for arm in arms.values():
            arm.run(BLOCK)  # allocations and kernel choice
            arm.seconds.clear()
        for number in range(steps // BLOCK):
            for name in ("bare", "kept") if number % 2 == 0 else ("kept", "bare"):
                arms[name].run(BLOCK)
            arms["kept"].time_averages()
        record = _record(arms, steps)
        record["load_average"] = {"before": load, "after": os.getloadavg()}
        for arm in arms.values():
            arm.close()
    path = RECORDS / f"saving-{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    parts = ", ".join(f"{name} {share:.2%}" for name, share in record["added_share_by_part"].items())
    low, middle, high = record["added_share_of_blocks"]
    print(
        f"{record['device']}: a step of the demo {record['bare_seconds_per_step']:.4f} s; left alone "
        f"{record['added_share']:+.2%} ({parts}); blocks compared: {middle:+.1%}, half of them from {low:+.1%} to {high:+.1%}; "
        f"a checkpoint of {record['checkpoint_bytes'] / 1e6:.0f} MB: copy {record['checkpoint_copy_seconds'][0]:.3f} s, "
        f"written in {record['checkpoint_write_seconds'][0]:.2f} s beside training\n{path}"
    )


class _Arm:
    """A session that is run in blocks; the data are the same in both."""

    def __init__(self, config: RunConfig, folder: Path):
        world = open_world("cpu")
        store, _ = store_for(config.data)
        state = new_state(
            build_task(config, build_net(config, world.device), world.device), config.optimizer, config.train
        )
        run = start_run_dir(folder, config_to_json(config), {})
        self.journal = run.open_journal()
        self.session = Session(
            state=state,
            config=config.train,
            run=run,
            run_config=config_to_json(config),
            journal=self.journal,
            world=world,
            listener=SILENT,
        )
        self.events = run.events
        self.seconds: list[float] = []
        self.entry_seconds: list[float] = []
        self.averages = {rates: Ema(state.task.module, rates, False) for rates in (ONE, BANK)}
        self.averages_seconds: dict[tuple[float, ...], list[float]] = {ONE: [], BANK: []}
        self._write_entry, self.session.record.write = self.session.record.write, self._timed_entry
        self._stream = Prefetch(Batches(store, "train", config.train.batch_size, 0), 0)
        self._stream.__enter__()

    def run(self, steps: int) -> None:
        """So many steps, and their seconds."""
        began = time.perf_counter()
        for _ in range(steps):
            self.session.step(self._stream)
        self.seconds.append(time.perf_counter() - began)

    def time_averages(self) -> None:
        """One update of one average and of three, right after a step, as in training; in turn the one or the other first."""
        turn = len(self.averages_seconds[ONE]) % 2
        for rates in (ONE, BANK) if turn else (BANK, ONE):
            began = time.perf_counter()
            self.averages[rates].update(self.session.state.step)
            self.averages_seconds[rates].append(time.perf_counter() - began)

    def _timed_entry(self) -> None:
        began = time.perf_counter()
        self._write_entry()
        self.entry_seconds.append(time.perf_counter() - began)

    def close(self) -> None:
        """Stop its threads."""
        self._stream.__exit__()
        self.journal.close()


def _record(arms: dict[str, _Arm], steps: int) -> dict[str, Any]:
    bare, kept = arms["bare"].seconds, arms["kept"].seconds
    arms["kept"].session.keeper.finish()
    saved = [event for event in arms["kept"].events() if event["event"] == "checkpoint"]
    step_seconds = median(bare) / BLOCK
    averages = {rates: median(seconds) for rates, seconds in arms["kept"].averages_seconds.items()}
    checkpoint_seconds = median(event["copy_seconds"] + event["write_seconds"] for event in saved)
    entry_seconds = median(arms["kept"].entry_seconds)
    parts = {
        "averages": (averages[BANK] - averages[ONE]) / step_seconds,
        "journal": entry_seconds / (LOG_EVERY * step_seconds),
        "checkpoint": checkpoint_seconds / (CHECKPOINT_EVERY * step_seconds),
    }
    told = provenance(open_world("cpu").device)
    return {
        "command": told["command"],
        "started": told["started"],
        "device": told["device"],
        "git_commit": told["git_commit"],
        "torch": told["torch"],
        "steps": steps,
        "block": BLOCK,
        "bare_seconds_per_step": step_seconds,
        "added_share": sum(parts.values()),
        "added_share_by_part": parts,
        "added_share_of_blocks": [share - 1 for share in quantiles(map(truediv, kept, bare), n=4)],
        "one_average_seconds": averages[ONE],
        "three_averages_seconds": averages[BANK],
        "entry_seconds": entry_seconds,
        "checkpoint_bytes": saved[0]["bytes"],
        "checkpoint_copy_seconds": [event["copy_seconds"] for event in saved],
        "checkpoint_write_seconds": [event["write_seconds"] for event in saved],
        "bare_block_seconds": [round(value, 4) for value in bare],
        "kept_block_seconds": [round(value, 4) for value in kept],
    }


if __name__ == "__main__":
    main()

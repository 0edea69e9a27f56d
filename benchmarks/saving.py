"""What leaving a run alone costs: journal, a checkpoint every 1000 steps and a bank of three averages against none of it.

Two sessions of the demo's net in one process, in turn in blocks of 5 steps: one with a single average that writes
nothing, one as it would be left alone. The share is the median over the blocks, which other work on the machine hardly
moves, and a checkpoint's whole time as if training had stood still for it, for every 1000 steps.
"""

import argparse
import datetime
import json
import tempfile
import time
from dataclasses import replace
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
from iddpm.training.state import new_state
from iddpm.training.trainer import Session

RECORDS = Path(__file__).parent / "records"
BLOCK, LOG_EVERY, CHECKPOINT_EVERY = 5, 25, 1000
NEVER = 10**9


def main() -> None:
    """Measure, print, write a record."""
    flags = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    flags.add_argument("--steps", type=int, default=300, help="of each session (default: %(default)s)")
    steps: int = flags.parse_args().steps
    config = recipe("demo").config()
    store, _ = store_for(config.data)
    config = config_for_store(config, store)
    train = replace(config.train, steps=2 * steps, ema=(0.995,), log_every=NEVER, checkpoint_every=NEVER)
    bare = replace(config, train=train)
    # One checkpoint falls into these steps, in the middle.
    kept = replace(
        config, train=replace(train, ema=(0.99, 0.995, 0.999), log_every=LOG_EVERY, checkpoint_every=steps * 5 // 8)
    )
    with tempfile.TemporaryDirectory() as folder:
        arms = {name: _Arm(one, Path(folder) / name) for name, one in (("bare", bare), ("kept", kept))}
        for arm in arms.values():
            arm.run(BLOCK)  # allocations and kernel choice
            arm.seconds.clear()
        for number in range(steps // BLOCK):
            for name in ("bare", "kept") if number % 2 == 0 else ("kept", "bare"):
                arms[name].run(BLOCK)
        record = _record(arms, steps)
        for arm in arms.values():
            arm.close()
    path = RECORDS / f"saving-{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(
        f"{record['device']}: a step of the demo {record['bare_seconds_per_step']:.4f} s; left alone "
        f"{record['added_share']:+.2%} ({record['added_share_by_blocks']:+.2%} without the checkpoint, half of the blocks "
        f"within {record['added_share_quartiles'][0]:+.2%} and {record['added_share_quartiles'][1]:+.2%}); "
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
        self._stream = Prefetch(Batches(store, "train", config.train.batch_size, 0), 0)
        self._stream.__enter__()

    def run(self, steps: int) -> None:
        """So many steps, and their seconds."""
        began = time.perf_counter()
        for _ in range(steps):
            self.session.step(self._stream)
        self.seconds.append(time.perf_counter() - began)

    def close(self) -> None:
        """Stop its threads."""
        self._stream.__exit__()
        self.journal.close()


def _record(arms: dict[str, _Arm], steps: int) -> dict[str, Any]:
    bare, kept = arms["bare"].seconds, arms["kept"].seconds
    arms["kept"].session.keeper.finish()
    saved = [event for event in arms["kept"].events() if event["event"] == "checkpoint"]
    ratios = [b / a for a, b in zip(bare, kept, strict=True)]
    step_seconds = median(bare) / BLOCK
    checkpoint_seconds = median(event["copy_seconds"] + event["write_seconds"] for event in saved)
    low, middle, high = quantiles(ratios, n=4)
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
        "added_share_by_blocks": middle - 1,
        "added_share_quartiles": [low - 1, high - 1],
        "added_share": middle - 1 + checkpoint_seconds / (CHECKPOINT_EVERY * step_seconds),
        "checkpoint_bytes": saved[0]["bytes"],
        "checkpoint_copy_seconds": [event["copy_seconds"] for event in saved],
        "checkpoint_write_seconds": [event["write_seconds"] for event in saved],
        "bare_block_seconds": [round(value, 4) for value in bare],
        "kept_block_seconds": [round(value, 4) for value in kept],
    }


if __name__ == "__main__":
    main()

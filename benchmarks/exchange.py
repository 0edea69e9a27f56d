"""What the exchange of gradients costs a step: two processes on this machine over gloo, one thread each.

Four kinds of step in turn, one of each a round, each with half of the batch in a process: alone (one process; the other
waits), apart (both, no gradient exchanged), after (both; gradients are exchanged when the backward pass is done) and
overlapped (both; torch's DDP exchanges them in buckets while the backward pass runs, as training does). A step lasts
until the slower process is done. The exchange costs overlapped - apart, of after - apart without overlap; apart - alone
is what two processes take from one another in memory, cache and clock. Medians over the rounds, in which other load hits
all kinds alike. Processes of one machine send through memory, so this is the least that gloo costs.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from iddpm.data.loader import Batch
from iddpm.experiment.build import build_net, build_task
from iddpm.experiment.config import RunConfig
from iddpm.experiment.recipes import recipe
from iddpm.runtime.machine import provenance
from iddpm.runtime.world import World, close_world, open_world
from iddpm.training.clock import PhaseClock
from iddpm.training.distribution import Replicated
from iddpm.training.state import new_state
from iddpm.training.step import train_step

RECORDS = Path(__file__).parent / "records"
PROCESSES = 2
KINDS = ("alone", "apart", "after", "overlapped")
BUCKET_BYTES = 25 * 2**20  # DDP's own
FEWEST_ROUNDS = 5


@dataclass(frozen=True, kw_only=True)
class Net:
    """What is trained: a recipe's net of some width, on pictures of `size`, `batch_size` of them a step in all.

    The net takes pictures of any size; smaller ones make steps short enough to be repeated.
    """

    recipe: str
    channels: int
    size: int
    batch_size: int

    def config(self) -> RunConfig:
        """In float32, with the recipe's optimizer and one average."""
        config = recipe(self.recipe).config()
        return replace(
            config,
            net=replace(config.net, channels=self.channels),  # pyright: ignore[reportArgumentType]  # U-Nets all
            train=replace(config.train, batch_size=self.batch_size, precision="float32"),
        )


NETS = (
    Net(recipe="cifar10", channels=64, size=32, batch_size=4),
    Net(recipe="imagenet64", channels=128, size=32, batch_size=2),
)


def main() -> None:
    """Start the processes; in them measure, print, write a record."""
    flags = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    flags.add_argument(
        "--seconds", type=float, default=110.0, help="of measurement for each net (default: %(default)s)"
    )
    seconds: float = flags.parse_args().seconds
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        sys.exit(subprocess.run([sys.executable, *launch, __file__, *sys.argv[1:]], env=environment).returncode)
    world, load = open_world("cpu"), os.getloadavg()
    nets = [_measured(net, world, seconds) for net in NETS]
    if world.is_first:
        told = provenance(world.device)
        record = {name: told[name] for name in ("started", "device", "git_commit", "torch")}
        record = {"command": "benchmarks/exchange.py"} | record  # of the processes' own, the path is this machine's
        record |= {"processes": PROCESSES, "load_average": {"before": load, "after": os.getloadavg()}, "nets": nets}
        path = RECORDS / f"exchange-{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%SZ}.json"
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        for net in nets:
            print(_line(net))
        print(path)
    close_world()


class _Steps:
    """One net in this process, and a step of each kind. Weights drift apart between processes, which costs no time."""

    def __init__(self, net: Net, world: World):
        config = net.config()
        module = build_net(config, world.device)
        self.spread = _Replicated(module, world)
        self.state = new_state(
            build_task(config, module, world.device, self.spread), config.optimizer, config.train, self.spread
        )
        self.config, self.world, self.clock = config.train, world, PhaseClock()
        self.parameters = sum(parameter.numel() for parameter in module.parameters())
        rows = world.rows(net.batch_size)
        place = torch.arange(net.batch_size)[rows]
        shape = (len(place), config.data.channels, net.size, net.size)
        self.batch = Batch(torch.randint(256, shape, dtype=torch.uint8), None, place, place)

    def take(self, kind: str) -> None:
        """One step."""
        if kind == "overlapped":
            self._step(self.world)
        elif kind == "alone":
            if self.world.is_first:
                with self.spread.alone():
                    self._step(World(rank=0, size=1, device=self.world.device))
        else:
            self.spread.exchanges_after = kind == "after"
            with self.spread.accumulating():
                self._step(self.world)
            self.spread.exchanges_after = False

    def _step(self, world: World) -> None:
        own = replace(self.config, batch_size=len(self.batch)) if world.size == 1 else self.config
        train_step(self.state, self.batch, own, world, self.clock)


class _Replicated(Replicated):
    """Can also exchange the gradients where they are asked for, once the backward pass is done."""

    exchanges_after = False

    def gradients(self) -> list[Tensor]:
        gradients = super().gradients()
        if self.exchanges_after:
            for bucket in _buckets(gradients):
                flat = torch.cat([gradient.flatten() for gradient in bucket]).div_(PROCESSES)
                dist.all_reduce(flat)
                means = flat.split([gradient.numel() for gradient in bucket])
                torch._foreach_copy_(bucket, [m.view_as(g) for m, g in zip(means, bucket, strict=True)])
            self.exchanges_after = False  # a step asks for them twice
        return gradients


def _buckets(gradients: list[Tensor]) -> list[list[Tensor]]:
    buckets: list[list[Tensor]] = [[]]
    for gradient in gradients:
        if sum(g.nbytes for g in buckets[-1]) + gradient.nbytes > BUCKET_BYTES and buckets[-1]:
            buckets.append([])
        buckets[-1].append(gradient)
    return buckets


def _measured(net: Net, world: World, seconds: float) -> dict[str, Any]:
    steps = _Steps(net, world)
    taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
    sent: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for kind in ("overlapped", *KINDS):  # allocations, and DDP lays out its buckets after the first
        _timed(steps, kind)
    until, number = time.monotonic() + seconds, 0
    while _agreed(number < FEWEST_ROUNDS or time.monotonic() < until):
        for place in range(len(KINDS)):
            kind = KINDS[(place + number) % len(KINDS)]
            before = _sent_bytes()
            taken[kind].append(_timed(steps, kind))
            sent[kind].append(_sent_bytes() - before)
        number += 1
    return _figures(net, steps, taken, sent)


def _timed(steps: _Steps, kind: str) -> float:
    """Seconds of a step in the slower of the processes."""
    dist.barrier()
    began = time.perf_counter()
    steps.take(kind)
    lasted = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
    dist.all_reduce(lasted, dist.ReduceOp.MAX)
    return lasted.item()


def _agreed(goes_on: bool) -> bool:
    """What the first process says."""
    said = torch.tensor(int(goes_on))
    dist.broadcast(said, 0)
    return bool(said)


def _sent_bytes() -> int:
    """What has gone through the loopback interface so far, of all processes of the machine; 0 where nobody counts."""
    counts = Path("/proc/net/dev")
    lines = counts.read_text().splitlines() if counts.exists() else []
    return next((int(line.split()[9]) for line in lines if line.split()[0] == "lo:"), 0)


def _figures(net: Net, steps: _Steps, taken: dict[str, list[float]], sent: dict[str, list[int]]) -> dict[str, Any]:
    """Costs are medians of the differences within a round."""
    gradient_bytes = 4 * steps.parameters
    middle = {kind: median(values) for kind, values in taken.items()}
    overlapped, after = (
        [value - apart for value, apart in zip(taken[kind], taken["apart"], strict=True)]
        for kind in ("overlapped", "after")
    )
    shares = [value / apart for value, apart in zip(overlapped, taken["apart"], strict=True)]
    return {
        "recipe": net.recipe,
        "channels": net.channels,
        "picture_size": net.size,
        "batch_size": net.batch_size,
        "parameters": steps.parameters,
        "gradient_bytes": gradient_bytes,
        "rounds": len(shares),
        "seconds_per_step": middle,
        "exchange_seconds": median(overlapped),
        "exchange_seconds_without_overlap": median(after),
        "hidden_share": 1 - median(overlapped) / median(after),
        "exchange_share_of_step": median(shares),
        "exchange_share_quartiles": quantiles(shares, n=4),
        "efficiency": middle["alone"] / middle["overlapped"],
        "sent_bytes_per_process": 2 * (PROCESSES - 1) * gradient_bytes // PROCESSES,
        "sent_bytes_per_process_measured": round((median(sent["overlapped"]) - median(sent["apart"])) / PROCESSES),
        "step_seconds": {kind: [round(value, 4) for value in values] for kind, values in taken.items()},
    }


def _line(net: dict[str, Any]) -> str:
    seconds = ", ".join(f"{kind} {value:.3f} s" for kind, value in net["seconds_per_step"].items())
    low, middle, high = net["exchange_share_quartiles"]
    return (
        f"{net['parameters'] / 1e6:.1f}M parameters, batch {net['batch_size']} at {net['picture_size']}x"
        f"{net['picture_size']}: {seconds}; the exchange adds {net['exchange_seconds']:.3f} s, {middle:+.0%} (half of "
        f"{net['rounds']} rounds from {low:+.0%} to {high:+.0%}), without overlap "
        f"{net['exchange_seconds_without_overlap']:.3f} s; {net['sent_bytes_per_process'] / 1e6:.0f} MB sent a process "
        f"({net['sent_bytes_per_process_measured'] / 1e6:.0f} counted)"
    )


if __name__ == "__main__":
    main()

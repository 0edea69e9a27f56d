"""A whole training step and a whole sampling step, against diffusers with the same net, turn by turn in one process.

The net: 32x32, 64 channels, multipliers 1 2 2 2, 3 blocks, attention at 16 and 8 with 4 heads, learned variance: 13.2M
parameters. Batch 16, L_hybrid, cosine, T = 4000, gradients clipped at 1, AdamW, EMA 0.9999.

Both sides take turns step by step, so that what else the machine does falls on both; the ratio is the median over pairs.
Beside seconds on the clock the record has seconds of processor time, which other programs disturb less.
"""

import argparse
import datetime
import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import diffusers
import torch
from diffusers_peer import Peer
from ours import CPU, Ours

from iddpm.runtime.machine import cpu_name, provenance
from iddpm.runtime.precision import fast_bf16

RECORDS = Path(__file__).parent / "records"
BATCH_SIZE, TIMESTEPS = 16, 4000
WARM_UP = 1


def main() -> None:
    """Measure, print a table, write a record."""
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--pairs", type=int, default=7, help="turns that count, for each side (default: %(default)s)")
    flags.add_argument("--threads", type=int, default=os.cpu_count(), help="(default: %(default)s)")
    flags.add_argument(
        "--channels-last", choices=("auto", "yes", "no"), default="auto", help="ours (default: %(default)s)"
    )
    flags.add_argument("--out", type=Path, default=RECORDS, help="folder of the record (default: %(default)s)")
    arguments = flags.parse_args()
    torch.set_num_threads(arguments.threads)
    sides = _sides(arguments.channels_last)
    load_before = os.getloadavg()
    measured = {
        "training_step": _turns({name: side.train for name, side in sides.items()}, arguments.pairs),
        "sampling_step": _turns(_next_steps(sides, arguments.pairs), arguments.pairs),
    }
    record = {
        **provenance(CPU),
        "diffusers": diffusers.__version__,
        "cpu": cpu_name(),
        "cpu_flags": _telling_flags(),
        "fast_bf16": fast_bf16(CPU),
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "batch_size": BATCH_SIZE,
        "timesteps": TIMESTEPS,
        "channels_last": arguments.channels_last,
        "parameters": {name: sum(p.numel() for p in side.net.parameters()) for name, side in sides.items()},
        **measured,
    }
    _print(record)
    print(_write(record, arguments.out))


def _sides(channels_last: str) -> dict[str, Peer | Ours]:
    options = {"batch_size": BATCH_SIZE, "timesteps": TIMESTEPS}
    sides: dict[str, Peer | Ours] = {"diffusers": Peer(**options)}
    for precision in ("float32", "bf16") if fast_bf16(CPU) else ("float32",):
        sides[f"iddpm_{precision}"] = Ours(**options, channels_last=channels_last, precision=precision)
    return sides


def _next_steps(sides: dict[str, Peer | Ours], pairs: int) -> dict[str, Callable[[], object]]:
    walks = {name: iter(side.sampling(max(50, pairs + WARM_UP + 1))) for name, side in sides.items()}
    return {name: (lambda walk=walk: next(walk)) for name, walk in walks.items()}


def _turns(steps: dict[str, Callable[[], object]], pairs: int) -> dict[str, dict[str, float | list[float]]]:
    clock: dict[str, list[float]] = {name: [] for name in steps}
    processor: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(WARM_UP + pairs):
        for name, step in steps.items():
            began, spent = time.perf_counter(), _processor_seconds()
            step()
            if turn >= WARM_UP:
                clock[name].append(time.perf_counter() - began)
                processor[name].append(_processor_seconds() - spent)
    return {
        name: {
            "seconds": statistics.median(clock[name]),
            "images_per_second": BATCH_SIZE / statistics.median(clock[name]),
            "speed_up": _ratio(clock["diffusers"], clock[name]),
            "processor_seconds": statistics.median(processor[name]),
            "speed_up_by_processor_seconds": _ratio(processor["diffusers"], processor[name]),
            "all_seconds": clock[name],
        }
        for name in steps
    }


def _ratio(theirs: list[float], ours: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _telling_flags() -> list[str]:
    """Those of the processor's flags that decide how fast it multiplies matrices."""
    try:
        flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    except (OSError, StopIteration):
        return []
    telling = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")
    return [flag for flag in telling if flag in flags.split()]


def _print(record: dict) -> None:
    print(
        f"{record['device']}; torch {record['torch']}, diffusers {record['diffusers']}; load {record['load_average']['before'][0]:.1f}"
    )
    for kind in ("training_step", "sampling_step"):
        for name, row in record[kind].items():
            print(
                f"{kind:14} {name:14} {row['seconds']:7.3f} s  {row['images_per_second']:6.1f} images/s  "
                f"{row['speed_up']:5.2f}x ({row['speed_up_by_processor_seconds']:.2f}x by processor time)"
            )


def _write(record: dict, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"against-diffusers-{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


if __name__ == "__main__":
    main()

"""How fast pictures become a store, and a store becomes batches.

Preparing: JPEGs of 500x375 (about the size and weight of ImageNet's) against the decoder alone, run on all cores over the
same files, before and after, in this one run; and the peak of memory with few and with many pictures.
Loading: the batches of a store as training takes them, with the files in memory (warm) and after they were dropped from
it (cold), against the fastest training step of that size on this machine: that of the demo's small net.
"""

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image

from iddpm.data.loader import Batch, Batches, Prefetch
from iddpm.data.store import Store, open_store
from iddpm.experiment.build import build_net, build_task
from iddpm.experiment.recipes import recipe
from iddpm.runtime.cores import usable_cores
from iddpm.runtime.machine import cpu_name, provenance
from iddpm.runtime.world import World
from iddpm.training.clock import PhaseClock
from iddpm.training.state import new_state
from iddpm.training.step import train_step

RECORDS = Path(__file__).parent / "records"
CPU = torch.device("cpu")
WIDTH, HEIGHT, QUALITY = 500, 375, 90
LOADED = {32: 128, 64: 128, 256: 64}  # size: batch
PREPARE = """
import json, resource, sys, time
from pathlib import Path
from iddpm.data.preparing import prepare
began = time.perf_counter()
result = prepare(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), fast_jpeg=sys.argv[4] == "fast")
peak = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF,)) * 1024
children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
print(json.dumps({"used": len(result.store), "seconds": result.seconds, "peak_bytes": peak, "largest_child_bytes": children}))
"""


def main() -> None:
    """Measure, print, write a record."""
    flags = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    flags.add_argument("--pictures", type=int, default=50_000, help="JPEGs to prepare (default: %(default)s)")
    flags.add_argument("--size", type=int, default=64, help="of the store (default: %(default)s)")
    flags.add_argument("--work", type=Path, default=Path("build/bench-data"), help="scratch (default: %(default)s)")
    flags.add_argument("--out", type=Path, default=RECORDS, help="folder of the record (default: %(default)s)")
    arguments = flags.parse_args()
    many = _jpegs(arguments.work / f"{arguments.pictures}", arguments.pictures)
    few = _jpegs(arguments.work / "1000", 1000)
    record = {
        **provenance(CPU),
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "load_average": os.getloadavg(),
        "prepare": _measure_prepare(arguments, few, many),
        "load": {str(size): _measure_load(arguments.work, size, batch) for size, batch in LOADED.items()},
    }
    _print(record)
    path = arguments.out / f"data-{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(path)


def _jpegs(folder: Path, count: int) -> Path:
    """A folder of different JPEGs, made once."""
    if not (folder / "made").is_file():
        print(f"making {count} JPEGs ...", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(usable_cores()) as pool:
            parts = range(0, count, 500)
            list(pool.map(partial(_make, folder), parts, [min(at + 500, count) for at in parts]))
        (folder / "made").touch()
    return folder


def _make(folder: Path, start: int, stop: int) -> None:
    canvas = _canvas(start)
    draw = np.random.default_rng(start)
    target = folder / f"{start:06d}"
    target.mkdir(exist_ok=True)
    for number in range(start, stop):
        top, left = draw.integers(0, 2048 - HEIGHT), draw.integers(0, 2048 - WIDTH)
        Image.fromarray(canvas[top : top + HEIGHT, left : left + WIDTH]).save(
            target / f"{number:06d}.jpg", quality=QUALITY, subsampling=0
        )


def _canvas(seed: int) -> np.ndarray:
    """Noise at every scale, as photographs have it: its spectrum falls with the frequency."""
    draw = np.random.default_rng(seed)
    canvas = np.zeros((2048, 2048, 3), np.float32)
    for cells in (4, 8, 16, 32, 64, 128, 256, 512, 1024):
        for channel in range(3):
            coarse = Image.fromarray(draw.normal(size=(cells, cells)).astype(np.float32))
            canvas[..., channel] += np.asarray(coarse.resize((2048, 2048), Image.Resampling.BICUBIC)) / cells**0.5
    canvas -= canvas.min()
    return (canvas / canvas.max() * 255).astype(np.uint8)


def _measure_prepare(arguments: argparse.Namespace, few: Path, many: Path) -> dict[str, Any]:
    files = sorted(map(str, many.rglob("*.jpg")))
    sample = files[:: max(1, len(files) // 6000)]
    bytes_each = sum(os.path.getsize(file) for file in sample) / len(sample)
    decoder, ours, fast = [_decode_speed(sample)], [], []
    small = _prepared(arguments, few, "exact")
    for _ in range(1):
        ours.append(_prepared(arguments, many, "exact"))
        decoder.append(_decode_speed(sample))
        fast.append(_prepared(arguments, many, "fast"))
        decoder.append(_decode_speed(sample))
    speed = {
        "exact": [each["used"] / each["seconds"] for each in ours],
        "fast": [each["used"] / each["seconds"] for each in fast],
    }
    return {
        "pictures": len(files),
        "bytes_each": bytes_each,
        "size": arguments.size,
        "decoder_per_second": decoder,
        "prepared_per_second": speed["exact"],
        "prepared_fast_jpeg_per_second": speed["fast"],
        "ratio_to_decoder": median(speed["exact"]) / median(decoder),
        "ratio_to_decoder_fast_jpeg": median(speed["fast"]) / median(decoder),
        "peak_bytes": {"1000": small["peak_bytes"], str(len(files)): max(each["peak_bytes"] for each in ours)},
        "largest_child_bytes": {"1000": small["largest_child_bytes"], str(len(files)): ours[0]["largest_child_bytes"]},
    }


def _prepared(arguments: argparse.Namespace, source: Path, how: str) -> dict[str, Any]:
    out = arguments.work / "store"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-c", PREPARE, str(source), str(arguments.size), str(out), how]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _decode_speed(files: list[str]) -> float:
    """Files read and decoded in a second by as many processes as there are cores, and nothing else done with them."""
    with ProcessPoolExecutor(usable_cores()) as pool:
        list(pool.map(_decode, [files[:10]] * usable_cores()))  # the processes have started
        began = time.perf_counter()
        list(pool.map(_decode, [files[at : at + 50] for at in range(0, len(files), 50)]))
        return len(files) / (time.perf_counter() - began)


def _decode(files: list[str]) -> None:
    for file in files:
        with Image.open(file) as image:
            image.load()


def _measure_load(work: Path, size: int, batch_size: int) -> dict[str, Any]:
    store = _store(work, size)
    step = _step_images_per_second(size)
    drop_cache(store)
    cold = _loaded_per_second(store, batch_size)
    warm = [_loaded_per_second(store, batch_size) for _ in range(3)]
    return {
        "pictures": store.count,
        "batch_size": batch_size,
        "training_images_per_second": step,
        "cold_images_per_second": cold,
        "warm_images_per_second": median(warm),
        "ratio_cold": cold / step,
        "ratio_warm": median(warm) / step,
    }


def _store(work: Path, size: int) -> Store:
    """About 600 MB of noise."""
    place = work / f"noise-{size}"
    if not place.is_dir():
        from iddpm.data.preparing import prepare

        count = 600_000_000 // (3 * size * size)
        np.savez(work / "noise.npz", np.random.default_rng(0).integers(0, 256, (count, size, size, 3), np.uint8))
        prepare(work / "noise.npz", size, place)
        (work / "noise.npz").unlink()
    return open_store(place)


def drop_cache(store: Store) -> None:
    """Drop a store's shards from the system's page cache."""
    for file in store.path.glob("images-*"):
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def _loaded_per_second(store: Store, batch_size: int) -> float:
    """Two thirds of an epoch, with flips, as training takes it."""
    batches = Batches(open_store(store.path), "train", batch_size, seed=0, flip=True)
    steps = batches.epoch_size * 2 // 3 // batch_size
    began = time.perf_counter()
    with Prefetch(batches, 0, steps) as stream:
        loaded = sum(len(batch) for _, batch in stream)
    return loaded / (time.perf_counter() - began)


def _step_images_per_second(size: int, batch_size: int = 16, steps: int = 5) -> float:
    """The demo's net, the smallest that there is, at a size."""
    config = recipe("demo").config()
    config = replace(config, data=replace(config.data, size=size), train=replace(config.train, batch_size=batch_size))
    state = new_state(build_task(config, build_net(config, CPU), CPU), config.optimizer, config.train)
    world, clock, seconds = World(rank=0, size=1, device=CPU), PhaseClock(), []
    images = torch.randint(
        0, 256, (batch_size, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    place = torch.arange(batch_size)
    for _ in range(steps):
        began = time.perf_counter()
        train_step(state, Batch(images, place % 10, place, place), config.train, world, clock)
        seconds.append(time.perf_counter() - began)
    return batch_size / median(seconds[1:])


def _print(record: dict[str, Any]) -> None:
    told = record["prepare"]
    print(f"{record['device']}, {record['cores']} cores, Pillow {record['pillow']}")
    print(
        f"prepare {told['pictures']} JPEGs of {told['bytes_each'] / 1e3:.0f} kB at {told['size']}: "
        f"{median(told['prepared_per_second']):.0f}/s, with --fast-jpeg {median(told['prepared_fast_jpeg_per_second']):.0f}/s; "
        f"the decoder alone {median(told['decoder_per_second']):.0f}/s; "
        f"ratios {told['ratio_to_decoder']:.2f} and {told['ratio_to_decoder_fast_jpeg']:.2f}"
    )
    print("peak memory, MB: " + ", ".join(f"{n} pictures {b / 1e6:.0f}" for n, b in told["peak_bytes"].items()))
    for size, row in record["load"].items():
        print(
            f"load {size}x{size}: warm {row['warm_images_per_second']:.0f} images/s ({row['ratio_warm']:.0f}x the step's "
            f"{row['training_images_per_second']:.1f}), cold {row['cold_images_per_second']:.0f} ({row['ratio_cold']:.0f}x)"
        )


if __name__ == "__main__":
    main()

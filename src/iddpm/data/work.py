"""Pictures of a source in order, read on all cores, with no more than a few batches in memory."""

import os
import signal
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from iddpm.data.listing import LeftOut, Picture, Reader, Source
from iddpm.data.resize import UnusablePictureError
from iddpm.runtime.errors import DataError

__all__ = ["outcomes", "usable_cores"]

CHUNK = 16
AHEAD = 4  # chunks in flight for each worker
WORTH_PROCESSES = 400  # fewer pictures are read before two processes have started


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def outcomes(source: Source, size: int, channels: int, workers: int | None = None) -> Iterator[Picture | LeftOut]:
    """Each picture of a source, or why it cannot be used, in the order of the listing.

    Args:
        source: What to read.
        size: Side of the pictures.
        channels: 1 or 3.
        workers: How many at a time; None takes all usable cores. The result does not depend on it.

    Raises:
        DataError: A worker process died.
    """
    names = source.listing.names
    workers = workers or usable_cores()
    with warnings.catch_warnings():
        _silence_decoders()
        if workers == 1 or len(names) <= CHUNK or (source.in_processes and len(names) < WORTH_PROCESSES):
            yield from _chunk(source.read, names, 0, size, channels)
        else:
            yield from _in_pool(source, size, channels, workers)


def _in_pool(source: Source, size: int, channels: int, workers: int) -> Iterator[Picture | LeftOut]:
    names = source.listing.names
    starts = iter(range(0, len(names), CHUNK))
    pool = _pool(source.in_processes, workers)
    pending: deque[Future[list[Picture | LeftOut]]] = deque()

    def submit() -> None:
        for start in starts:
            pending.append(pool.submit(_chunk, source.read, names[start : start + CHUNK], start, size, channels))
            return

    try:
        for _ in range(AHEAD * workers):
            submit()
        while pending:
            done = pending.popleft().result()
            submit()
            yield from done
    except BrokenProcessPool as error:
        raise DataError(
            f"{source.listing.source}: a process that prepares pictures died",
            "one process may do: use 1 worker (a script that starts this needs `if __name__ == '__main__'`)",
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _pool(in_processes: bool, workers: int) -> Executor:
    if in_processes:
        return ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start_process)
    return ThreadPoolExecutor(workers, thread_name_prefix="pictures")


def _start_process() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which ends the pool
    _silence_decoders()


def _silence_decoders() -> None:
    """A decoder's warning on a picture that it can read helps nobody; what it cannot read it raises."""
    warnings.filterwarnings("ignore", module=r"PIL(\..*)?$")


def _chunk(read: Reader, names: tuple[str, ...], start: int, size: int, channels: int) -> list[Picture | LeftOut]:
    return [_outcome(read, name, start + index, size, channels) for index, name in enumerate(names)]


def _outcome(read: Reader, name: str, index: int, size: int, channels: int) -> Picture | LeftOut:
    try:
        return read(index, size, channels)
    except UnusablePictureError as error:
        return LeftOut(name, str(error))

"""Pictures of a source in order, read on all cores, with no more than a few batches in memory."""

import os
import signal
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from typing import Any

from iddpm.data.frame import Frame, Picture, UnsuitablePictureError, UnusablePictureError
from iddpm.data.listing import Damaged, LeftOut, Reader, Source
from iddpm.runtime.errors import DataError

__all__ = ["outcomes", "usable_cores"]

CHUNK = 16
AHEAD = 4  # chunks in flight for each worker
WORTH_PROCESSES = 400  # fewer pictures are read before two processes have started


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def outcomes(source: Source, frame: Frame, start: int = 0, workers: int | None = None) -> Iterator[Picture | LeftOut]:
    """Each picture of a source, or why it is not used, in the order of the listing.

    Args:
        source: What to read.
        frame: What to bring the pictures to.
        start: The first place of the listing to read.
        workers: How many at a time; None takes all usable cores. The result does not depend on it.

    Raises:
        DataError: A worker process died.
    """
    count = len(source.places) - start
    workers = workers or usable_cores()
    with warnings.catch_warnings():
        _silence_decoders()
        if workers == 1 or count <= CHUNK or (source.in_processes and count < WORTH_PROCESSES):
            for job in _jobs(source, frame, start):
                yield from _work(*job)
        else:
            yield from _in_pool(source, frame, start, workers)


def _jobs(source: Source, frame: Frame, start: int) -> Iterator[tuple[Reader, Sequence[Any], Sequence[str], Frame]]:
    for at in range(start, len(source.places), CHUNK):
        part = slice(at, at + CHUNK)
        yield source.read, source.places[part], source.listing.names[part], frame


def _in_pool(source: Source, frame: Frame, start: int, workers: int) -> Iterator[Picture | LeftOut]:
    jobs = _jobs(source, frame, start)
    pool = _pool(source.in_processes, workers)
    pending: deque[Future[list[Picture | LeftOut]]] = deque()
    try:
        pending.extend(pool.submit(_work, *job) for job in islice(jobs, AHEAD * workers))
        while pending:
            done = pending.popleft().result()
            pending.extend(pool.submit(_work, *job) for job in islice(jobs, 1))
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


def _work(read: Reader, places: Sequence[Any], names: Sequence[str], frame: Frame) -> list[Picture | LeftOut]:
    return [_outcome(read, place, name, frame) for place, name in zip(places, names, strict=True)]


def _outcome(read: Reader, place: Any, name: str, frame: Frame) -> Picture | LeftOut:
    try:
        return read(place, frame)
    except UnsuitablePictureError as error:
        return LeftOut(name, str(error))
    except UnusablePictureError as error:
        return Damaged(name, str(error))

"""Pictures of a source in order, read on all cores, with no more than a few batches in memory."""

import signal
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from typing import Any

from iddpm.data.frame import Frame, UnsuitablePictureError, UnusablePictureError
from iddpm.data.listing import Damaged, LeftOut, Pool, Reader, Source
from iddpm.data.shards import Encoding, encoded
from iddpm.data.split import digest
from iddpm.runtime.cores import usable_cores
from iddpm.runtime.errors import DataError

__all__ = ["Done", "outcomes"]

CHUNK = 16
AHEAD = 4  # chunks in flight for each worker
MOST_THREADS = 8  # that decode at the same time before they wait for the interpreter lock
WORTH_PROCESSES = 400  # fewer pictures are read before two processes have started


@dataclass(frozen=True, kw_only=True, eq=False)
class Done:
    """A picture ready to be stored.

    Attributes:
        content: Its pixels as they are stored.
        digest: Stands for its pixels (`iddpm.data.split.digest`).
        cropped: It was not square.
        enlarged: Its shorter side was below the size.
    """

    content: bytes
    digest: bytes
    cropped: bool
    enlarged: bool


def outcomes(
    source: Source, frame: Frame, encoding: Encoding = "raw", *, start: int = 0, workers: int | None = None
) -> Iterator[Done | LeftOut]:
    """Each picture of a source, or why it is not used, in the order of the listing.

    Args:
        source: What to read.
        frame: What to bring the pictures to.
        encoding: How their pixels are stored.
        start: The first place of the listing to read.
        workers: How many at a time; None takes all usable cores. The result does not depend on it.

    Raises:
        DataError: A worker process died.
    """
    count = len(source.places) - start
    workers = workers or usable_cores()
    with warnings.catch_warnings():
        _silence_decoders()
        if workers == 1 or count <= CHUNK or (source.pool == "processes" and count < WORTH_PROCESSES):
            for job in _jobs(source, frame, encoding, start):
                yield from _work(*job)
        else:
            yield from _in_pool(source, frame, encoding, start, workers)


def _jobs(source: Source, frame: Frame, encoding: Encoding, start: int) -> Iterator[tuple[Any, ...]]:
    """The arguments of `_work` for each chunk."""
    for at in range(start, len(source.places), CHUNK):
        part = slice(at, at + CHUNK)
        yield source.read, source.places[part], source.listing.names[part], frame, encoding


def _in_pool(source: Source, frame: Frame, encoding: Encoding, start: int, workers: int) -> Iterator[Done | LeftOut]:
    jobs = _jobs(source, frame, encoding, start)
    pool = _pool(source.pool, workers)
    pending: deque[Future[list[Done | LeftOut]]] = deque()
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


def _pool(kind: Pool, workers: int) -> Executor:
    if kind == "processes" or (kind == "either" and workers > MOST_THREADS):
        return ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start_process)
    return ThreadPoolExecutor(workers, thread_name_prefix="pictures")


def _start_process() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which ends the pool
    _silence_decoders()


def _silence_decoders() -> None:
    """A decoder's warning on a picture that it can read helps nobody; what it cannot read it raises."""
    warnings.filterwarnings("ignore", module=r"PIL(\..*)?$")


def _work(
    read: Reader, places: Sequence[Any], names: Sequence[str], frame: Frame, encoding: Encoding
) -> list[Done | LeftOut]:
    return [_outcome(read, place, name, frame, encoding) for place, name in zip(places, names, strict=True)]


def _outcome(read: Reader, place: Any, name: str, frame: Frame, encoding: Encoding) -> Done | LeftOut:
    try:
        picture = read(place, frame)
    except UnsuitablePictureError as error:
        return LeftOut(name, str(error))
    except UnusablePictureError as error:
        return Damaged(name, str(error))
    raw = picture.pixels.tobytes()
    return Done(
        content=raw if encoding == "raw" else encoded(picture.pixels),
        digest=digest(raw),
        cropped=picture.width != picture.height,
        enlarged=min(picture.width, picture.height) < frame.size,
    )

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
from iddpm.data.listing import Damaged, LeftOut, Reader, Source
from iddpm.data.shards import Encoding, encoded
from iddpm.data.split import digest
from iddpm.runtime.cores import usable_cores
from iddpm.runtime.errors import DataError

__all__ = ["Done", "outcomes"]

CHUNK = 16  # pictures, at most, that a worker is handed at once
CHUNK_BYTES = 1 << 22  # of their pixels in the frame, about
AHEAD = 4  # chunks in flight for each worker
MOST_THREADS = 8  # that decode at the same time before they wait for the interpreter lock
WORTH_PROCESSES = 400  # fewer drawn pictures are ready before two processes have started
MANY = 4000  # the same for pictures that are decoded


@dataclass(frozen=True, kw_only=True, eq=False)
class Done:
    """A picture ready to be stored.

    Attributes:
        content: Its pixels as they are stored.
        digest: Stands for its pixels (`iddpm.data.split.digest`).
        origin: The same for what the source has of it.
        cropped: It was not square.
        enlarged: Its shorter side was below the size.
    """

    content: bytes
    digest: bytes
    origin: bytes
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
        DataError: A worker process died, or the source fails.
    """
    workers = workers or usable_cores()
    jobs = _Jobs(source, frame, encoding)
    count = len(source.places) - start
    with warnings.catch_warnings():
        _silence_decoders()
        if workers == 1 or count <= CHUNK or (source.pool == "processes" and count < WORTH_PROCESSES):
            for job in jobs.chunks(start):
                yield from _work(*job)
        elif source.pool == "threads" or (source.pool == "either" and (workers <= MOST_THREADS or count < MANY)):
            yield from _in_pool(jobs, start, workers, _threads(workers))
        else:
            yield from _in_processes(jobs, start, workers)


@dataclass(frozen=True)
class _Jobs:
    """What is to be done with the pictures of a source, in chunks."""

    source: Source
    frame: Frame
    encoding: Encoding

    @property
    def chunk(self) -> int:
        """Pictures in a chunk."""
        return max(1, min(CHUNK, CHUNK_BYTES // (self.frame.channels * self.frame.size**2)))

    def chunks(self, start: int) -> Iterator[tuple[Any, ...]]:
        """The arguments of `_work`, chunk by chunk."""
        for at in range(start, len(self.source.places), self.chunk):
            part = slice(at, at + self.chunk)
            yield self.source.read, self.source.places[part], self.source.listing.names[part], self.frame, self.encoding


def _in_processes(jobs: _Jobs, start: int, workers: int) -> Iterator[Done | LeftOut]:
    """Processes read; where none can be started, and threads may as well, threads do."""
    done = 0
    try:
        for outcome in _in_pool(jobs, start, workers, _processes(workers)):
            done += 1
            yield outcome
    except BrokenProcessPool as error:
        if done == 0 and jobs.source.pool == "either":
            yield from _in_pool(jobs, start, workers, _threads(workers))
            return
        raise DataError(
            f"{jobs.source.listing.source}: a process that prepares pictures died, perhaps for want of memory",
            "the same command goes on from there; --workers 1 needs the least memory (a script that starts this needs `if __name__ == '__main__'`)",
        ) from error


def _in_pool(jobs: _Jobs, start: int, workers: int, pool: Executor) -> Iterator[Done | LeftOut]:
    chunks = jobs.chunks(start)
    pending: deque[Future[list[Done | LeftOut]]] = deque()
    try:
        pending.extend(pool.submit(_work, *job) for job in islice(chunks, AHEAD * workers))
        while pending:
            done = pending.popleft().result()
            pending.extend(pool.submit(_work, *job) for job in islice(chunks, 1))
            yield from done
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _threads(workers: int) -> Executor:
    return ThreadPoolExecutor(workers, thread_name_prefix="pictures")


def _processes(workers: int) -> Executor:
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start_process)


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
        origin=picture.origin,
        cropped=picture.width != picture.height,
        enlarged=min(picture.width, picture.height) < frame.size,
    )

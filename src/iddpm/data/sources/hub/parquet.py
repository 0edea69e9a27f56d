"""A column of Parquet files, row by row, in little memory and without a copy on the disk.

Parquet is read in runs of rows, not from any place. Rows are asked for nearly in order, though, by several threads at a
time: one stream decodes each run once, and a run is kept until all its rows are taken.
"""

import bisect
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from iddpm.data.frame import UnusablePictureError
from iddpm.data.names import one_line
from iddpm.data.sources.state import changed, content_state, source_failed, stamp
from iddpm.runtime.cores import usable_cores
from iddpm.runtime.errors import DataError

__all__ = ["ParquetRows"]

RUN = 32  # rows


@dataclass(eq=False)
class _Run:
    start: int
    values: Any  # a pyarrow array
    taken: int = 0


@dataclass(frozen=True)
class _Group:
    """A row group: where decoding can start."""

    start: int
    file: Path
    number: int  # in its file


class ParquetRows:
    """The values of a column of some files, one file after the other; safe to call from several threads.

    Any order gives the same values; one that often goes back is slow.
    """

    def __init__(self, files: tuple[Path, ...], column: str):
        self._column = column
        self._states = {file: content_state(stamp(file.stat())) for file in files}
        self._groups = list(_groups(files))
        self._lock = threading.Lock()
        self._kept: list[_Run] = []
        self._most = 4 + 2 * usable_cores()  # runs: what all cores have in hand and in line
        self._stream: Iterator[_Run] = iter(())
        self._reached = -1  # the row that the stream brings next
        self._unreadable: dict[int, int] = {}  # group: its first row that cannot be decoded

    def __call__(self, row: int) -> Any:
        """The value of a row.

        Raises:
            UnusablePictureError: This part of its file cannot be decoded.
            DataError: The file has changed since it was listed, or cannot be read.
        """
        with self._lock:
            run = next((each for each in self._kept if 0 <= row - each.start < len(each.values)), None)
            run = self._read_to(row) if run is None else run
            run.taken += 1
            if run.taken == len(run.values):
                self._kept.remove(run)
        return run.values[row - run.start].as_py()

    def _read_to(self, row: int) -> _Run:
        at = bisect.bisect_right(self._groups, row, key=lambda group: group.start) - 1
        if row >= self._unreadable.get(at, row + 1):
            raise UnusablePictureError("this part of its Parquet file cannot be decoded")
        if row < self._reached or self._groups[at].start > self._reached:
            self._stream, self._reached = self._runs(at), self._groups[at].start
        try:
            while True:
                run = next(self._stream)
                self._reached = run.start + len(run.values)
                self._kept = [*self._kept[1 - self._most :], run]
                if row < self._reached:
                    return run
        except Exception as error:  # damaged pages and truncated files: Arrow and OS errors of many kinds
            failed = bisect.bisect_right(self._groups, self._reached, key=lambda group: group.start) - 1
            reached = self._reached
            self._stream, self._reached = iter(()), -1
            if isinstance(error, DataError):
                raise
            if isinstance(error, OSError) and error.errno is not None:
                raise source_failed(error, str(self._groups[max(0, failed)].file)) from error
            self._unreadable[failed] = reached
            raise UnusablePictureError(one_line(error, 1000) or type(error).__name__) from error

    def _runs(self, first: int) -> Iterator[_Run]:
        """What follows from a row group on."""
        from pyarrow.parquet import ParquetFile

        for file, groups in groupby(self._groups[first:], key=lambda group: group.file):
            if content_state(stamp(file.stat())) != self._states[file]:
                raise changed(str(file))
            with ParquetFile(file, memory_map=True, pre_buffer=False) as opened:
                for group in groups:  # one at a time: no run reaches from one into a damaged next
                    start = group.start
                    for batch in opened.iter_batches(RUN, row_groups=[group.number], columns=[self._column]):
                        yield _Run(start, batch.column(0))
                        start += batch.num_rows


def _groups(files: tuple[Path, ...]) -> Iterator[_Group]:
    from pyarrow.parquet import read_metadata

    start = 0
    for file in files:
        metadata = read_metadata(file)
        for number in range(metadata.num_row_groups):
            yield _Group(start, file, number)
            start += metadata.row_group(number).num_rows

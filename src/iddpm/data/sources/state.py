"""The state of files: whether one was touched since it was listed, and whose failure it is when one cannot be read."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from iddpm.data.frame import UnusablePictureError
from iddpm.data.names import one_line, printable
from iddpm.runtime.errors import DataError

__all__ = ["changed", "content_state", "failed", "failed_within", "file_state", "source_failed", "stamp"]

# What the system says of one file alone: no permission; and a decoder's jump to a place that no file has.
_OF_ONE = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.EOVERFLOW})
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})


def stamp(state: os.stat_result) -> tuple[int, int, int]:
    """What differs between two files, or once a file is touched: copies may share their size and time of change.

    Not their inode, which some file systems number anew at every mount.
    """
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns


def content_state(stamp: Sequence[int]) -> tuple[int, int]:
    """What of a stamp changes with a file's content, in 64 bits each: bytes and time of change."""
    return stamp[0], stamp[1] % (1 << 63)


def file_state(path: Path) -> list[object]:
    """Name and stamp of a file, for fingerprints.

    Raises:
        DataError: It cannot be seen.
    """
    try:
        return [path.name, *stamp(path.stat())]
    except OSError as error:
        raise DataError(f"{printable(str(path))}: {error.strerror}", "check the path, and the permissions") from error


def failed(error: OSError, name: str) -> UnusablePictureError | DataError:
    """What to raise for a listed picture that cannot be read: its own damage, or the failure of the whole source."""
    if error.errno in _OF_ONE:
        return UnusablePictureError(error.strerror or one_line(error))
    return source_failed(error, name)


def source_failed(error: OSError, name: str) -> DataError:
    """What to raise for a listed file whose failure is that of the source: a lost mount, a disk, too many open files."""
    what = f"{printable(name)}: {error.strerror or one_line(error)}"
    if error.errno in _GONE:
        return DataError(
            f"{what}: it was listed, and has gone since", "bring it back: the same command goes on from there"
        )
    return DataError(what, "once it can be read again, the same command goes on from there")


def failed_within(error: UnusablePictureError, name: str) -> UnusablePictureError | DataError:
    """What to raise for a picture that its decoder refused: it may be that its file could not be read."""
    cause = error.__cause__
    return failed(cause, name) if isinstance(cause, OSError) and cause.errno is not None else error


def changed(name: str) -> DataError:
    """What to raise for a file that is not the one that was listed."""
    return DataError(
        f"{printable(name)} has changed since it was listed", "once nothing changes it, give the same command again"
    )

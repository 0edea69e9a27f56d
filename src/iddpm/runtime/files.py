"""Files that are either whole or not there: written aside, flushed to the disk, then renamed."""

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from iddpm.runtime.errors import OutputError

__all__ = [
    "check_writable",
    "folder_aside",
    "held",
    "locked",
    "new_folder",
    "publish_folder",
    "remove_folder",
    "reported",
    "sha256_of",
    "sync_file",
    "to_json",
    "write_bytes",
    "write_json",
    "write_text",
]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def to_json(value: object) -> str:
    """JSON as the project writes it: indented, in the order given, NaN refused."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file atomically.

    Raises:
        OutputError: The folder is missing, read-only or full.
    """
    path = Path(path)
    with reported(path):
        aside = _hidden(path, ".part")
        try:
            with aside.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def write_text(path: Path, content: str) -> None:
    """Replace a UTF-8 text file atomically."""
    write_bytes(path, content.encode())


def write_json(path: Path, value: object) -> None:
    """Replace a JSON file atomically."""
    write_text(path, to_json(value))


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Build a folder aside and give it its name when the block ends; nothing is left when the block fails.

    A folder that stands there already is replaced as a whole.

    Raises:
        OutputError: The place cannot be written.
    """
    path = Path(path)
    aside = folder_aside(path)
    try:
        with reported(path, _FULL):
            yield aside
        publish_folder(aside, path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def folder_aside(path: Path) -> Path:
    """An empty folder of a hidden name, to be filled and given to `publish_folder`.

    Raises:
        OutputError: The place cannot be written.
    """
    with reported(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = _hidden(path, ".part")
        aside.mkdir()
    return aside


def publish_folder(aside: Path, path: Path) -> None:
    """Give a finished folder its name, once all its files are on the disk. A folder that stands there is replaced.

    Raises:
        OutputError: The place cannot be written.
    """
    with reported(path):
        for file in sorted(aside.rglob("*")):
            if file.is_file():
                sync_file(file)
        _sync_folder(aside)
        _replace_folder(aside, path)


def remove_folder(path: Path) -> None:
    """Remove a folder, under a hidden name, so that a kill on the way leaves no half of it under its own.

    Raises:
        OutputError: The place cannot be written.
    """
    with reported(path):
        old = _hidden(path, ".old")
        os.replace(path, old)
        shutil.rmtree(old)


@contextlib.contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a lock for the length of a block: a file that is there as long as a process has it or waits for it.

    Args:
        path: The file.
        on_wait: Called once where another process has it.

    Raises:
        OutputError: The file cannot be made.
    """
    while True:
        with reported(path):
            file = path.open("a")
        with file:
            if not held(file):
                on_wait()
                held(file, wait=True)
            # Who had it has removed its name: then this is a lock that nobody else will look for.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    try:
                        yield
                    finally:
                        path.unlink(missing_ok=True)
                    return


def held(file: IO[Any], wait: bool = False) -> bool:
    """Take an open file for this process alone, until it is closed; False where another process has it.

    Args:
        file: An open file.
        wait: Wait until the other process lets it go.
    """
    try:
        import fcntl
    except ImportError:  # Windows has no such lock
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def check_writable(folder: Path) -> None:
    """Make a folder and try to write in it, so that a bad place is found before any work.

    Raises:
        OutputError: The folder cannot be made or written.
    """
    with reported(Path(folder)):
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


def sha256_of(path: Path) -> str:
    """Hex digest of a file's content."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def reported(path: Path, numbers: frozenset[int] | None = None) -> Iterator[None]:
    """Turns system errors of a block (those of these numbers, or all) into one that names the place.

    Raises:
        OutputError: There was one.
    """
    try:
        yield
    except OSError as error:
        if numbers is not None and error.errno not in numbers:
            raise
        reason = error.strerror or str(error)
        raise OutputError(f"cannot write {path}: {reason}", "choose another place, or free it") from error


def _hidden(path: Path, suffix: str) -> Path:
    """A name beside `path` that nobody has. What is made under it gets the permissions that the umask allows."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}{suffix}")


def _replace_folder(aside: Path, path: Path) -> None:
    if path.exists():
        old = _hidden(path, ".old")
        os.replace(path, old)
        os.replace(aside, path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.replace(aside, path)
    _sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Wait until a file's content is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(path: Path) -> None:
    if os.name == "posix":
        sync_file(path)

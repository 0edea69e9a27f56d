"""Files from the network: under their name they are whole and checked, or they are not there.

A file grows as NAME.part, which an interruption or a kill leaves behind and the next call goes on with. The part
is also the lock: of several processes that want the file one downloads, the others wait for it. A file that
was put there by hand is taken once its size and digest are right; `.NAME.checked` remembers that they were.
"""

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from iddpm.data.progress import Tell
from iddpm.data.remote.receiving import DroppedError, FailedError, receive, size_of
from iddpm.runtime.errors import DataError, OutputError
from iddpm.runtime.files import write_text

if sys.platform != "win32":
    import fcntl

__all__ = ["Remote", "fetch"]

TRIES = 5  # that bring nothing, in a row
LOOK_AGAIN = 0.2  # seconds between two looks at what another process downloads


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A file on the network.

    Attributes:
        name: Its name here.
        urls: Where it is; tried in this order.
        bytes: Its size.
        digest: "sha256:..." or "md5:...", in hex.
    """

    name: str
    urls: tuple[str, ...]
    bytes: int
    digest: str


@dataclass(frozen=True, kw_only=True, eq=False)
class _Download:
    file: Remote
    path: Path
    part: IO[bytes]
    tell: Tell | None
    timeout: float
    pause: float

    def told(self) -> None:
        _told(self.tell, self.file, size_of(self.part))


def fetch(
    file: Remote,
    folder: Path,
    *,
    tell: Tell | None = None,
    mirror: str | None = None,
    timeout: float = 30.0,
    pause: float = 0.5,
) -> Path:
    """The path of a file in a folder, downloaded there unless it is there already.

    Args:
        file: What to fetch.
        folder: Where it goes; made if it is missing.
        tell: Told ("downloading NAME", bytes done, bytes in all), from what is there already.
        mirror: URL of a folder that has the file under its name; takes the place of the file's own URLs.
        timeout: Seconds without an answer, or without a byte, before a place is given up.
        pause: Seconds before another try after a dropped connection; doubles with each that brings nothing.

    Raises:
        DataError: No place gives the file, or what it gives is another file.
        OutputError: The folder cannot be written, or is full.
        ConfigError: The mirror is not a URL.
    """
    path, part = Path(folder) / file.name, Path(folder) / f"{file.name}.part"
    if _fault(file, path) is None:
        return path
    urls = file.urls if mirror is None else (f"{mirror.rstrip('/')}/{file.name}",)
    with _writing(path), _alone(file, part, tell) as opened:
        if (fault := _fault(file, path)) is not None:
            download = _Download(file=file, path=path, part=opened, tell=tell, timeout=timeout, pause=pause)
            _from_any(download, urls, fault)
            os.fsync(opened.fileno())
            os.replace(part, path)
            _remember(file, path)
    return path


def _told(tell: Tell | None, file: Remote, done: int) -> None:
    if tell is not None:
        tell(f"downloading {file.name}", done, file.bytes)


def _by_hand(path: Path) -> str:
    return f"or put the file there by hand: {path}"


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn what the system says of a folder or a disk into one line."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}",
            f"free some room or choose another place, {_by_hand(path)}",
        ) from error


@contextmanager
def _alone(file: Remote, path: Path, tell: Tell | None) -> Iterator[IO[bytes]]:
    """The part, open at its end, once no other process writes it. An empty one is removed afterwards."""
    while True:
        with open(path, "a+b", buffering=0) as part:
            while not _locked(part):
                _told(tell, file, min(size_of(part), file.bytes - 1))
                time.sleep(LOOK_AGAIN)
            if not _is_named(part, path):  # the other process has given it its final name, or removed it
                continue
            try:
                yield part
            finally:
                if _is_named(part, path) and not size_of(part):
                    path.unlink()
            return


def _locked(part: IO[bytes]) -> bool:
    """Take the lock; False while another has it. Where there are no locks, everybody has it."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: what two write at once, the digest refuses
        return True
    return True


def _is_named(part: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(part.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _from_any(download: _Download, urls: tuple[str, ...], fault: str) -> None:
    """Complete the part from the first place that gives the right file."""
    faults = []
    for url in urls:
        try:
            return _from_one(download, url)
        except FailedError as error:
            faults.append(f"{url}: {error}")
    there = f" (the one that is there {fault})" if download.path.exists() else ""
    raise DataError(
        f"cannot download {download.file.name}: {'; '.join(faults)}",
        f"check the network and try again, {_by_hand(download.path)}{there}",
    )


def _from_one(download: _Download, url: str) -> None:
    """Complete the part; what was put together from pieces gets a second chance in one piece."""
    in_pieces = _complete(download, url)
    wrong = _wrong_digest(download.file, download.part)
    if wrong and in_pieces:
        download.part.truncate(0)
        _complete(download, url)
        wrong = _wrong_digest(download.file, download.part)
    if wrong:
        download.part.truncate(0)
        raise FailedError(f"another file, it {wrong}")


def _complete(download: _Download, url: str) -> bool:
    """Ask until all is there. Returns whether some of it was there before the last answer."""
    part, total = download.part, download.file.bytes
    if size_of(part) > total:
        part.truncate(0)
    most, fruitless, in_pieces = size_of(part), 0, size_of(part) == total
    while size_of(part) != total:
        in_pieces = size_of(part) > 0
        try:
            receive(url, part, total, download.told, download.timeout)
        except DroppedError as error:
            fruitless = 0 if size_of(part) > most else fruitless + 1
            most = max(most, size_of(part))
            if fruitless == TRIES:
                raise FailedError(f"{error} ({TRIES} tries)") from error
            time.sleep(download.pause * 2**fruitless)
    return in_pieces


def _fault(file: Remote, path: Path) -> str | None:
    """What is wrong with the file under its name; None when it is whole and its digest is, or was, right."""
    try:
        size = path.stat().st_size
        if size != file.bytes:
            return f"has {size} bytes, not {file.bytes}"
        if _is_remembered(file, path):
            return None
        with path.open("rb") as opened:
            wrong = _wrong_digest(file, opened)
    except (FileNotFoundError, NotADirectoryError):
        return "is missing"
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}", "check its permissions") from error
    if wrong is None:
        _remember(file, path)
    return wrong


def _wrong_digest(file: Remote, opened: IO[bytes]) -> str | None:
    """How a file's digest differs, or None."""
    algorithm, _, expected = file.digest.partition(":")
    opened.seek(0)
    found = hashlib.file_digest(opened, algorithm).hexdigest()  # pyright: ignore[reportArgumentType]
    return None if found == expected else f"has {algorithm} {found}, not {expected}"


def _mark(path: Path) -> Path:
    return path.with_name(f".{path.name}.checked")


def _state(file: Remote, path: Path) -> str:
    """What the mark of a checked file says: it no longer holds once the file is touched."""
    return f"{file.digest} {file.bytes} {path.stat().st_mtime_ns}\n"


def _is_remembered(file: Remote, path: Path) -> bool:
    try:
        return _mark(path).read_bytes() == _state(file, path).encode()
    except OSError:
        return False


def _remember(file: Remote, path: Path) -> None:
    with suppress(OutputError):  # in a folder that cannot be written, the digest is checked each time
        write_text(_mark(path), _state(file, path))

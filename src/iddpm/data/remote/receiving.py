"""What one answer of a server brings, appended to a file that may hold the first part already."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, build_opener

from iddpm.runtime.errors import ConfigError

__all__ = ["DroppedError", "FailedError", "receive", "size_of"]

PIECE = 1 << 18
BUSY = frozenset({408, 429, 500, 502, 503, 504})


class FailedError(Exception):
    """A place does not give the file. The message says why."""


class DroppedError(FailedError):
    """The same, and it is worth another try."""


def size_of(part: IO[bytes]) -> int:
    """The bytes of an open file."""
    return os.fstat(part.fileno()).st_size


def receive(url: str, part: IO[bytes], total: int, told: Callable[[], None], timeout: float) -> None:
    """Ask for the rest of a file once, and append what comes.

    Args:
        url: Where the file is.
        part: Open for appending, unbuffered; emptied where the server starts again from the front.
        total: The bytes of the whole file.
        told: Called at the start and after each piece.
        timeout: Seconds without an answer, or without a byte, before it is given up.

    Raises:
        DroppedError: The connection ended early, or the server is busy.
        FailedError: This place has no such file, or another one, or cannot be reached.
        ConfigError: Not a URL.
    """
    with _network(timeout):
        answer = _answer(url, part, total, timeout)
    with answer:
        rest = total - size_of(part)
        length = answer.headers.get("Content-Length")
        if length is not None and length != str(rest):
            raise FailedError(f"it sends {length} bytes, not {rest}")
        told()
        while piece := _piece(answer, timeout):
            rest -= len(piece)
            if rest < 0:
                raise FailedError(f"it sends more than {total} bytes")
            _append(part, piece)
            told()
    if rest:
        raise DroppedError(f"cut off after {total - rest} of {total} bytes")


def _piece(answer: Any, timeout: float) -> bytes:
    with _network(timeout):
        return answer.read1(PIECE)  # what has come so far, so that little is lost when nothing more does


def _append(part: IO[bytes], piece: bytes) -> None:
    left = memoryview(piece)
    while left:
        left = left[part.write(left) :]


def _answer(url: str, part: IO[bytes], total: int, timeout: float) -> Any:
    """An answer that goes on where the part ends; the part is emptied where the server does not."""
    done = size_of(part)
    try:
        answer = _asked(url, done, timeout)
        if not done or _goes_on(answer, done, total):
            return answer
        if answer.status != 206:
            part.truncate(0)
            return answer
        answer.close()
    except HTTPError as error:
        if error.code != 416:
            raise
        error.close()
    part.truncate(0)
    return _asked(url, 0, timeout)


def _asked(url: str, start: int, timeout: float) -> Any:
    headers = {"User-Agent": "iddpm", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    if not url.startswith(("http://", "https://", "file://")):
        raise ConfigError(f"{url} is not a URL", "allowed: http://..., https://..., file://...")
    request = Request(url, headers=headers)
    return build_opener().open(request, timeout=timeout)  # looks up today's proxies; `urlopen` keeps the first it saw


def _goes_on(answer: Any, done: int, total: int) -> bool:
    """Whether an answer is the rest that was asked for."""
    first, _, size = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
    return answer.status == 206 and first == f"{done}-{total - 1}" and size in (str(total), "*")


@contextmanager
def _network(timeout: float) -> Iterator[None]:
    """Say in a few words what went wrong between here and a server."""
    try:
        yield
    except (OSError, HTTPException) as error:
        raise _failure(error, timeout) from error


def _failure(error: OSError | HTTPException, timeout: float) -> FailedError:
    if isinstance(error, HTTPError):
        error.close()
        kind = DroppedError if error.code in BUSY else FailedError
        return kind(f"HTTP {error.code} {error.reason}".strip())
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, TimeoutError):  # a server that cannot be reached is asked once
        kind = FailedError if isinstance(error, URLError) else DroppedError
        return kind(f"no answer within {timeout:g} s")
    if isinstance(cause, ConnectionRefusedError):
        return FailedError("connection refused")
    if isinstance(cause, socket.gaierror):
        return FailedError("host not found")
    text = " ".join(str(cause).split()) or type(cause).__name__
    return DroppedError(text) if isinstance(cause, ConnectionError | HTTPException) else FailedError(text)

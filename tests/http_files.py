"""A small web server on 127.0.0.1 that gives files, and behaves as badly as it is told."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Server:
    """What a server gives, how, and what it was asked. Change it between requests.

    `asked` holds path and Range of each request, `sent` the bytes of all bodies. `cuts` are the bytes after which the
    connection is cut, for the first requests in turn; `statuses` answers them with these instead (0: properly).
    """

    url: str
    files: dict[str, bytes]
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    lengths: dict[str, int | None] = field(default_factory=dict)  # a wrong Content-Length, or none at all
    redirects: dict[str, str] = field(default_factory=dict)
    content_range: str | None = None
    silent_after: int | None = None  # bytes in all after which nothing comes any more
    piece: int = 1 << 16
    pause: float = 0.0  # before each piece
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    sent: int = 0
    ended: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Listening"

    def log_message(self, format, *arguments):
        del format, arguments

    def do_GET(self):
        told = self.server.told
        self.close_connection = True
        span = self.headers.get("Range")
        told.asked.append((self.path, span))
        name = self.path.rsplit("://", 1)[-1].partition("/")[2]  # a proxy is asked for a whole URL
        status = told.statuses.pop(0) if told.statuses else 0
        if name in told.redirects:
            self._headers(302, [("Location", told.redirects[name]), ("Content-Length", "0")])
        elif status or name not in told.files:
            self._headers(status or 404, [("Content-Length", "0")])
        else:
            self._give(told, name, span)

    def _give(self, told, name, span):
        content, start, headers = told.files[name], 0, []
        if span and told.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", span)[1])
            if start >= len(content):
                return self._headers(416, [("Content-Length", "0"), ("Content-Range", f"bytes */{len(content)}")])
            where = told.content_range or f"bytes {start}-{len(content) - 1}/{len(content)}"
            headers.append(("Content-Range", where))
        length = told.lengths.get(name, len(content) - start)
        headers += [] if length is None else [("Content-Length", str(length))]
        self._headers(206 if span and told.ranges else 200, headers)
        return self._body(told, content[start:])

    def _headers(self, status, headers):
        self.send_response(status)
        for header in (*headers, ("Connection", "close")):
            self.send_header(*header)
        self.end_headers()

    def _body(self, told, content):
        cut = told.cuts.pop(0) if told.cuts else len(content)
        for at in range(0, min(cut, len(content)), told.piece):
            if told.silent_after is not None and told.sent >= told.silent_after:
                told.ended.wait(10)
                return
            time.sleep(told.pause)
            piece = content[at : min(at + told.piece, cut)]
            try:
                self.wfile.write(piece)
            except ConnectionError:
                return
            told.sent += len(piece)


class _Listening(ThreadingHTTPServer):
    told: Server
    daemon_threads = True


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Server]:
    """A server of these files, by name, for the length of a block."""
    listening = _Listening(("127.0.0.1", 0), _Handler)
    listening.told = Server(url=f"http://127.0.0.1:{listening.server_port}", files=files)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield listening.told
    finally:
        listening.told.ended.set()
        listening.shutdown()
        listening.server_close()
        thread.join()


def refusing() -> str:
    """A URL whose port nobody listens on."""
    listening = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    listening.server_close()
    return f"http://127.0.0.1:{listening.server_port}"

"""The little HTTP server of a worker: ``GET`` of a few paths, each answered at once by a thread of its own.

Who is slow, or comes in numbers, costs at most ``_REQUESTS`` threads, and keeps nobody from an answer.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

_REQUEST_SECONDS = 2.0  # of each read and write
_REQUESTS = 16  # at a time; who asks more often has neither a probe nor a scrape in mind


class Answer(NamedTuple):
    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"


Answering = Callable[[str, str], Answer]
"""From the path and the header Accept, in any thread."""


def serve(host: str, port: int, answer: Answering, *, name: str) -> int:
    """Answer from a daemon thread of this name, and return the port. ``host``: empty for all addresses.

    Raises OSError if the port cannot be had.
    """
    server = _Server(host, port, answer)
    threading.Thread(target=server.serve_forever, name=name, daemon=True).start()
    return int(server.server_address[1])


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, answer: Answering) -> None:
        both = not host and socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
        super().__init__((host, port), _Request, bind_and_activate=False)
        self.socket.close()
        self.socket = socket.create_server((host, port), family=self.address_family, dualstack_ipv6=both)
        self.server_address = self.socket.getsockname()
        self.answer = answer
        self._open: dict[Any, None] = {}  # in the order in which they came
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            # Who came first has had its time: the limit of each read alone would let slow ones stay for ever.
            oldest = next(iter(self._open)) if len(self._open) >= _REQUESTS else None
            self._open[request] = None
            if oldest is not None:
                del self._open[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who hangs up is no news."""


class _Request(BaseHTTPRequestHandler):
    timeout = _REQUEST_SECONDS
    server: _Server

    def do_GET(self) -> None:
        answer = self.server.answer(self.path.partition("?")[0], self.headers.get("Accept", ""))
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            with suppress(OSError):
                self.wfile.write(answer.body)

    do_HEAD = do_GET

    def version_string(self) -> str:
        return "pgqueue"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: somebody asks every few seconds."""

"""A TCP proxy between a worker and its server that breaks the line at a chosen moment.

It understands of the protocol what it needs for that: where messages begin, which statements a session sends,
which of them are one transaction, its application_name, and when the server is ready for the next statement.
One thread with an event loop of its own; the test calls from its own thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102
_SO_ATTACH_FILTER = 26


@dataclass
class Cut:
    """An order to break the line when the answer to a statement is on its way.

    ``statement``: a piece of it. ``at_commit``: not its own answer, but that to the COMMIT of its transaction.
    ``times``: how often; ``hits`` counts. The server has carried the statement out when the line breaks.
    """

    statement: str
    at_commit: bool
    times: int
    hits: int = 0

    def meets(self, sent: str, transaction: list[str]) -> bool:
        if self.hits >= self.times:
            return False
        if self.at_commit:
            return sent.startswith("COMMIT") and any(self.statement in earlier for earlier in transaction)
        return self.statement in sent


@dataclass(eq=False)
class _Link:
    """One session through the proxy."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    application_name: str = ""
    transaction: list[str] = field(default_factory=list)
    cutting: bool = False  # the next answer is not delivered, and then the line is broken
    dark: bool = False  # nothing is delivered any more, and nothing acknowledged


class Proxy:
    """Forwards to ``host:port``; a context manager."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.loses_cancels = False  # requests to cancel a statement go nowhere, and nobody is told
        self.latency = 0.0  # seconds, before each message of a client is forwarded
        self._cuts: list[Cut] = []
        self._links: list[_Link] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @classmethod
    def before(cls, url: str) -> Self:
        """A proxy to the server of this connection URI."""
        parts = conninfo_to_dict(url)
        return cls(str(parts["host"]), int(str(parts["port"])))

    def url(self, url: str, **options: object) -> str:
        """The same database, through the proxy."""
        return make_conninfo(url, host="127.0.0.1", port=self.port, **options)

    def __enter__(self) -> Self:
        self._thread.start()
        self._listener = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._listener.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.close()
        self.reset()
        self._call(self._until_gone())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    # Orders ----------------------------------------------------------------------------------------------------

    def cut(self, statement: str, *, at_commit: bool = True, times: int = 1) -> Cut:
        order = Cut(statement, at_commit, times)
        self._cuts.append(order)
        return order

    def reset(self, application_name: str = "") -> int:
        """RST to both ends of the sessions whose name begins so; how many."""
        return self._call(self._reset(application_name))

    def close(self, application_name: str = "") -> int:
        """FIN to both ends of these sessions, as from a balancer that has a limit for idle ones; how many."""
        return self._call(self._close(application_name))

    def black_hole(self, application_name: str = "") -> int:
        """From now on these sessions' packets vanish, as when a firewall has forgotten them; how many.

        New sessions work. Their ends are still there, but nothing that the client sends is acknowledged: that
        is what tells a lost host from one that is slow to answer.
        """
        return self._call(self._black_hole(application_name))

    def _call(self, act: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(act, self._loop).result(10)

    def _named(self, application_name: str) -> list[_Link]:
        return [link for link in self._links if link.application_name.startswith(application_name)]

    async def _reset(self, application_name: str) -> int:
        links = self._named(application_name)
        for link in links:
            _break(link)
        return len(links)

    async def _until_gone(self) -> None:
        while self._links:
            await asyncio.sleep(0.001)

    async def _close(self, application_name: str) -> int:
        links = self._named(application_name)
        for link in links:
            link.client.close()
            link.server.close()
        return len(links)

    async def _black_hole(self, application_name: str) -> int:
        links = self._named(application_name)
        for link in links:
            link.dark = True
            _drop_packets(link.client.get_extra_info("socket"))
        return len(links)

    # Forwarding ------------------------------------------------------------------------------------------------

    async def _serve(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            server_reader, server = await asyncio.open_connection(*self.target)
        except OSError:
            client.transport.abort()
            return
        link = _Link(client, server)
        self._links.append(link)
        pumps: list[asyncio.Future[None]] = []
        try:
            await self._start(link, client_reader, server_reader)
            pumps = [
                asyncio.ensure_future(self._to_server(link, client_reader)),
                asyncio.ensure_future(self._to_client(link, server_reader)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._links.remove(link)
            client.transport.abort()
            server.transport.abort()

    async def _start(self, link: _Link, client: asyncio.StreamReader, server: asyncio.StreamReader) -> None:
        """Up to the message that names the session; before it, the client may ask for encryption."""
        while True:
            head = await client.readexactly(8)
            length, code = struct.unpack("!II", head)
            body = await client.readexactly(length - 8)
            if code == _CANCEL and self.loses_cancels:
                raise asyncio.IncompleteReadError(b"", None)
            if code not in (_SSL, _GSS, _CANCEL):
                words = body.decode().split("\0")
                link.application_name = dict(zip(words[::2], words[1::2], strict=False)).get("application_name", "")
            link.server.write(head + body)
            if code not in (_SSL, _GSS):
                return
            link.client.write(await server.readexactly(1))

    async def _to_server(self, link: _Link, client: asyncio.StreamReader) -> None:
        while True:
            head = await client.readexactly(5)
            body = await client.readexactly(_body_length(head))
            if self.latency:
                await asyncio.sleep(self.latency)
            if not link.dark:
                self._look_at(link, head[:1], body)
                link.server.write(head + body)
                await link.server.drain()

    def _look_at(self, link: _Link, kind: bytes, body: bytes) -> None:
        if kind not in b"QP":
            return
        # A Parse message begins with the name of the prepared statement.
        sent = body.rstrip(b"\0") if kind == b"Q" else body.split(b"\0")[1]
        statement = sent.decode(errors="replace").strip()
        for cut in self._cuts:
            if cut.meets(statement, link.transaction):
                cut.hits += 1
                link.cutting = True
        if statement.startswith(("BEGIN", "COMMIT", "ROLLBACK")) and " TO " not in statement:
            link.transaction.clear()
        else:
            link.transaction.append(statement)

    async def _to_client(self, link: _Link, server: asyncio.StreamReader) -> None:
        while True:
            head = await server.readexactly(5)
            body = await server.readexactly(_body_length(head))
            if link.cutting:
                if head[:1] == b"Z":  # ready for the next statement: this one is done
                    _break(link)
                    return
            elif not link.dark:
                link.client.write(head + body)
                await link.client.drain()


def _body_length(head: bytes) -> int:
    return int.from_bytes(head[1:5], "big") - 4


def _break(link: _Link) -> None:
    for end in (link.client, link.server):
        # Closing it now sends an RST.
        end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.transport.abort()


def _drop_packets(end: Any) -> None:
    """A packet filter that lets nothing in, on this socket alone; needs Linux and no privilege.

    Not reading would not do: the kernel would go on acknowledging for us.
    """
    drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF_RET | BPF_K, 0 bytes
    program = struct.pack("HL", 1, ctypes.addressof(drop_all))
    end.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)

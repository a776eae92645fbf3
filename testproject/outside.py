"""The outside world of the shop: a card processor, a warehouse, an exchange and a mail server that misbehave.

`python -m testproject.outside [--http-port N] [--smtp-port N]` serves HTTP and SMTP on 127.0.0.1 until it is
told to stop, and prints its two ports as one line of JSON once it listens. How badly it behaves is set by the
variables of `Mood`; it remembers what it has accepted, so `GET /summary` is a witness from outside the shop.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from testproject import knobs


@dataclass(frozen=True)
class Mood:
    """How often, from 0 to 1, each thing goes wrong. Read from the environment as DEMO_ and the name."""

    SEED: int = 1
    CARD_BUSY: float = 0.15
    """429, with a Retry-After of one second."""
    CARD_ERROR: float = 0.03
    """500."""
    CARD_DECLINED: float = 0.05
    """402, and again for the same key."""
    WAREHOUSE_SILENT: float = 0.45
    """The request is read and never answered."""
    MAIL_BUSY: float = 0.1
    """451 to a recipient."""
    MAIL_CUT: float = 0.05
    """The connection is cut in the middle of the message."""


@dataclass(frozen=True)
class Answer:
    status: int
    body: Mapping[str, object]
    headers: Mapping[str, str]


class World:
    """Everything outside the shop. `seen` counts what happened in it."""

    def __init__(self, mood: Mood) -> None:
        self.mood = mood
        self.dice = random.Random(mood.SEED)
        self.seen: Counter[str] = Counter()
        self.cards: dict[str, Answer] = {}

    def happens(self, rate: float) -> bool:
        return self.dice.random() < rate

    async def answer_http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request and its answer; the connection is closed after it."""
        try:
            method, path, _ = (await reader.readline()).decode("latin-1").split()
            headers = {}
            while line := (await reader.readline()).decode("latin-1").strip():
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            await reader.readexactly(int(headers.get("content-length", 0)))
            answer = await self.route(method, path, headers)
            if answer is None:
                await reader.read()  # until the caller gives up
                return
            body = json.dumps(answer.body).encode()
            lines = [f"HTTP/1.1 {answer.status} -", "Connection: close", "Content-Type: application/json"]
            lines += [f"{name}: {value}" for name, value in answer.headers.items()]
            writer.write("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body)
            await writer.drain()
        except (OSError, ValueError, asyncio.IncompleteReadError):
            self.seen["http: calls cut off"] += 1  # the caller was killed, or is no HTTP client
        finally:
            writer.close()

    async def route(self, method: str, path: str, headers: Mapping[str, str]) -> Answer | None:
        """The answer to one request; None is silence."""
        if method == "POST" and path == "/charges":
            await asyncio.sleep(self.dice.uniform(0.01, 0.06))
            return self.charge(headers.get("idempotency-key", ""))
        if method == "POST" and path == "/shipments":
            if self.happens(self.mood.WAREHOUSE_SILENT):
                self.seen["warehouse: no answer"] += 1
                return None
            await asyncio.sleep(self.dice.uniform(0.02, 0.2))
            self.seen["warehouse: accepted"] += 1
            return Answer(202, {}, {})
        if method == "GET" and path.startswith("/rates/"):
            await asyncio.sleep(self.dice.uniform(0.05, 0.15))
            self.seen["exchange: rates"] += 1
            return Answer(200, {"rate": round(self.dice.uniform(1.02, 1.12), 4)}, {})
        if method == "GET" and path == "/summary":
            return Answer(200, self.seen, {})
        return Answer(404, {}, {})

    def charge(self, key: str) -> Answer:
        if known := self.cards.get(key):
            self.seen["cards: asked again"] += 1
            return known
        if self.happens(self.mood.CARD_BUSY):
            self.seen["cards: busy"] += 1
            return Answer(429, {}, {"Retry-After": "1"})
        if self.happens(self.mood.CARD_ERROR):
            self.seen["cards: broken"] += 1
            return Answer(500, {}, {})
        if self.happens(self.mood.CARD_DECLINED):
            self.seen["cards: declined"] += 1
            self.cards[key] = Answer(402, {"reason": "insufficient funds"}, {})
        else:
            self.seen["cards: charged"] += 1
            self.cards[key] = Answer(200, {"reference": f"ch_{self.dice.getrandbits(48):012x}"}, {})
        return self.cards[key]

    async def answer_smtp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One SMTP session."""

        def say(line: str) -> None:
            writer.write(f"{line}\r\n".encode())

        try:
            say("220 mail.example")
            while line := (await reader.readline()).decode("latin-1").strip():
                match line.upper().split()[0].partition(":")[0]:
                    case "EHLO" | "HELO" | "MAIL" | "RSET" | "NOOP":
                        say("250 ok")
                    case "RCPT":
                        say(self.recipient(line))
                    case "DATA":
                        say("354 go on")
                        await writer.drain()
                        while (await reader.readline()).rstrip(b"\r\n") != b".":
                            if reader.at_eof():
                                return
                        if self.happens(self.mood.MAIL_CUT):
                            self.seen["mail: cut"] += 1
                            return
                        self.seen["mail: accepted"] += 1
                        say("250 accepted")
                    case "QUIT":
                        say("221 bye")
                        break
                    case _:
                        say("502 unknown")
            await writer.drain()
        except (OSError, ValueError):
            self.seen["mail: calls cut off"] += 1
        finally:
            writer.close()

    def recipient(self, line: str) -> str:
        if "@gone.example" in line:
            self.seen["mail: no such address"] += 1
            return "550 no such address"
        if self.happens(self.mood.MAIL_BUSY):
            self.seen["mail: busy"] += 1
            return "451 come back later"
        return "250 ok"


async def serve(http_port: int, smtp_port: int) -> None:
    """Serve until SIGTERM or SIGINT; 0 takes a free port. Raises OSError when a port is taken."""
    world = World(knobs.read(Mood, os.environ))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    http = await asyncio.start_server(world.answer_http, "127.0.0.1", http_port)
    smtp = await asyncio.start_server(world.answer_smtp, "127.0.0.1", smtp_port)
    ports = {"http": http.sockets[0].getsockname()[1], "smtp": smtp.sockets[0].getsockname()[1]}
    print(json.dumps(ports), flush=True)
    await stop.wait()
    # Whoever is still waiting for an answer does not get one any more.
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m testproject.outside")
    parser.add_argument("--http-port", type=int, default=8090)
    parser.add_argument("--smtp-port", type=int, default=8025)
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(arguments.http_port, arguments.smtp_port))


if __name__ == "__main__":
    main()

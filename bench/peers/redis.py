"""A private redis-server, and just enough of its protocol to count and to configure."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

from testproject.localdb import _free_port


class RedisMissing(Exception):
    """There is no redis-server on PATH."""


class Redis:
    """``durable``: appendonly with an fsync for every write; else nothing is ever written to disk."""

    def __init__(self, *, durable: bool) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise RedisMissing("no redis-server on PATH (Debian: apt-get install redis-server)")
        self.durable = durable
        self._directory = Path(tempfile.mkdtemp(prefix="pgqueue-redis-"))
        self.port = _free_port()
        persistence = ["--appendonly", "yes", "--appendfsync", "always"] if durable else ["--appendonly", "no"]
        self._process = subprocess.Popen(
            [
                *(program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._directory)),
                *("--save", "", *persistence, "--loglevel", "warning"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self._socket: socket.socket | None = None
        end = time.monotonic() + 10
        while True:
            try:
                self.ask("PING")
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        return self._process.pid

    def version(self) -> str:
        for line in str(self.ask("INFO", "server")).splitlines():
            if line.startswith("redis_version:"):
                return line.partition(":")[2]
        return "?"

    def ask(self, *words: str) -> int | str | None:
        """One command; its integer, text or nothing."""
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self.port), timeout=30)
            self._file = self._socket.makefile("rb")
        message = f"*{len(words)}\r\n" + "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
        self._socket.sendall(message.encode())
        line = self._file.readline().decode().rstrip("\r\n")
        kind, rest = line[:1], line[1:]
        if kind == "-":
            raise RuntimeError(rest)
        if kind == ":":
            return int(rest)
        if kind == "$":
            return None if rest == "-1" else self._file.read(int(rest) + 2)[:-2].decode()
        return rest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._socket is not None:
            self._socket.close()
        self._process.terminate()
        self._process.wait(20)
        shutil.rmtree(self._directory, ignore_errors=True)

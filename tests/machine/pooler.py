"""A real pgbouncer before a real server."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .workers import wait_for

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


class Pooler:
    """A pgbouncer that leads to the server of ``url``; a context manager. ``size``: sessions that it may open."""

    def __init__(self, url: str, *, mode: str = "transaction", size: int = 4) -> None:
        self.size = size
        self.direct = url
        self._mode = mode

    def __enter__(self) -> Self:
        parts = conninfo_to_dict(self.direct)
        self.directory = Path(tempfile.mkdtemp(prefix="pgqueue-pooler-"))
        self.directory.chmod(0o755)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        names = ("host", "port", "dbname", "user", "password")
        server = " ".join(f"{name}={parts[name]}" for name in names if parts.get(name))
        (self.directory / "ini").write_text(
            f"[databases]\n{parts['dbname']} = {server}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = {self._mode}\ndefault_pool_size = {self.size}\nmax_client_conn = 1000\n"
        )
        account: dict[str, Any] = {}
        if os.geteuid() == 0:  # it refuses to run as root
            nobody = pwd.getpwnam("nobody")
            account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        with (self.directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(PROGRAM), str(self.directory / "ini")], cwd=self.directory, stdout=log, stderr=log, **account
            )
        wait_for(self._answers)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.wait(10)
        shutil.rmtree(self.directory)

    @property
    def url(self) -> str:
        return make_conninfo(self.direct, host="127.0.0.1", port=self.port)

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url, autocommit=True, prepare_threshold=None)

    def in_every_session(self, sql: str) -> list[Any]:
        """The first row of a query in each session that this pooler can have, all at the same time."""
        clients = [self.connect() for _ in range(self.size)]
        try:
            for client in clients:
                client.execute("BEGIN")
            return [client.execute(sql).fetchone() for client in clients]
        finally:
            for client in clients:
                client.close()

    def _answers(self) -> bool:
        assert self._process.poll() is None, self.log
        try:
            with self.connect() as client:
                return bool(client.execute("SELECT true").fetchone())
        except psycopg.OperationalError:
            return False

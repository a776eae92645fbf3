"""The server takes no writes for a while, or the session is on a node that takes none any more (25006)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from chaos.fleet import Fleet, until
from chaos.proxy import Proxy
from testproject import ledger
from testproject.localdb import Server

OPTIONS = ("--lease", "20", "--concurrency", "4")


@pytest.fixture
def setting(server: Server, url: str) -> Iterator[Callable[[str], None]]:
    """``setting("ALTER ...")`` as an administrator; what was set is reset afterwards."""
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    with ledger.connect(url) as session:

        def execute(sql: str) -> None:
            session.execute(sql.format(database=name))
            session.execute("SELECT pg_reload_conf()")

        yield execute
        execute("ALTER SYSTEM RESET default_transaction_read_only")


def test_a_server_that_was_read_only_for_a_while(fleet: Fleet, setting: Callable[[str], None]) -> None:
    worker = fleet.hire(*OPTIONS)
    # More than it can do by then: one that has nothing to do writes nothing, and so notices nothing.
    fleet.produce(60, milliseconds=(100, 200))
    fleet.produce(30, rate=40)
    fleet.produce(30, task="leave_effect", rate=40)
    until("jobs are being done", lambda: fleet.finished() >= 20)
    loop = fleet.sessions("loop")
    setting("ALTER SYSTEM SET default_transaction_read_only = on")
    # Gone, and not replaced by another one: that is there for a few milliseconds, then given up as well.
    until("the loop takes it for a dead connection", lambda: not set(loop) & set(fleet.sessions("loop")))
    assert fleet.unfinished() > 0
    setting("ALTER SYSTEM RESET default_transaction_read_only")
    fleet.wait_until_finished()
    assert worker.exit_code is None
    history = fleet.settle_accounts()
    assert [job for job in history.jobs if job.task.endswith(".work") and job.failed_attempts] == []


@pytest.mark.parametrize("task", ["work", "leave_effect"])
def test_sessions_on_a_demoted_node_are_given_up(
    fleet: Fleet, server: Server, setting: Callable[[str], None], task: str
) -> None:
    """Sessions that begin there stay read-only for ever, only later ones can write (riverqueue/river #1225)."""
    fleet.hire(*OPTIONS)
    fleet.produce(120, task=task, rate=40)
    until("jobs are being done", lambda: fleet.finished() >= 20)
    before = refusals(server)
    setting("ALTER DATABASE {database} SET default_transaction_read_only = on")
    fleet.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name <> 'chaos'"
    )
    until("every kind of session has met it", lambda: refusals(server) > before + 10)
    assert fleet.unfinished() > 0
    setting("ALTER DATABASE {database} RESET default_transaction_read_only")
    fleet.wait_until_finished()
    history = fleet.settle_accounts()
    failed = [len(job.failed_attempts) for job in history.jobs if job.failed_attempts]
    # The handler's own session is there, too: an attempt that meets it fails, and the next has another session.
    print(f"{len(failed)} jobs failed, at most {max(failed, default=0)} times")
    assert failed == [] if task == "work" else max(failed, default=0) <= 3


def refusals(server: Server) -> int:
    """How many writes the server has refused because it was read-only."""
    return server.log_file.read_text(errors="replace").count("in a read-only transaction")


@contextmanager
def synchronous_standby_of(primary: Server) -> Iterator[Server]:
    """A standby that has whatever ``primary`` has acknowledged; removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="pgqueue-standby-") as name:
        directory = Path(name) / "standby"
        directory.mkdir()
        if os.geteuid() == 0:
            Path(name).chmod(0o711)
            owner = primary.data_dir.stat()
            os.chown(directory, owner.st_uid, owner.st_gid)
        standby = Server(directory, version=primary.version)
        shutil.copy2(primary.directory / "password", directory / "password")
        copy = [
            str(primary.bin_dir / "pg_basebackup"),
            "-d",
            primary.url(),
            "-D",
            str(standby.data_dir),
            "-R",
            "-c",
            "fast",
        ]
        account = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
        subprocess.run(copy, check=True, cwd=directory, **account)
        with standby.data_dir.joinpath("postgresql.auto.conf").open("a") as settings:
            settings.write(f"port = {free_port()}\n")
        standby.start()
        with ledger.connect(primary.url()) as session:
            session.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            session.execute("SELECT pg_reload_conf()")
            state = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
            until("it is synchronous", lambda: session.execute(state).fetchone())
        try:
            yield standby
        finally:
            standby.stop("immediate")
            primary.start()
            with ledger.connect(primary.url()) as session:
                session.execute("ALTER SYSTEM RESET synchronous_standby_names")
                session.execute("SELECT pg_reload_conf()")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_standby_is_promoted(make_fleet: Callable[..., Fleet], url: str, server: Server) -> None:
    """The primary dies under load, the name leads to the standby, which is promoted some seconds later."""
    with synchronous_standby_of(server) as standby, Proxy.before(url) as name:
        fleet = make_fleet(name.url(url))
        worker = fleet.hire(*OPTIONS)
        fleet.produce(300, rate=50)
        until("jobs are being done", lambda: fleet.finished() >= 50)
        name.target = ("127.0.0.1", standby.port or 0)
        server.kill()
        until("every kind of session has met it", lambda: refusals(standby) > 10)
        until("it is promoted", lambda: fleet.query("SELECT pg_promote()"))
        fleet.wait_until_finished(60)
        assert worker.exit_code is None
        history = fleet.settle_accounts()
        assert [job for job in history.jobs if job.failed_attempts] == []
        assert len(history.deliveries) == len(history.jobs)

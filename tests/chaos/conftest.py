"""A private server for this folder, and for each test a database of its own on it."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from chaos.fleet import Fleet
from chaos.proxy import Proxy
from testproject import ledger
from testproject.localdb import Server, fresh
from testproject.processes import CHECKOUT


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Restarted and killed at will: nobody else uses it."""
    with fresh() as private:
        yield private


@pytest.fixture(scope="session")
def template(server: Server) -> str:
    """Name of a database with our tables and the ledgers, to be copied."""
    url = server.create_database("template_chaos")
    subprocess.run(
        [sys.executable, "-m", "testproject.manage", "migrate", "--verbosity=0"],
        cwd=CHECKOUT,
        env={
            **os.environ,
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": "chaos.settings",
            "PYTHONPATH": str(CHECKOUT / "tests"),
        },
        check=True,
    )
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(ledger.SCHEMA)
    return "template_chaos"


@pytest.fixture
def url(server: Server, template: str) -> str:
    """Connection URI of an empty queue."""
    name = f"chaos_{secrets.token_hex(4)}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    return server.url(name)


@pytest.fixture
def make_fleet(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """``make_fleet(url)``: a fleet whose processes end with the test. Its dice show their seed in the output."""
    fleets: list[Fleet] = []

    def make(url: str) -> Fleet:
        seed = int(os.environ.get("CHAOS_SEED", secrets.randbelow(10**6)))
        print(f"CHAOS_SEED={seed}")
        directory = tmp_path / f"fleet{len(fleets)}"
        directory.mkdir()
        fleets.append(Fleet(url, directory, seed))
        return fleets[-1]

    yield make
    for one in fleets:
        one.disband()


@pytest.fixture
def fleet(make_fleet: Callable[..., Fleet], url: str) -> Fleet:
    return make_fleet(url)


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    """Before the server of ``fleet``; ``proxy.url(fleet.url)`` leads through it."""
    with Proxy.before(url) as one:
        yield one

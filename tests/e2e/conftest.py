"""Fixtures of the tests that run whole processes."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from testproject.settings import database_url

# Needs a browser, and its process an event loop of its own: `make e2e`.
collect_ignore = ["browser"]


@pytest.fixture(scope="module")
def empty_database() -> Iterator[str]:
    """Connection string of a new database, dropped afterwards."""
    server, name = database_url(), f"e2e_{secrets.token_hex(4)}"
    with psycopg.connect(make_conninfo(server, dbname="postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield make_conninfo(server, dbname=name)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

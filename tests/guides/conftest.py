"""Fixtures of the guides: the projects that they show, as processes, on a database for each test."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from testproject.settings import database_url

from .projects import Project

Sides = tuple[tuple[str, str], ...]


class Server:
    """Databases with the tables of some projects in them: made once, emptied for each test that wants one again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._url = database_url()
        self._connection = psycopg.connect(make_conninfo(self._url, dbname="postgres"), autocommit=True)
        self._empty: dict[Sides, list[str]] = {}  # the tables that a migrated database has no rows in
        self._names: dict[Sides, str] = {}

    def database(self, sides: Sides) -> str:
        """Connection string of a database that has the partners' ledger and what ``sides`` need."""
        if sides not in self._names:
            self._create(sides)
        url = make_conninfo(self._url, dbname=self._names[sides])
        with psycopg.connect(url, autocommit=True) as inside:
            inside.execute(f"TRUNCATE {', '.join(self._empty[sides])} RESTART IDENTITY")
        return url

    def _create(self, sides: Sides) -> None:
        name = f"guides_{secrets.token_hex(4)}"
        self._connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        self._names[sides] = name
        url = make_conninfo(self._url, dbname=name)
        with psycopg.connect(url, autocommit=True) as inside:
            inside.execute("CREATE TABLE ledger (id bigserial PRIMARY KEY, what text, about text)")
            for guide, side in sides:
                Project(guide, side, url, self._directory).django("migrate", "--run-syncdb", "-v", "0")
            tables = inside.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
            self._empty[sides] = [
                table for (table,) in tables if not inside.execute(f"SELECT FROM {table} LIMIT 1").fetchone()
            ]

    def drop(self, sides: Sides) -> None:
        """A test that has changed the tables leaves none of them to the next one."""
        name = self._names.pop(sides)
        self._connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def close(self) -> None:
        for sides in list(self._names):
            self.drop(sides)
        self._connection.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("migrate"))
    yield server
    server.close()


@pytest.fixture
def projects(server: Server, tmp_path: Path) -> Iterator[Callable[..., list[Project]]]:
    """``projects(("celery", "before"), …)`` on one new database; their processes end with the test."""
    made: list[Project] = []

    def make(*sides: tuple[str, str]) -> list[Project]:
        database = server.database(sides)
        for guide, side in sides:
            directory = tmp_path / f"{guide}-{side}"
            directory.mkdir()
            made.append(Project(guide, side, database, directory))
        return made

    yield make
    for one in made:
        one.close()

"""The status page under a role that may read little: the statements of docs/public.md, on a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections
from django.test import Client
from machine.workers import ROOT
from psycopg import sql
from verbs import rows

from doors.test_public import URL, fail, worker
from pgqueue_django.dashboard import public

ALIAS = "public"
pytestmark = pytest.mark.django_db(transaction=True, databases=["default", ALIAS])


def statements() -> list[str]:
    """Those of the documentation, for a role of this database's own."""
    found = re.search(r"```sql\n(.*?)```", (ROOT / "docs" / "public.md").read_text(), re.S)
    assert found
    text = found[1].replace("queue_status", role()).replace("'...'", "'of the test'")
    return [one.strip() for one in text.split(";") if one.strip()]


def role() -> str:
    return f"{connections.settings['default']['NAME']}_status"


@pytest.fixture(scope="module", autouse=True)
def alias(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    there = connections.settings["default"]
    with django_db_blocker.unblock(), rows.connect() as session, pytest.MonkeyPatch.context() as patch:
        words = {"USER": role(), "PASSWORD": "of the test"}
        # A mirror is what Django's tests do not flush.
        patch.setitem(connections.settings, ALIAS, {**there, "TEST": {**there["TEST"], "MIRROR": "default"}, **words})
        for statement in statements():
            session.execute(statement)
        try:
            yield
        finally:
            connections[ALIAS].close()
            del connections[ALIAS]
            session.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role())))


@pytest.fixture(autouse=True)
def closed_and_forgotten() -> Iterator[None]:
    public.shared.forget()
    yield
    public.shared.forget()
    connections[ALIAS].close()


def single(grant: str) -> Iterator[str]:
    """What revokes one column or one table of it."""
    found = re.fullmatch(r"GRANT SELECT(?: \((.*?)\))? ON (.*?) TO (\w+)", grant, re.S)
    assert found, grant
    columns, tables, whom = found.groups()
    for table in tables.split(","):
        for column in (columns or "").split(","):
            yield f"REVOKE SELECT{f' ({column.strip()})' if column else ''} ON {table.strip()} FROM {whom}"


def is_refused() -> bool:
    try:
        public.take(ALIAS)
    except DatabaseError as error:
        return "permission denied" in str(error)
    return False


def test_the_grants_of_the_documentation_are_enough_and_none_is_too_much(settings: Any) -> None:
    worker("alive")
    fail("shop.tasks.charge", "connection refused")
    settings.PGQUEUE = {"PUBLIC_DATABASE": ALIAS}
    page = Client().get(URL).content.decode()
    assert "CardError" in page
    assert "connection refused" in page
    revoked = 0
    with connection.cursor() as cursor:
        for grant in statements()[2:]:
            for revoke in single(grant):
                cursor.execute(revoke)
                assert is_refused(), f"it is not needed: {revoke}"
                cursor.execute(grant)
                revoked += 1
    assert revoked == 12 + 7 + 3 + 5 + 2
    assert public.take(ALIAS).workers == 1


@pytest.mark.parametrize(
    "reading",
    [
        *(f"{column} FROM pgqueue_job" for column in ("args", "kwargs", "result", "label", "idempotency_key")),
        *(f"{column} FROM pgqueue_worker" for column in ("name", "host")),
        *(f"{column} FROM pgqueue_queue" for column in ("reason", "actor")),
        *("args FROM pgqueue_schedule", "* FROM pgqueue_audit", "* FROM auth_user"),
    ],
)
def test_the_role_reads_nothing_else(reading: str) -> None:
    with pytest.raises(DatabaseError, match="permission denied"), connections[ALIAS].cursor() as cursor:
        cursor.execute(f"SELECT {reading}")


def test_the_role_writes_nothing() -> None:
    with pytest.raises(DatabaseError, match="read-only transaction"), connections[ALIAS].cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET priority = 1")


def test_the_page_alone_reads_by_it(settings: Any) -> None:
    """Where it cannot log in the page is a 503 that does not name it, and health is well."""
    settings.PGQUEUE = {"PUBLIC_DATABASE": ALIAS}
    with rows.connect() as session:
        session.execute(sql.SQL("ALTER ROLE {} NOLOGIN").format(sql.Identifier(role())))
        try:
            answer = Client().get(URL)
            health = Client().get("/pgqueue/healthz")
        finally:
            session.execute(sql.SQL("ALTER ROLE {} LOGIN").format(sql.Identifier(role())))
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "5"
    assert answer.headers["X-Robots-Tag"] == "noindex, nofollow"
    page = answer.content.decode()
    assert "The queue cannot be asked." in page
    assert role() not in page
    assert health.status_code == 200

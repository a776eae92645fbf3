"""Several databases: a replica for readings, a queue on an alias of its own, two of them as shards.

All of it is done over real connections of several aliases, and each statement is counted by its alias, on whatever
thread it was sent. The replica is a session of a role that may read everything but the tables of the queue, and write
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.db.backends.utils import CursorWrapper
from django.test import Client
from psycopg import sql
from psycopg.conninfo import make_conninfo
from verbs import rows

from pgqueue_django import answers, enqueue_many, options, snapshot
from pgqueue_django.models import Job, Queue, Schedule, Worker
from tests.machine import handlers

from .conftest import Gate
from .workers import Process, Running, database_url, wait_for

OURS = ("apart", "shard", "bare")

# Without available_apps: with users, and the admin's log.
pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "replica", *OURS])
StartWorker = Callable[..., Running]
ADMIN = "/admin/pgqueue_django/"


@pytest.fixture(autouse=True)
def only_tasks_that_can_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks would find those that other tests have made wrong on purpose."""
    found = {path: queue for path, queue in options.declared.items() if path.startswith("tests.machine.handlers.")}
    monkeypatch.setattr(options, "declared", found)


class ReadsElsewhere:
    """As projects write it: what is read comes from the replica, what is written goes to the primary."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "replica"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"

    def allow_relation(self, one: Any, other: Any, **hints: Any) -> bool:
        return True

    def allow_migrate(self, database: str, app_label: str, **hints: Any) -> bool:
        return database == "default"


class QueueApart:
    """The queue in a database of its own."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "apart" if model._meta.app_label == "pgqueue_django" else None

    db_for_write = db_for_read

    def allow_migrate(self, database: str, app_label: str, **hints: Any) -> bool:
        return (app_label == "pgqueue_django") == (database == "apart")


class Statements:
    """What was sent to each alias since it was made, by whatever thread."""

    def __init__(self) -> None:
        self._sent: list[tuple[str, str]] = []

    def add(self, alias: str, statement: object) -> None:
        self._sent.append((alias, str(statement)))

    def on(self, alias: str) -> list[str]:
        return [statement for one, statement in list(self._sent) if one == alias]

    def of_the_queue(self, alias: str) -> list[str]:
        """Those that touch our tables or our channel. The session's table and the content types' hold our label."""
        return [one for one in self.on(alias) if "pgqueue_" in one.replace("pgqueue_django", "") or "pg_notify" in one]

    def counts(self) -> dict[str, int]:
        return {alias: len(self.of_the_queue(alias)) for alias in connections}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Statements:
    statements = Statements()
    execute = CursorWrapper._execute_with_wrappers

    def counted(self: Any, sql: Any, params: Any, many: bool, executor: Any) -> Any:
        statements.add(self.db.alias, sql)
        return execute(self, sql, params, many, executor)

    monkeypatch.setattr(CursorWrapper, "_execute_with_wrappers", counted)
    return statements


@pytest.fixture(scope="module", autouse=True)
def aliases(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """``replica``: the default database for a role that may only read; ``apart``, ``shard`` and ``bare`` are real ones.

    ``bare`` has no tables, the other two those of the queue.
    """
    there = connections.settings["default"]
    role = sql.Identifier(f"{there['NAME']}_reader")
    with django_db_blocker.unblock(), rows.connect() as session, pytest.MonkeyPatch.context() as patch:

        def alias(name: str, **words: Any) -> None:
            # A mirror is what Django's tests do not flush: it would want the tables of all apps there.
            patch.setitem(
                connections.settings, name, {**there, "TEST": {**there["TEST"], "MIRROR": "default"}, **words}
            )

        session.execute(sql.SQL("CREATE ROLE {}").format(role))
        session.execute(sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {}").format(role))
        for table in connection.introspection.table_names():
            if table.startswith("pgqueue_"):
                session.execute(sql.SQL("REVOKE ALL ON {} FROM {}").format(sql.Identifier(table), role))
        reader = f"-c role={there['NAME']}_reader -c default_transaction_read_only=on"
        alias("replica", OPTIONS={**there["OPTIONS"], "options": reader})
        for name in OURS:
            session.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database(name))))
            alias(name, NAME=database(name))
        for name in ("apart", "shard"):
            call_command("migrate", "pgqueue_django", database=name, verbosity=0)
        try:
            yield
        finally:
            for name in ("replica", *OURS):
                connections[name].close()
                del connections[name]
            for name in OURS:
                session.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(database(name))))
            session.execute(sql.SQL("DROP OWNED BY {}; DROP ROLE {}").format(role, role))


def database(alias: str) -> str:
    return f"{connections.settings['default']['NAME']}_{alias}"


@pytest.fixture(autouse=True)
def emptied(transactional_db: None) -> Iterator[None]:
    yield
    for name in ("apart", "shard"):
        with connections[name].cursor() as cursor:
            cursor.execute(
                "TRUNCATE pgqueue_job, pgqueue_worker, pgqueue_schedule, pgqueue_queue, pgqueue_stat, "
                "pgqueue_stat_history"
            )


def done(using: str, *ids: int) -> bool:
    return set(Job.objects.using(using).filter(pk__in=ids).values_list("state", flat=True)) == {"succeeded"}


def enqueue_all(using: str) -> list[int]:
    """In each way that there is, 64 jobs."""
    task = handlers.do_nothing
    with transaction.atomic(using=using):
        ids = [task.enqueue().id]
    ids.append(task.using(idempotency_key="a key").enqueue().id)
    assert task.using(idempotency_key="a key").enqueue().created is False
    ids.append(async_to_sync(task.aenqueue)().id)
    ids.append(task.using(run_after=timedelta(milliseconds=1)).enqueue().id)
    ids += [one.id for one in enqueue_many(task.call() for _ in range(60))]  # by COPY
    return ids


def work(worker: StartWorker, using: str, ids: list[int], gate: Gate) -> None:
    """Until these are done, their worker has told of itself, a lease was renewed and the chores had their turn."""
    held = handlers.wait_unwritten.enqueue(str(gate)).id
    running = worker(using=using, listen=True, lease=3)
    lease = Job.objects.using(using).filter(pk=held).values_list("lease_expires_at", flat=True)
    first = wait_for(lease.get, 30)
    wait_for(lambda: lease.get() > first)
    gate.open()
    wait_for(lambda: done(using, *ids), 30)
    wait_for(lambda: Worker.objects.using(using).alive().exists())
    fired = Schedule.objects.using(using).filter(last_job_id__isnull=False)
    wait_for(fired.exists, 20)
    assert running.stop() == 0


def form(**values: Any) -> dict[str, Any]:
    made = {"name": "each second", "task": "tests.machine.handlers.do_nothing", "args": "[]", "kwargs": "{}"}
    made |= {"line": "* * * * * *", "zone": "UTC", "missed": "one", "overlap": "allow", "is_enabled": "on"}
    return {**made, **values}


def plan_in_admin(client: Client, using: str) -> None:
    answer = client.post(f"{ADMIN}schedule/add/", form(), follow=True)
    assert answer.status_code == 200, answer.content
    row = Schedule.objects.using(using).get()
    client.post(f"{ADMIN}schedule/{row.pk}/change/", form(overlap="skip"))
    client.post(f"{ADMIN}schedule/add/", form())  # a name that is taken
    assert Schedule.objects.using(using).get().overlap == "skip"
    client.post(f"{ADMIN}schedule/", {"action": "run_schedules", "_selected_action": [row.pk]})
    assert Job.objects.using(using).count() == 1


def look_and_decide_in_admin(client: Client, using: str, job_id: int) -> None:
    for page in ("job/", "job/?state=succeeded", "job/?q=1", "worker/", "queue/", "schedule/"):
        assert client.get(f"{ADMIN}{page}").status_code == 200, page
    for page in ("change", "history"):
        assert client.get(f"{ADMIN}job/{job_id}/{page}/").status_code == 200, page
    client.post(f"{ADMIN}job/", {"action": "requeue_jobs", "_selected_action": [str(job_id)]})
    assert Job.objects.using(using).get(pk=job_id).state == "queued"
    client.post(f"{ADMIN}job/{job_id}/cancel/")
    assert Job.objects.using(using).get(pk=job_id).state == "cancelled"
    client.post(f"{ADMIN}queue/add/", {"name": "mail", "reason": "down"})
    client.post(f"{ADMIN}queue/add/", {"name": "mail", "reason": "down"})
    assert Queue.objects.using(using).count() == 1
    assert client.get(f"{ADMIN}queue/").status_code == 200
    client.post(f"{ADMIN}queue/", {"action": "resume_queues", "_selected_action": ["mail"]})
    assert not Queue.objects.using(using).exists()
    row = Schedule.objects.using(using).get()
    for action in ("disable_schedules", "enable_schedules", "skip_schedules"):
        client.post(f"{ADMIN}schedule/", {"action": action, "_selected_action": [row.pk]})
    client.post(f"{ADMIN}schedule/{row.pk}/delete/", {"post": "yes"})
    assert not Schedule.objects.using(using).exists()


def measure(client: Client) -> None:
    answers.shared.forget()
    assert b"pgqueue_up 1" in client.get("/pgqueue/metrics").content
    assert client.get("/pgqueue/healthz").status_code == 200
    assert snapshot.take().tallies


def command(job_id: int) -> None:
    for words in (
        ["status", "--json"],
        ["jobs", "--json"],
        ["jobs", str(job_id)],
        ["requeue", str(job_id)],
        ["cancel", str(job_id)],
        ["pause", "default"],
        ["resume", "default"],
        ["enqueue", "tests.machine.handlers.do_nothing", "[]"],
        ["prune", "--older-than", "1h"],
    ):
        call_command(f"pgqueue_{words[0]}", *words[1:])
    call_command("check", "--tag", "pgqueue", "--database", handlers.do_nothing.using_database)


@pytest.fixture
def client(transactional_db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def test_with_a_replica_for_readings_everything_of_the_queue_is_on_the_primary(
    client: Client, worker: StartWorker, gate: Callable[[], Gate], sent: Statements, settings: Any
) -> None:
    """A replica is behind: a job that was just enqueued would be missing, and one that was cancelled still run."""
    settings.DATABASE_ROUTERS = [ReadsElsewhere()]
    settings.PGQUEUE = {"METRICS_PUBLIC": True, "HEARTBEAT": 0.2}
    plan_in_admin(client, "default")
    ids = enqueue_all("default")
    work(worker, "default", ids, gate())
    look_and_decide_in_admin(client, "default", ids[0])
    measure(client)
    command(ids[0])
    counts = sent.counts()
    assert sent.of_the_queue("replica") == []
    assert counts["default"] > 100
    assert sent.on("replica"), "what the project reads for itself should have come from there"


def test_a_queue_on_an_alias_of_its_own_sends_nothing_of_it_anywhere_else(
    client: Client, worker: StartWorker, gate: Callable[[], Gate], sent: Statements, settings: Any
) -> None:
    settings.DATABASE_ROUTERS = [QueueApart()]
    settings.PGQUEUE = {"METRICS_PUBLIC": True, "HEARTBEAT": 0.2}
    plan_in_admin(client, "apart")
    ids = enqueue_all("apart")
    work(worker, "apart", ids, gate())
    look_and_decide_in_admin(client, "apart", ids[0])
    measure(client)
    command(ids[0])
    counts = sent.counts()
    assert sent.of_the_queue("default") == sent.on("shard") == []
    assert counts["apart"] > 100
    assert not Job.objects.using("default").exists()


def test_migrate_makes_the_tables_where_the_router_says_and_the_rights_where_users_are(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [QueueApart()]
    call_command("migrate", database="bare", verbosity=0)
    tables = connections["bare"].introspection.table_names()
    assert "auth_user" in tables
    assert [name for name in tables if name.startswith("pgqueue_")] == []
    rights = Permission.objects.using("bare").filter(content_type__app_label="pgqueue_django")
    assert {"view_job", "requeue_job"} <= set(rights.values_list("codename", flat=True))


def test_a_task_says_by_itself_where_its_jobs_go(sent: Statements) -> None:
    there = handlers.do_nothing.using(database="apart")
    one, two = there.enqueue().id, async_to_sync(there.aenqueue)().id
    many = [one.id for one in enqueue_many([there.call() for _ in range(60)])]
    assert sent.of_the_queue("default") == sent.on("shard") == []
    assert Job.objects.using("apart").filter(pk__in=[one, two, *many]).count() == 62
    assert not Job.objects.using("default").exists()


def test_a_bulk_for_several_databases_is_a_transaction_on_each() -> None:
    calls = [handlers.do_nothing.using(database=name).call() for name in ("apart", "shard") for _ in range(60)]
    assert len(enqueue_many(calls)) == 120
    assert {name: Job.objects.using(name).count() for name in ("default", "apart", "shard")} == {
        "default": 0,
        "apart": 60,
        "shard": 60,
    }


def test_enqueue_on_another_alias_is_not_in_the_callers_transaction() -> None:
    """The price of a queue apart, which pgqueue.W002 tells of; and what on_commit gives back."""
    there = handlers.do_nothing.using(database="apart")
    with transaction.atomic(using="default"):
        there.enqueue()
        transaction.on_commit(lambda: there.enqueue() and None, using="default")
        transaction.set_rollback(True, using="default")
    assert Job.objects.using("apart").count() == 1
    with transaction.atomic(using="apart"):
        there.enqueue()
        transaction.set_rollback(True, using="apart")
    assert Job.objects.using("apart").count() == 1


def test_two_shards_have_a_worker_each(process: Callable[..., Process], sent: Statements) -> None:
    """Each takes what is in its own, whatever is in the other."""
    urls = [make_conninfo(database_url(), dbname=database(name)) for name in ("apart", "shard")]
    ids = {
        name: [one.id for one in enqueue_many(handlers.do_nothing.using(database=name).call() for _ in range(70))]
        for name in ("apart", "shard")
    }
    first = process("--database", "direct", "--drain", settings={"DIRECT": urls[0]})
    assert first.wait(60) == 0
    assert done("apart", *ids["apart"])
    assert set(Job.objects.using("shard").values_list("state", flat=True)) == {"queued"}
    both = [process("--database", "direct", settings={"DIRECT": url}) for url in urls]
    wait_for(lambda: done("shard", *ids["shard"]), 60)
    more = {name: handlers.do_nothing.using(database=name).enqueue().id for name in ("apart", "shard")}
    wait_for(lambda: all(done(name, one) for name, one in more.items()), 60)
    for name in ("apart", "shard"):
        wait_for(lambda name=name: Worker.objects.using(name).alive().exists())
    assert [one.stop() for one in both] == [0, 0]
    assert sent.of_the_queue("default") == []

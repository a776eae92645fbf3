"""How PostgreSQL carries the verbs out: along an index, whatever its statistics say and whoever holds a snapshot.

The statements are taken from the verbs themselves while they run. Three scenes: fresh statistics; statistics of
a time when nothing was running; and a session whose old snapshot keeps every dead row version alive.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection

from pgqueue_django import snapshot, transitions
from pgqueue_django.models import Job
from pgqueue_django.outcomes import Retried, Succeeded
from pgqueue_django.states import FINISHED, State
from pgqueue_django.transitions import Settlement

from .rows import BOOM, DB, LEASE, claim, connect, held_by, new

READY, WAITING, RUNNING = "pgqueue_job_ready", "pgqueue_job_waiting", "pgqueue_job_running"
PARKED, BROKEN, PRUNABLE = "pgqueue_job_parked", "pgqueue_job_broken", "pgqueue_job_prunable"
KEY, PRIMARY = "pgqueue_job_key", "pgqueue_job_pkey"

# Of every 40 jobs: 20 ready in four queues, 8 waiting (1 of them due, 1 parked), 1 running, 11 finished.
_LOAD = """
    INSERT INTO pgqueue_job (task, queue_name, priority, state, run_after, attempts, fencing_token, worker_id,
                             started_at, lease_expires_at, finished_at, prune_after, parked_at, idempotency_key)
    SELECT 'task-' || mod(n, 7), 'queue-' || mod(n, 4), mod(n, 3), state,
           now() + CASE WHEN kind BETWEEN 21 AND 26 THEN interval '1 day' ELSE interval '-1 hour' END,
           begun::int, begun::int, CASE WHEN begun THEN 'worker-' || mod(n / 40, 4) END, now(),
           CASE WHEN state = 'running' THEN now() + (mod(n / 40, 10) - 1) * interval '1 minute' END,
           CASE WHEN kind > 28 THEN now() END,
           CASE WHEN kind > 28 THEN now() + (kind - 30) * interval '1 day' + interval '1 minute' END,
           CASE WHEN kind = 26 THEN now() END, CASE WHEN mod(n, 2) = 0 THEN 'key-' || n END
    FROM (SELECT n, mod(n, 40) AS kind, mod(n, 40) = 20 OR mod(n, 40) > 26 AS begun,
                 (array_fill('queued'::text, ARRAY[20]) || '{retrying}' || array_fill('scheduled'::text, ARRAY[6])
                  || '{retrying,running}' || array_fill('succeeded'::text, ARRAY[8]) || '{failed,dead,cancelled}'
                 )[mod(n, 40) + 1] AS state
          FROM generate_series(1, %s) AS n) AS rows
"""

SCENES = [
    pytest.param((scene, size), id=f"{scene}, {size}", marks=[pytest.mark.slow] if size > 20_000 else [])
    for size in (20_000, 200_000)
    for scene in ("fresh statistics", "stale statistics", "held snapshot")
]


@pytest.fixture(scope="module", params=SCENES)
def scene(request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    name, size = request.param
    with django_db_blocker.unblock(), connect() as old_session:
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE pgqueue_job, pgqueue_stat")
            cursor.execute("ALTER TABLE pgqueue_job SET (autovacuum_enabled = off)")
            if name == "stale statistics":
                cursor.execute("INSERT INTO pgqueue_job (task, state, finished_at) "
                               "SELECT 'old', 'succeeded', now() FROM generate_series(1, 500)")  # fmt: skip
                cursor.execute("ANALYZE pgqueue_job")
            cursor.execute(_LOAD, [size])
            if name != "stale statistics":
                cursor.execute("ANALYZE pgqueue_job")
        if name == "held snapshot":
            old_session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            old_session.execute("SELECT count(*), pg_current_xact_id() FROM pgqueue_job")
            _work()
        yield name
        old_session.rollback()
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE pgqueue_job, pgqueue_stat")
            cursor.execute("ALTER TABLE pgqueue_job RESET (autovacuum_enabled)")


def _work() -> None:
    """2,000 jobs come and go: 6,000 dead row versions that no vacuum may take."""
    for _ in range(20):
        transitions.enqueue_many(DB, [new(queue_name="busy", task="busy") for _ in range(100)])
        held = claim(100, queue_name="busy", worker_id="worker-0")
        transitions.heartbeat(DB, [job.pair for job in held], lease_seconds=LEASE)
        transitions.settle(DB, [Settlement(job, Succeeded("1")) for job in held], worker_id="worker-0")


@dataclass
class Plan:
    """One statement as it was carried out."""

    sql: str
    nodes: list[dict[str, Any]]
    top: dict[str, Any]

    @property
    def indexes(self) -> set[str]:
        # Of jobs: what a snapshot reads beside them has indexes of its own.
        return {node["Index Name"] for node in self.nodes if node.get("Index Name", "").startswith("pgqueue_job_")}

    @property
    def scanned(self) -> list[str]:
        # Workers and statistics are few.
        return [
            node["Relation Name"]
            for node in self.nodes
            if node["Node Type"] == "Seq Scan" and node["Relation Name"] == "pgqueue_job"
        ]

    @property
    def touched(self) -> int:
        """Rows that the statement writes, or returns if it only reads."""
        inner = [child for child in self.top.get("Plans", []) if child["Parent Relationship"] == "Outer"]
        return max(int(node["Actual Rows"]) for node in [self.top, *inner])

    @property
    def buffers(self) -> int:
        return int(self.top["Shared Hit Blocks"] + self.top["Shared Read Blocks"])


def plans_of(act: Callable[[], object]) -> list[Plan]:
    """Runs ``act`` and explains each of its statements on jobs, analysed, just before it is executed."""
    plans = []

    def explain(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if "pgqueue_job" in sql:
            execute("SAVEPOINT before_explain", None, False, context)
            execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params, many, context)
            (answer,) = context["cursor"].fetchone()
            execute("ROLLBACK TO SAVEPOINT before_explain", None, False, context)
            top = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
            plans.append(Plan(sql, list(_walk(top)), top))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        act()
    assert plans
    return plans


def _walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _walk(child)


def running(count: int, worker_id: str | None = None) -> list[transitions.Claimed]:
    found = Job.objects.filter(state=State.RUNNING).order_by("id")
    if worker_id:
        found = found.filter(worker_id=worker_id)
    return [held_by(job) for job in found[:count]]


def of_state(state: State, count: int = 100) -> list[int]:
    return list(Job.objects.filter(state=state).order_by("id").values_list("pk", flat=True)[:count])


def pairs(held: list[transitions.Claimed]) -> list[tuple[int, int]]:
    return [job.pair for job in held]


def halfway(queue_name: str) -> tuple[int, float, int]:
    jobs = Job.objects.ready(queue_name).filter(priority=1)
    job = jobs[jobs.count() // 2]
    return job.priority, job.run_after.timestamp(), job.pk


def settle_some() -> object:
    outcomes = [Succeeded("1"), Retried(BOOM, 60)]
    return transitions.settle(
        DB, [Settlement(job, outcomes[n % 2]) for n, job in enumerate(running(100))], worker_id="w"
    )


def disown_some() -> object:
    return transitions.disown(DB, "worker-1", begun=pairs(running(5, "worker-1")), by="w")


# Verb -> how it is called, and the indexes that it may use. A fenced write goes by primary key alone.
VERBS: dict[str, tuple[Callable[[], object], set[str]]] = {
    "enqueue": (lambda: transitions.enqueue(DB, new("task-0", idempotency_key="new")), {KEY}),
    "enqueue, taken key": (lambda: transitions.enqueue(DB, new("task-2", idempotency_key="key-2")), {KEY}),
    "enqueue_many, taken keys": (
        lambda: transitions.enqueue_many(
            DB, [new(f"task-{n % 7}", idempotency_key=f"key-{n}") for n in range(2, 200, 2)]
        ),
        {KEY},
    ),
    "claim": (lambda: claim(10, queue_name="queue-1"), {READY, PRIMARY}),
    "claim, resumed": (lambda: claim(10, queue_name="queue-1", after=halfway("queue-1")), {READY, PRIMARY}),
    "claim, last attempts ahead": (lambda: claim(2, 20, queue_name="queue-2"), {READY, PRIMARY}),
    "heartbeat": (lambda: transitions.heartbeat(DB, pairs(running(100)), lease_seconds=LEASE), {PRIMARY}),
    "heartbeat, one job": (lambda: transitions.heartbeat(DB, pairs(running(1)), lease_seconds=LEASE), {PRIMARY}),
    "settle": (settle_some, {PRIMARY}),
    "settle_inside": (
        lambda: transitions.settle_inside(DB, Settlement(running(1)[0], Succeeded("1"))),
        {PRIMARY},
    ),
    "release": (lambda: transitions.release(DB, pairs(running(100))), {PRIMARY}),
    "reap": (lambda: transitions.reap(DB, by="w"), {RUNNING, PRIMARY}),
    "reap, overdue": (lambda: transitions.reap(DB, overdue=pairs(running(100)), by="w"), {PRIMARY}),
    "reap, one overdue": (lambda: transitions.reap(DB, overdue=pairs(running(1)), by="w"), {PRIMARY}),
    "disown": (disown_some, {RUNNING, PRIMARY}),
    "promote": (lambda: transitions.promote(DB, limit=100), {WAITING, PRIMARY}),
    "adopt": (lambda: transitions.adopt(DB, ["task-1", "task-2"], limit=100), {PARKED, PRIMARY}),
    "cancel": (lambda: transitions.cancel(DB, of_state(State.QUEUED)), {PRIMARY}),
    "requeue": (lambda: transitions.requeue(DB, of_state(State.DEAD)), {PRIMARY}),
    "run_now": (lambda: transitions.run_now(DB, of_state(State.SCHEDULED)), {PRIMARY}),
    "delete": (lambda: transitions.delete(DB, of_state(State.FAILED)), {PRIMARY}),
    "prune": (lambda: transitions.prune(DB, limit=100), {PRUNABLE, PRIMARY}),
    "prune, beyond": (lambda: transitions.prune_beyond(DB, 1_000, limit=100), {PRUNABLE, PRIMARY}),
    "prune, older": (
        lambda: transitions.prune_older(DB, FINISHED, older_seconds=0, after=0),
        {PRIMARY},
    ),
    "ready_queues": (lambda: transitions.ready_queues(DB), {READY}),
    "parked_tasks": (lambda: transitions.parked_tasks(DB), {PARKED}),
    "snapshot": (lambda: snapshot.take(DB), {READY, WAITING, RUNNING, BROKEN, PARKED}),
}


def plans_of_verb(verb: str) -> list[Plan]:
    # The scene's own look-ups of rows to work on are not the verb's.
    return [
        plan for plan in plans_of(VERBS[verb][0]) if "WITH walk" in plan.sql or 'FROM "pgqueue_job"' not in plan.sql
    ]


@pytest.mark.django_db
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_reaches_its_rows_by_the_indexes_made_for_it(scene: str, verb: str) -> None:
    for plan in plans_of_verb(verb):
        assert plan.scanned == []
        assert plan.indexes <= VERBS[verb][1], plan.sql
        for node in plan.nodes:
            if node.get("Index Name") == PRIMARY:
                assert node["Actual Rows"] * node["Actual Loops"] <= plan.touched, "all of the rows, for each of them"


@pytest.mark.django_db
@pytest.mark.parametrize("verb", ["claim", "claim, resumed", "claim, last attempts ahead"])
def test_a_claim_reads_no_more_than_its_limit_and_sorts_only_that(scene: str, verb: str) -> None:
    (plan,) = plans_of_verb(verb)
    limit = {"claim": 10, "claim, resumed": 10, "claim, last attempts ahead": 22}[verb]
    (walk,) = [node for node in plan.nodes if node.get("Index Name") == READY]
    assert walk["Actual Rows"] <= limit
    for node in plan.nodes:
        if "Sort" in node["Node Type"]:
            assert not [below for below in _walk(node) if below.get("Relation Name") == "pgqueue_job"]
    assert plan.buffers < 60 * limit


@pytest.mark.django_db
def test_a_claim_costs_the_same_whatever_waits_and_whatever_has_ended(scene: str) -> None:
    (before,) = plans_of_verb("claim")
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM pgqueue_job WHERE state <> 'queued'")
    (after,) = plans_of_verb("claim")
    assert before.buffers <= 2 * after.buffers


@pytest.mark.django_db
@pytest.mark.parametrize("verb", ["heartbeat", "settle", "release", "reap, overdue"])
def test_a_fenced_write_costs_the_same_whatever_else_is_in_the_table(scene: str, verb: str) -> None:
    assert sum(plan.buffers for plan in plans_of_verb(verb)) < 40 * 100, (
        "some for each row and index, nothing for the other rows"
    )

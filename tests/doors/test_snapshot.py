"""The snapshot against the table: equal where it counts, bounded where it stops, one statement, indexes only."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from verbs import rows

from doors.conftest import analyze, fill, plan
from pgqueue_django import snapshot, stats
from pgqueue_django.models import Job, Stat, Worker
from pgqueue_django.states import State

pytestmark = pytest.mark.django_db


def counted(taken: snapshot.Snapshot) -> dict[tuple[str, str], int]:
    return {(depth.queue_name, str(depth.state)): depth.jobs for depth in taken.depths}


def test_it_equals_the_table_for_every_state_that_is_counted() -> None:
    fill(scheduled=3, queued=7, running=4, retrying=5, failed=6, dead=2, succeeded=9, cancelled=8)
    table = Counter(Job.objects.exclude(state__in=["succeeded", "cancelled"]).values_list("queue_name", "state"))
    taken = snapshot.take()
    assert counted(taken) == dict(table)
    assert taken.capped == frozenset()
    assert not any(depth.capped for depth in taken.depths)


def test_an_empty_table_is_an_empty_snapshot() -> None:
    taken = snapshot.take()
    assert (taken.depths, taken.oldest_due, taken.workers, taken.tallies) == ((), {}, 0, ())


@pytest.mark.parametrize("state", snapshot.COUNTED)
def test_a_walk_ends_at_the_cap_and_says_so(monkeypatch: pytest.MonkeyPatch, state: State) -> None:
    monkeypatch.setattr(snapshot, "CAP", 6)
    fill(**{state: 30})
    taken = snapshot.take()
    of_state = [depth for depth in taken.depths if depth.state == state]
    assert sum(depth.jobs for depth in of_state) == (18 if state == State.QUEUED else 6)  # three queues
    assert all(depth.capped for depth in of_state)
    waiting = {State.SCHEDULED, State.RETRYING}
    assert taken.capped == (waiting if state in waiting else {state})


def test_a_queue_below_the_cap_is_exact_beside_one_above(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "CAP", 5)
    for _ in range(8):
        rows.make_job(queue_name="long")
    rows.make_job(queue_name="short")
    depths = {depth.queue_name: (depth.jobs, depth.capped) for depth in snapshot.take().depths}
    assert depths == {"long": (5, True), "short": (1, False)}


def test_queues_with_many_ready_jobs_share_what_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CAP", 20), ("READY", 30), ("FEW", 5)):
        monkeypatch.setattr(snapshot, name, value)
    for name, jobs in (("few", 4), ("many", 12), ("more", 16), ("most", 40)):
        for _ in range(jobs):
            rows.make_job(queue_name=name)
    depths = {depth.queue_name: (depth.jobs, depth.capped) for depth in snapshot.take().depths}
    assert depths == {"few": (4, False), "many": (10, True), "more": (10, True), "most": (10, True)}
    Job.objects.filter(queue_name="most").delete()
    depths = {depth.queue_name: (depth.jobs, depth.capped) for depth in snapshot.take().depths}
    assert depths == {"few": (4, False), "many": (12, False), "more": (15, True)}


def test_queues_beyond_the_bound_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_QUEUES", 2)
    for name in ("a", "b", "c", "c", "d"):
        rows.make_job(queue_name=name)
    assert counted(snapshot.take()) == {("a", "queued"): 1, ("b", "queued"): 1, ("other", "queued"): 3}


def test_the_oldest_due_job_is_found_behind_higher_priorities_and_among_waiting_jobs() -> None:
    rows.move_clock(rows.make_job(queue_name="a", priority=50).pk, "run_after", -5)
    low = rows.make_job(queue_name="a", priority=-50)
    rows.move_clock(low.pk, "run_after", -100)
    rows.move_clock(low.pk, "enqueued_at", -100)
    due = rows.make_job("scheduled", queue_name="b", due=True)
    rows.move_clock(due.pk, "run_after", -40)
    rows.move_clock(due.pk, "enqueued_at", -60)
    rows.make_job("scheduled", queue_name="c")
    oldest = snapshot.take().oldest_due
    assert set(oldest) == {"a", "b"}
    assert oldest["a"] == pytest.approx(100, abs=5)
    assert oldest["b"] == pytest.approx(40, abs=5)


def test_a_job_is_not_due_before_it_was_enqueued() -> None:
    rows.make_job(queue_name="a", run_after=timedelta(days=-300))
    assert snapshot.take().oldest_due["a"] < 30


def test_only_workers_with_a_fresh_heartbeat_live() -> None:
    for name, age in (("fresh", 10), ("late", 31)):
        Worker.objects.create(id=name, name=name, host="h", pid=1, concurrency=8, lease_seconds=30)
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE pgqueue_worker SET heartbeat_at = statement_timestamp() - make_interval(secs => %s) "
                "WHERE id = %s",
                [age, name],
            )
    assert snapshot.take().workers == 1


def add(queue_name: str, task: str, state: State, pickup: float | None, run: float | None, worker: str = "w") -> None:
    with connection.cursor() as cursor:
        stats.add(cursor, worker, [stats.Sample(queue_name, task, state, pickup, run)])


def test_tallies_sum_what_all_workers_wrote() -> None:
    add("q", "t", State.SUCCEEDED, 0.003, 0.2)
    add("q", "t", State.DEAD, None, 400.0, worker="w2")
    add("q", "u", State.RETRYING, 0.003, 1.0)
    first, second = snapshot.take().tallies
    assert (first.queue_name, first.task, second.task) == ("q", "t", "u")
    assert (first.succeeded, first.retried, first.failed, first.dead) == (1, 0, 0, 1)
    assert first.pickup_counts == (0, 1, *[0] * 14)
    assert first.run_counts == (*[0] * 6, 1, *[0] * 8, 1)
    assert (first.pickup_seconds, first.run_seconds) == (pytest.approx(0.003), pytest.approx(400.2))


def test_pairs_beyond_the_bound_fold_and_the_first_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_PAIRS", 2)
    for task in ("z", "y", "a", "b"):
        add("q", task, State.SUCCEEDED, None, 1.0)
    assert [(tally.task, tally.succeeded) for tally in snapshot.take().tallies] == [("z", 1), ("y", 1), ("other", 2)]
    assert Stat.objects.count() == 4


def test_walks_are_planned_without_sorts_and_run_without_compiling() -> None:
    with snapshot.index_walks("default") as cursor:
        cursor.execute("SELECT current_setting('enable_sort'), current_setting('jit')")
        assert cursor.fetchone() == ("off", "off")


def test_it_is_one_statement_and_the_callers_settings_stay() -> None:
    fill(queued=3)
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('enable_sort'), current_setting('statement_timeout')")
        before = cursor.fetchone()
        with CaptureQueriesContext(connection) as queries, transaction.atomic():
            snapshot.take()
        reading = [query["sql"] for query in queries if "pgqueue_" in query["sql"]]
        cursor.execute("SELECT current_setting('enable_sort'), current_setting('statement_timeout')")
        assert cursor.fetchone() == before
    assert len(reading) == 1


MIXES = {
    "even": dict.fromkeys(
        ("scheduled", "queued", "running", "retrying", "failed", "dead", "succeeded", "cancelled"), 2500
    ),
    "finished": {"succeeded": 20_000, "queued": 5, "retrying": 5, "failed": 5, "dead": 5, "running": 5},
    "waiting": {"scheduled": 20_000, "retrying": 5, "queued": 5},
    "broken": {"dead": 20_000, "failed": 5, "queued": 5},
    "rejected": {"failed": 20_000, "dead": 5, "queued": 5},
    "ready": {"queued": 20_000, "running": 5},
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("statistics", ["fresh", "none", "stale"])
def test_no_plan_scans_the_table(mix: str, statistics: str) -> None:
    if statistics == "stale":  # of a time when the table was full of what is rare now
        fill(dead=10_000, queued=10_000)
        analyze()
        Job.objects.all().delete()
    fill(**MIXES[mix])
    if statistics == "fresh":
        analyze()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(snapshot._PLANNING, ["10s"])
        text = plan(snapshot._READING, snapshot._bounds())
    assert "Seq Scan on pgqueue_job" not in text, text
    assert "Bitmap Heap Scan on pgqueue_job" not in text, text
    assert "pgqueue_job_pkey" not in text, text


def explained(node: dict[str, Any]) -> Any:
    yield node
    for child in node.get("Plans", ()):
        yield from explained(child)


def test_of_parked_jobs_the_first_of_each_task_are_read() -> None:
    fill(scheduled=3_000)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pgqueue_job SET task = 'gone' || id % 3, parked_at = statement_timestamp() - interval '1 day'"
        )
    analyze()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(snapshot._PLANNING, ["10s"])
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + snapshot._READING, {**snapshot._bounds(), "few": 10})
        (text,) = cursor.fetchone()
    (tree,) = json.loads(text) if isinstance(text, str) else text
    read = [
        node["Actual Rows"] * node["Actual Loops"]
        for node in explained(tree["Plan"])
        if node.get("Index Name") == "pgqueue_job_parked"
    ]
    assert 3 * 10 <= sum(read) <= 3 * 10 + 10
    assert set(snapshot.take().unknown_tasks) == {"gone0", "gone1", "gone2"}


def test_rows_read_are_bounded_by_the_cap() -> None:
    fill(scheduled=3_000, queued=3_000, failed=3_000, dead=3_000, running=3_000)
    analyze()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(snapshot._PLANNING, ["10s"])
        bounds = {**snapshot._bounds(), "cap": 100, "ready": 150, "few": 10}
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + snapshot._READING, bounds)
        (text,) = cursor.fetchone()
    (tree,) = json.loads(text) if isinstance(text, str) else text
    read = [
        node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        for node in explained(tree["Plan"])
        if node.get("Relation Name") == "pgqueue_job"
    ]
    assert read
    assert max(read) <= 100
    ready = [
        node["Actual Rows"] * node["Actual Loops"]
        for node in explained(tree["Plan"])
        if node.get("Index Name") == "pgqueue_job_ready"
    ]
    assert 150 <= sum(ready) <= 150 + 3 * 10 + 20  # and the heads of three queues' two priorities

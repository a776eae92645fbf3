"""The full count of what a snapshot does not count to its end."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from verbs import rows

from doors.conftest import analyze, fill, plan
from pgqueue_django import counts, snapshot
from pgqueue_django.models import Chore, Count, Job
from pgqueue_django.states import State
from pgqueue_django.worker import chores

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "CAP", 5)


def count() -> dict[tuple[str, str], int]:
    counts.take("default", counts.crowded("default"))
    return {(row.queue_name, row.state): row.jobs for row in Count.objects.all()}


def test_it_counts_the_states_with_many_and_no_others() -> None:
    fill(scheduled=3, retrying=3, queued=20, running=4, failed=30, dead=2, succeeded=40, cancelled=40)
    wanted = Job.objects.filter(state__in=["scheduled", "retrying", "queued", "failed"])
    assert count() == dict(Counter(wanted.values_list("queue_name", "state")))


def test_a_state_that_has_few_again_has_no_count_any_more() -> None:
    fill(dead=30, failed=30)
    assert {state for _, state in count()} == {"dead", "failed"}
    Job.objects.filter(state="dead").delete()
    assert {state for _, state in count()} == {"failed"}


def test_queues_beyond_the_bound_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_QUEUES", 2)
    for number in range(4):
        for _ in range(number + 3):
            rows.make_job("dead", queue_name=f"q{number}")
    assert count() == {("q3", "dead"): 6, ("q2", "dead"): 5, ("other", "dead"): 7}


def test_while_somebody_counts_nobody_else_does(second_connection: Any) -> None:
    fill(dead=30)
    with second_connection.transaction():
        second_connection.execute("SELECT pg_advisory_xact_lock(%s)", [counts._LOCK])
        assert count() == {}
    assert sum(count().values()) == 30


def test_a_snapshot_says_what_was_counted_where_it_stopped_itself() -> None:
    fill(dead=30, queued=12)
    assert sum(depth.jobs for depth in snapshot.take().depths if depth.state == State.DEAD) == 5
    count()
    rows.make_job("dead", queue_name="new")  # the newest are seen first
    Job.objects.filter(queue_name="q2", state="queued").delete()
    taken = snapshot.take()
    dead = {depth.queue_name: depth.jobs for depth in taken.depths if depth.state == State.DEAD}
    assert dead == {"q0": 10, "q1": 10, "q2": 10, "new": 1}
    assert all(depth.capped for depth in taken.depths if depth.state == State.DEAD)
    assert set(taken.count_ages) == {State.DEAD}
    assert 0 <= taken.count_ages[State.DEAD] < 60


def test_where_more_are_seen_than_were_counted_it_is_those() -> None:
    fill(dead=6)
    count()
    Job.objects.all().delete()
    for _ in range(5):
        rows.make_job("dead", queue_name="q0")
    assert {depth.queue_name: depth.jobs for depth in snapshot.take().depths} == {"q0": 5, "q1": 2, "q2": 2}


def test_a_queue_whose_ready_jobs_are_counted_to_the_end_has_no_older_number() -> None:
    fill(queued=30)
    count()
    keep = list(Job.objects.filter(queue_name="q1").values_list("pk", flat=True)[:2])
    Job.objects.filter(queue_name__in=["q1", "q2"]).exclude(pk__in=keep).delete()
    assert {depth.queue_name: depth.jobs for depth in snapshot.take().depths} == {"q0": 10, "q1": 2}


def test_a_count_that_takes_too_long_is_given_up_and_what_came_before_it_stays(
    second_connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(dead=30, queued=30)
    count()
    Job.objects.filter(queue_name="q0", state="queued").delete()
    monkeypatch.setattr(counts, "MAX_SECONDS", 0.5)
    with second_connection.transaction():
        second_connection.execute("DELETE FROM pgqueue_count WHERE state = 'dead'")
        with pytest.raises(OperationalError, match="statement timeout"):
            count()
    assert {row.queue_name: row.jobs for row in Count.objects.filter(state="queued")} == {"q1": 10, "q2": 10}


def test_of_ready_jobs_also_those_of_a_queue_that_had_only_its_part_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CAP", 20), ("READY", 10), ("FEW", 4)):
        monkeypatch.setattr(snapshot, name, value)
    fill(queued=18)
    assert {depth.jobs for depth in snapshot.take().depths} == {4}
    count()
    assert {depth.jobs for depth in snapshot.take().depths} == {6}


def test_who_looks_for_states_with_many_does_not_wait_for_who_counts(second_connection: Any) -> None:
    fill(dead=30)
    count()
    Job.objects.all().delete()
    with second_connection.transaction(), connection.cursor() as cursor:
        second_connection.execute("DELETE FROM pgqueue_count")
        cursor.execute("SET lock_timeout = '1s'")
        try:
            assert counts.crowded("default") == []
        finally:
            cursor.execute("RESET lock_timeout")


@pytest.mark.parametrize("statistics", ["fresh", "none", "stale"])
@pytest.mark.parametrize("states", counts._CROWDS)
def test_neither_probe_nor_count_reads_the_whole_table(states: counts.Crowd, statistics: str) -> None:
    if statistics == "stale":  # of a time when nearly all were in these states
        fill(**dict.fromkeys(map(str, states), 10_000))
        analyze()
        Job.objects.all().delete()
    fill(succeeded=20_000, **dict.fromkeys(map(str, states), 50))
    if statistics == "fresh":
        analyze()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(counts._PLANNING, ["10s"])
        where = counts._where(states)
        for sql, params in ((counts._PROBE, [5]), (counts._COUNT, [200])):
            text = plan(sql.format(where=where), params)
            assert "Seq Scan on pgqueue_job" not in text, text
            assert "pgqueue_job_pkey" not in text, text


def worker_chores() -> chores.Chores:
    return chores.Chores(
        "default", worker_id="w", interval=1.0, adopt_at_once=100, queues=(), excluded=(), promoted=lambda: None
    )


def test_a_worker_counts_them_now_and_then_and_rests_a_hundred_times_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chores, "_COUNT_REST", 1e6)
    mine = worker_chores()
    mine.look()
    fill(dead=30)
    Chore.objects.update(due_at=rows.database_now())
    mine.look()
    rows.wait_for(lambda: Count.objects.count() == 3)

    def is_put_off() -> bool:
        return bool(rows.seconds_from_now(Chore.objects.get(name="count").due_at) > 2 * chores._COUNT_SECONDS)

    rows.wait_for(is_put_off)


def test_a_count_that_fails_is_logged_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("not today")

    monkeypatch.setattr(counts, "take", refuse)
    fill(dead=30)
    mine = worker_chores()
    mine.look()
    mine.look()
    rows.wait_for(lambda: "jobs were not counted: not today" in caplog.text)
    assert mine.look() < 2

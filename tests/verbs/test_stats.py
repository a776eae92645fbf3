"""Counters and histograms: what was settled, no more and no less."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import Sum

from pgqueue_django import snapshot, stats, transitions
from pgqueue_django.models import Stat, StatHistory
from pgqueue_django.outcomes import DeadLettered, Failed, Failure, Kind, Retried, Settled, Succeeded
from pgqueue_django.states import State
from pgqueue_django.stats import BOUNDS, Sample
from pgqueue_django.transitions import Settlement

from .rows import BOOM, DB, WORKER, claim, database_now, make_job, move_clock, new, statements

pytestmark = pytest.mark.django_db

OUTCOMES: list[Settled] = [Succeeded("1"), Retried(BOOM, 60), Failed(BOOM), DeadLettered(BOOM)]


@pytest.fixture(autouse=True)
def one_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a test stay in one minute, whatever the time is."""
    monkeypatch.setattr(
        stats, "_ROW", stats._ROW.replace("statement_timestamp()", "timestamptz '2030-01-01 12:00:30+00'")
    )


def add(*samples: Sample, worker_id: str = WORKER) -> None:
    with connection.cursor() as cursor:
        stats.add(cursor, worker_id, samples)


def sample(state: State = State.SUCCEEDED, *, pickup: float | None = 0.0, run: float | None = 0.0) -> Sample:
    return Sample("default", "task", state, pickup, run)


def totals(**where: Any) -> dict[str, int]:
    names = ("succeeded", "retried", "failed", "dead")
    found = Stat.objects.filter(**where).values(*names)
    return {name: sum(row[name] for row in found) for name in names}


def settle_each(*outcomes: Settled, **columns: Any) -> None:
    transitions.enqueue_many(DB, [new(**columns) for _ in outcomes])
    held = claim(len(outcomes), queue_name=columns.get("queue_name", "default"))
    settlements = [Settlement(job, outcome, 0.02, 0.3) for job, outcome in zip(held, outcomes, strict=True)]
    transitions.settle(DB, settlements, worker_id=WORKER)


def test_the_counters_equal_what_was_settled() -> None:
    settle_each(*OUTCOMES[:1] * 4, *OUTCOMES[1:2] * 3, *OUTCOMES[2:3] * 2, *OUTCOMES[3:])
    assert totals() == {"succeeded": 4, "retried": 3, "failed": 2, "dead": 1}
    found = Stat.objects.get()
    assert (found.worker_id, found.queue_name, found.task) == (WORKER, "default", "shop.tasks.charge")
    assert sum(found.pickup_counts) == sum(found.run_counts) == 10
    assert found.pickup_seconds == pytest.approx(0.2)
    assert found.run_seconds == pytest.approx(3)


def test_a_minute_begins_at_its_full_minute() -> None:
    add(sample())
    assert Stat.objects.get().minute.isoformat() == "2030-01-01T12:00:00+00:00"


def test_two_flushes_add_up() -> None:
    settle_each(*OUTCOMES)
    settle_each(*OUTCOMES)
    found = Stat.objects.get()
    assert totals() == {"succeeded": 2, "retried": 2, "failed": 2, "dead": 2}
    assert sum(found.pickup_counts) == sum(found.run_counts) == 8
    assert found.run_counts[BOUNDS.index(0.5)] == 8
    assert len(found.run_counts) == len(BOUNDS) + 1
    assert found.run_seconds == pytest.approx(2.4)


def test_each_queue_task_and_worker_has_a_row_of_its_own() -> None:
    settle_each(Succeeded("1"), queue_name="a")
    settle_each(Succeeded("1"), queue_name="b")
    settle_each(Succeeded("1"), queue_name="b", task="other")
    add(sample(), worker_id="w2")
    assert Stat.objects.count() == 4
    assert totals(queue_name="b")["succeeded"] == 2


@pytest.mark.parametrize("place", range(len(BOUNDS)))
def test_a_time_falls_into_the_first_bucket_that_holds_it(place: int) -> None:
    bound = BOUNDS[place]
    add(sample(pickup=bound, run=bound * 1.001), sample(pickup=bound * 0.999, run=bound))
    found = Stat.objects.get()
    assert [n for n, count in enumerate(found.pickup_counts) if count] == [place]
    assert [n for n, count in enumerate(found.run_counts) if count] == [place, place + 1]


def test_what_is_beyond_every_bound_falls_into_the_last_bucket() -> None:
    add(sample(pickup=10_000, run=10_000))
    found = Stat.objects.get()
    assert found.pickup_counts[-1] == found.run_counts[-1] == 1


def test_what_nobody_could_measure_is_counted_but_in_no_histogram() -> None:
    add(sample(pickup=None, run=None))
    found = Stat.objects.get()
    assert totals()["succeeded"] == 1
    assert sum(found.pickup_counts) == sum(found.run_counts) == 0


def test_any_number_of_samples_is_one_statement() -> None:
    with statements() as sent:
        add(*(Sample(f"q{n % 5}", f"t{n % 7}", State.DEAD, 0.1, 0.1) for n in range(1000)))
    assert len(sent) == 1
    assert totals()["dead"] == 1000


def test_no_samples_are_no_statement() -> None:
    with statements() as sent:
        add()
    assert sent == []


def test_outcomes_that_did_not_move_a_job_are_not_counted() -> None:
    make_job()
    (held,) = claim()
    transitions.cancel(DB, [held.id])
    transitions.settle(DB, [Settlement(held, Succeeded("1"))], worker_id=WORKER)
    assert totals() == {"succeeded": 0, "retried": 0, "failed": 0, "dead": 0}


def test_attempts_that_were_settled_elsewhere_ride_in_the_next_flush() -> None:
    make_job()
    (held,) = claim()
    item = Settlement(held, Succeeded("1"), 0.1, 0.1)
    transitions.settle_inside(DB, item)
    assert totals()["succeeded"] == 0
    transitions.settle(DB, [], worker_id=WORKER, already=[item.sample()])
    assert totals()["succeeded"] == 1


@pytest.mark.django_db(transaction=True)
def test_counters_and_jobs_commit_together() -> None:
    with transaction.atomic():
        settle_each(*OUTCOMES)
        transaction.set_rollback(True)
    assert not Stat.objects.exists()


def test_reaped_and_disowned_attempts_are_counted_for_whoever_gave_them_up() -> None:
    for max_attempts in (1, 5):
        job = make_job("running", expired=True, max_attempts=max_attempts)
        move_clock(job.pk, "started_at", -20)
        transitions.reap(DB, by="reaper")
        lost = make_job("running", worker_id="lost", max_attempts=max_attempts)
        make_job("running", worker_id="lost")
        transitions.disown(DB, "lost", begun=[(lost.pk, lost.fencing_token)], by="supervisor")
    assert totals(worker_id="reaper") == {"succeeded": 0, "retried": 1, "failed": 0, "dead": 1}
    assert totals(worker_id="supervisor") == {"succeeded": 0, "retried": 1, "failed": 0, "dead": 1}
    # A process that is known to have died has not lost its lease by its end.
    assert dict(Stat.objects.values_list("worker_id", "expired")) == {"reaper": 2, "supervisor": 0}
    found = Stat.objects.get(worker_id="reaper")
    assert found.run_counts[BOUNDS.index(30.0)] == 2
    assert sum(found.pickup_counts) == 0


def test_an_attempt_that_gave_way_because_its_lease_had_ended_is_counted_as_expired() -> None:
    lost = Failure(Kind.LEASE_EXPIRED, "LeaseLost", "…")
    settle_each(Retried(lost, 60), DeadLettered(lost), DeadLettered(BOOM))
    assert Stat.objects.get().expired == 2


def everything() -> tuple[Any, ...]:
    columns = ("succeeded", "retried", "failed", "dead", "expired", "pickup_seconds", "run_seconds")
    sums = Stat.objects.aggregate(**{name: Sum(name) for name in columns})
    buckets = [
        tuple(sum(counts) for counts in zip(*Stat.objects.values_list(name, flat=True), strict=True))
        for name in ("pickup_counts", "run_counts")
    ]
    return tuple(round(sums[name], 6) for name in columns), *buckets


def test_rolling_up_keeps_every_total_and_the_recent_minutes() -> None:
    for age in (7300, 7200, 60):
        for worker in ("w1", "w2"):
            add(sample(pickup=0.004, run=3), sample(State.DEAD, run=None)._replace(expired=True), worker_id=worker)
            Stat.objects.filter(minute__year=2030).update(minute=database_now() - timedelta(seconds=age))
    before, first_id = everything(), Stat.objects.order_by("id").values_list("id", flat=True)[0]
    with connection.cursor() as cursor:
        assert stats.roll_up(cursor, older_seconds=3600, limit=3) is True
        assert stats.roll_up(cursor, older_seconds=3600, limit=3) is False
    assert everything() == before
    assert Stat.objects.count() == 1 + 2
    assert Stat.objects.order_by("minute").values_list("id", "worker_id")[0] == (first_id, "")


def test_no_sum_of_a_snapshot_goes_down_when_rows_are_rolled_up() -> None:
    """Floating point: the same numbers in another order may be less, and to Prometheus that is a start from 0."""
    random = Random(7)
    for minute in range(60):
        for worker in ("w1", "w2", "w3"):
            add(sample(pickup=random.random(), run=1000 * random.random()), worker_id=worker)
            Stat.objects.filter(minute__year=2030).update(minute=database_now() - timedelta(minutes=200 - minute))
    told = snapshot.take().tallies
    for _ in range(18):
        with connection.cursor() as cursor:
            stats.roll_up(cursor, older_seconds=3600, limit=10)
        assert snapshot.take().tallies == told


# -- history ---------------------------------------------------------------------------------------------------


def history(seconds: int) -> list[tuple[str, int]]:
    rows = StatHistory.objects.filter(seconds=seconds).order_by("begin")
    return [(f"{row.begin:%d %H:%M}", row.succeeded) for row in rows]


def test_minutes_of_all_workers_stay_in_the_history_when_they_are_rolled_up() -> None:
    for worker_id, minute in [("a", 5), ("b", 5), ("a", 6)]:
        add(sample(run=0.3), sample(State.DEAD)._replace(expired=True), worker_id=worker_id)
        Stat.objects.filter(minute__year=2030).update(minute=datetime(2025, 1, 1, 12, minute, tzinfo=UTC))
    with connection.cursor() as cursor:
        # In two steps: what comes later to a minute is added.
        assert stats.roll_up(cursor, older_seconds=3600, limit=2) is True
        assert stats.roll_up(cursor, older_seconds=3600, limit=2) is False
    assert history(60) == [("01 12:05", 2), ("01 12:06", 1)]
    row = StatHistory.objects.get(begin__minute=5)
    assert (row.dead, row.expired, sum(row.run_counts), row.run_seconds) == (2, 2, 4, pytest.approx(0.6))
    assert totals() == {"succeeded": 3, "retried": 0, "failed": 0, "dead": 3}


def test_the_history_becomes_hours_after_two_days_and_is_forgotten_after_ninety() -> None:
    now = database_now()

    def keep(seconds: int, ago: timedelta, succeeded: int) -> None:
        counts = [0] * (len(BOUNDS) + 1)
        StatHistory.objects.create(
            seconds=seconds, begin=now - ago, queue_name="q", task="t", succeeded=succeeded, pickup_counts=counts,
            run_counts=counts,
        )  # fmt: skip

    keep(60, timedelta(hours=47), 1)
    old = (now - timedelta(days=10)).replace(minute=10, second=0, microsecond=0)
    for minute in (10, 11, 12):
        keep(60, now - old.replace(minute=minute), 10)
    keep(3600, timedelta(days=89), 100)
    keep(3600, timedelta(days=91), 1_000)
    with connection.cursor() as cursor:
        assert stats.thin(cursor, limit=2) is True
        assert stats.thin(cursor, limit=2) is False
    assert [one for _, one in history(60)] == [1]
    assert [one for _, one in history(3600)] == [100, 30]
    assert StatHistory.objects.get(succeeded=30).begin == old.replace(minute=0)

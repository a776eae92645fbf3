"""What the dashboard reads: lists, rates, windows, feed; bounded, along indexes, and of what it has seen only."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st
from verbs import rows
from verbs.rows import DB, claim_one, held_by, make_job, settle

from doors.conftest import analyze, fill, plan
from doors.test_snapshot import MIXES, explained
from pgqueue_django import queues, snapshot, stats, transitions
from pgqueue_django.dashboard import live
from pgqueue_django.models import Job, Schedule, Worker
from pgqueue_django.outcomes import Failed, Failure, Kind, Retried, Succeeded
from pgqueue_django.states import State

pytestmark = pytest.mark.django_db


@pytest.fixture
def watch() -> live._Watch:
    return live._Watch()


def ids(reading: live.Reading, name: str) -> list[int]:
    return [row["id"] for row in reading.rows(name)]


def worker(name: str, *, age: float = 0, **columns: Any) -> Worker:
    made = Worker.objects.create(
        id=f"{name}-1", name=name, host="h", pid=1, concurrency=8, lease_seconds=30, running=2, **columns
    )
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pgqueue_worker SET heartbeat_at = statement_timestamp() - make_interval(secs => %s) WHERE id = %s",
            [age, made.pk],
        )
    return made


# -- lists -----------------------------------------------------------------------------------------------------


def test_running_jobs_come_by_what_is_left_of_their_leases(watch: live._Watch) -> None:
    jobs = [make_job("running", worker_id=f"w{number % 2}") for number in range(4)]
    for job, left in zip(jobs, (20, 5, -3, 10), strict=True):
        rows.move_clock(job.pk, "lease_expires_at", left)
    reading = watch.take(DB)
    assert ids(reading, "least") == [jobs[2].pk, jobs[1].pk, jobs[3].pk, jobs[0].pk]
    assert reading.lists["hand"] == {"w0": [2, [jobs[0].pk, jobs[2].pk]], "w1": [2, [jobs[1].pk, jobs[3].pk]]}


def test_what_waits_failed_and_died_is_listed_in_its_order(watch: live._Watch) -> None:
    later, sooner = make_job("retrying"), make_job("retrying")
    rows.move_clock(later.pk, "run_after", 50)
    rows.move_clock(sooner.pk, "run_after", 5)
    make_job("scheduled")
    failed = [make_job("failed").pk for _ in range(3)]
    dead = [make_job("dead").pk for _ in range(3)]
    reading = watch.take(DB)
    assert ids(reading, "retrying") == [sooner.pk, later.pk]
    assert ids(reading, "failed") == failed[::-1]
    assert ids(reading, "dead") == dead[::-1]
    assert reading.messages[dead[0], 1] == "boom"


def test_lists_end(watch: live._Watch) -> None:
    fill(running=80, retrying=40, failed=40, dead=40)
    reading = watch.take(DB)
    assert [len(reading.rows(name)) for name in ("least", "retrying", "failed", "dead", "newest")] == [
        live.MAX_RUNNING, live.MAX_NEXT, live.MAX_NEXT, live.MAX_NEXT, live.MAX_NEWEST,
    ]  # fmt: skip
    assert all(len(named) == live.MAX_HELD for _, named in reading.lists["hand"].values())
    assert len(watch._watched) <= live.MAX_WATCHED


def test_live_workers_come_first_then_those_lost_last(watch: live._Watch) -> None:
    for name, age in (("long", 900), ("fresh", 1), ("lost", 40), ("also", 2)):
        worker(name, age=age)
    reading = watch.take(DB)
    assert [(row["name"], row["alive"]) for row in reading.rows("worker")] == [
        ("also", True), ("fresh", True), ("lost", False), ("long", False),
    ]  # fmt: skip


def test_schedules_that_fire_come_first_and_those_switched_off_are_there(watch: live._Watch) -> None:
    for name, is_enabled, ahead in (("late", True, 60), ("off", False, 1), ("soon", True, 5)):
        Schedule.objects.create(
            name=name, task="t", line="* * * * *", is_enabled=is_enabled,
            next_at=rows.database_now() + timedelta(seconds=ahead),
        )  # fmt: skip
    Schedule.objects.create(name="gone", task="t", line="* * * * *", retired_at=rows.database_now())
    reading = watch.take(DB)
    assert [row["name"] for row in reading.rows("schedule")] == ["soon", "late", "off"]


def test_a_pause_says_who_and_why_and_one_that_is_over_says_nothing(watch: live._Watch) -> None:
    queues.pause(DB, "mail", reason="provider down", actor="ana")
    queues.pause(DB, "over", until=timedelta(seconds=1))
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_queue SET resume_at = paused_at WHERE name = 'over'")
    (row,) = watch.take(DB).rows("pause")
    assert (row["name"], row["actor"], row["reason"]) == ("mail", "ana", "provider down")


def test_what_an_error_said_is_read_once(watch: live._Watch) -> None:
    dead = make_job("dead")
    first = watch.take(DB)
    assert [row["message"] for row in first.rows("dead")] == ["boom"]
    second = watch.take(DB)
    assert [row["message"] for row in second.rows("dead")] == [None]
    assert second.messages == {(dead.pk, 1): "boom"}
    transitions.requeue(DB, [dead.pk])
    assert watch.take(DB).messages == {}
    rows.settle(claim_one(dead.pk), Failed(Failure(Kind.ERROR, "ValueError", "bang", "")))
    assert watch.take(DB).messages == {(dead.pk, 2): "bang"}


def test_moments_that_python_has_none_for_and_other_json_do_no_harm(watch: live._Watch) -> None:
    running, dead = make_job("running"), make_job("dead")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pgqueue_job SET lease_expires_at = 'infinity', started_at = '-infinity', progress = '[1]' "
            "WHERE id = %s",
            [running.pk],
        )
        cursor.execute(
            "UPDATE pgqueue_job SET history = '{\"a\": 1}', finished_at = '4000-01-01 BC' WHERE id = %s", [dead.pk]
        )
    worker("odd", tasks="x")
    watch.take(DB)
    reading = watch.take(DB)
    assert live.moment(reading.rows("least")[0]["lease_expires_at"]) is None
    assert reading.messages == {(dead.pk, 1): ""}


@pytest.mark.parametrize(
    ("progress", "fraction"),
    [
        ('{"fraction": 0.25}', 0.25),
        ('{"fraction": 1e400}', 1.0),
        ('{"fraction": -1e5000}', 0.0),
        ('{"fraction": 1e-5000}', 0.0),
        ('{"fraction": true}', None),
        (json.dumps({"fraction": [1] * 50_000}), None),
    ],
)
def test_a_fraction_is_a_number_up_to_one_whatever_plain_sql_has_written(
    progress: str, fraction: float | None, watch: live._Watch
) -> None:
    job = make_job("running")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET progress = %s WHERE id = %s", [progress, job.pk])
    assert watch.take(DB).rows("least")[0]["fraction"] == fraction


# -- what it costs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [0, 300])
def test_a_reading_is_two_statements_whatever_there_is(many: int, watch: live._Watch) -> None:
    fill(**dict.fromkeys(("scheduled", "queued", "running", "retrying", "failed", "dead", "succeeded"), many))
    for _ in range(2):
        with CaptureQueriesContext(connection) as queries:
            watch.take(DB)
        assert len([query for query in queries if "pgqueue_job" in query["sql"]]) == 2


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("statistics", ["fresh", "none", "stale"])
def test_no_plan_scans_the_table(mix: str, statistics: str, watch: live._Watch) -> None:
    if statistics == "stale":  # of a time when the table was full of what is rare now
        fill(dead=10_000, queued=10_000)
        analyze()
        Job.objects.all().delete()
    fill(**MIXES[mix])
    if statistics == "fresh":
        analyze()
    watch.take(DB)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(snapshot._PLANNING, ["10s"])
        text = plan(live._LISTS, watch._bounds())
    assert "Seq Scan on pgqueue_job" not in text, text


def test_rows_read_are_bounded_by_the_cap(watch: live._Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(scheduled=3_000, queued=3_000, failed=3_000, dead=3_000, running=3_000, succeeded=3_000)
    analyze()
    monkeypatch.setattr(snapshot, "CAP", 500)
    watch.take(DB)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(snapshot._PLANNING, ["10s"])
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + live._LISTS, watch._bounds())
        (text,) = cursor.fetchone()
    (tree,) = json.loads(text) if isinstance(text, str) else text
    read = [
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        for node in explained(tree["Plan"])
        if node.get("Relation Name") == "pgqueue_job"
    ]
    assert len(read) == 6
    assert max(read) <= 500


# -- the feed --------------------------------------------------------------------------------------------------


def told(reading: live.Reading) -> list[tuple[int, str]]:
    return [(event.job["id"], event.kind) for event in reversed(reading.events)]


def test_the_feed_tells_each_step_of_a_job_once(watch: live._Watch) -> None:
    watch.take(DB)
    job = make_job()
    expected = [(job.pk, "enqueued")]
    assert told(watch.take(DB)) == expected
    assert told(watch.take(DB)) == expected
    held = claim_one(job.pk)
    expected.append((job.pk, "running"))
    assert told(watch.take(DB)) == expected
    settle(held, Retried(rows.BOOM, 60))
    expected.append((job.pk, "retrying"))
    assert told(watch.take(DB)) == expected
    transitions.run_now(DB, [job.pk])
    expected.append((job.pk, "queued"))
    assert told(watch.take(DB)) == expected
    settle(claim_one(job.pk), Succeeded("1"))
    expected.append((job.pk, "succeeded"))
    last = watch.take(DB)
    assert told(last) == expected
    assert len({event.key for event in last.events}) == len(expected)
    assert told(watch.take(DB)) == expected


def test_a_job_that_came_and_went_between_two_readings_is_told(watch: live._Watch) -> None:
    watch.take(DB)
    job = make_job("succeeded")
    assert told(watch.take(DB)) == [(job.pk, "succeeded")]


def test_jobs_that_ran_are_followed_however_many_came_since(watch: live._Watch) -> None:
    old = make_job("running")
    fill(succeeded=100)
    watch.take(DB)
    fill(queued=100)
    settle(held_by(old), Failed(rows.BOOM))
    assert (old.pk, "failed") in told(watch.take(DB))


def test_an_old_job_that_comes_into_the_list_as_newer_ones_go_is_no_news(watch: live._Watch) -> None:
    fill(succeeded=live.MAX_NEWEST + 5)
    before = told(watch.take(DB))
    newest = Job.objects.order_by("-pk").values_list("pk", flat=True)[:5]
    transitions.delete(DB, list(newest))
    assert told(watch.take(DB)) == before


def test_a_lower_id_that_is_committed_later_is_told(watch: live._Watch) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval(pg_get_serial_sequence('pgqueue_job', 'id'))")
        (kept,) = cursor.fetchone()
    higher = make_job()
    watch.take(DB)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO pgqueue_job (id, task) OVERRIDING SYSTEM VALUE VALUES (%s, 't')", [kept])
    assert told(watch.take(DB)) == [(higher.pk, "enqueued"), (kept, "enqueued")]


def test_the_feed_and_what_is_followed_end(watch: live._Watch) -> None:
    for _ in range(10):
        fill(running=60, queued=60)
        reading = watch.take(DB)
        assert len(reading.events) <= live.MAX_EVENTS
        assert len(watch._watched) <= live.MAX_WATCHED


# -- rates and windows -----------------------------------------------------------------------------------------


def add(state: State, many: int = 1, pickup: float = 0.003, run: float = 0.2) -> None:
    with connection.cursor() as cursor:
        stats.add(cursor, "w", [stats.Sample("q", "t", state, pickup, run)] * many)


def aged(watch: live._Watch, seconds: float) -> None:
    """As if all readings so far had been so long ago."""
    points = [
        live.Point(p.at - seconds, p.done, p.failed, p.pickups, p.runs, p.waiting, p.busy_slots) for p in watch._points
    ]
    watch._points.clear()
    watch._points.extend(points)


def test_a_rate_is_what_two_readings_differ_by(watch: live._Watch) -> None:
    add(State.SUCCEEDED, 500)
    watch.take(DB)
    aged(watch, 8)
    add(State.SUCCEEDED, 16)
    add(State.DEAD, 4, pickup=0.3)
    recent = watch.take(DB).recent(live.RATE_SECONDS)
    assert 8 <= recent.seconds <= 8 + rows.GRACE
    assert (recent.done, recent.failed, sum(recent.pickups), sum(recent.runs)) == (16, 4, 20, 20)
    assert stats.quantile(recent.pickups, 0.5) == pytest.approx(0.003, abs=0.002)
    assert stats.quantile(recent.pickups, 0.95) == pytest.approx(0.4, abs=0.15)


def test_the_first_reading_has_the_rates_of_the_last_minutes(watch: live._Watch) -> None:
    add(State.SUCCEEDED, 30)
    with connection.cursor() as cursor:
        # A minute that is over for long is no part of it.
        cursor.execute(
            "INSERT INTO pgqueue_stat (minute, worker_id, queue_name, task, succeeded, pickup_counts, run_counts) "
            "VALUES (date_trunc('minute', now()) - interval '1 hour', 'w', 'q', 't', 7000, %s, %s)",
            [[0] * 16, [0] * 16],
        )
    recent = watch.take(DB).recent(live.RATE_SECONDS)
    assert recent.done == 30
    assert 1 <= recent.seconds <= 120


def test_readings_with_a_long_time_between_them_say_nothing_of_it(watch: live._Watch) -> None:
    watch.take(DB)
    aged(watch, live.GAP_SECONDS + 30)
    add(State.SUCCEEDED, 30)
    recent = watch.take(DB).recent(live.RATE_SECONDS)
    assert recent.done == 30
    assert recent.begin % 60 == 0, "of the minutes, not of the readings"


def test_what_is_remembered_is_two_minutes_and_an_hour(watch: live._Watch) -> None:
    make_job(queue_name="mail")
    for _ in range(20):
        watch.take(DB)
        aged(watch, 10)
    reading = watch.take(DB)
    assert reading.points[-1].at - reading.points[0].at <= live.KEPT_SECONDS + live.GAP_SECONDS + 1
    watch._waiting = {int(reading.now.timestamp() // 60 - back) * 60: {"mail": back} for back in range(1, 100)}
    seen = watch.take(DB).waiting_by_minute
    assert len(seen) == 60
    assert seen[int(reading.now.timestamp() // 60) * 60] == {"mail": 1}


def test_a_clock_that_was_set_back_begins_anew(watch: live._Watch) -> None:
    watch.take(DB)
    aged(watch, -100)
    assert len(watch.take(DB).points) == 1


HISTORY = """
    INSERT INTO pgqueue_stat_history (seconds, begin, queue_name, task, succeeded, failed, pickup_counts, run_counts)
    SELECT %s, date_trunc('hour', statement_timestamp(), 'UTC') - make_interval(secs => %s * i), 'q', 't' || i %% 3,
           i, 1, array_fill(1::bigint, ARRAY[16]), array_fill(1::bigint, ARRAY[16])
    FROM generate_series(1, %s) AS i
"""


@pytest.fixture
def history() -> None:
    add(State.SUCCEEDED, 5)
    with connection.cursor() as cursor:
        cursor.execute(HISTORY, [60, 60, 48 * 60])
        cursor.execute(HISTORY, [3600, 3600, 90 * 24])
        # As chores leave it: hours of what is older than the minutes.
        cursor.execute("DELETE FROM pgqueue_stat_history WHERE seconds = 3600 AND begin >= (SELECT min(begin) "
                       "FROM pgqueue_stat_history WHERE seconds = 60)")  # fmt: skip


@pytest.mark.parametrize("window", live.WINDOWS)
def test_a_window_is_what_the_tables_have_in_it(window: str, history: None) -> None:
    length = live.WINDOWS[window]
    past = live._Window(length).take(DB)
    spans = [span for span in past.spans if span is not None]
    assert len(spans) == length.points
    begin = spans[0].begin
    assert past.ends_at - begin == length.points * length.seconds_per_point
    assert past.ends_at - length.seconds_per_point <= rows.database_now().timestamp() <= past.ends_at
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT sum(succeeded), sum(failed), sum(pickup_counts[1]), sum(run_counts[16]) FROM ("
            "SELECT minute AS begin, succeeded, failed, pickup_counts, run_counts FROM pgqueue_stat UNION ALL "
            "SELECT begin, succeeded, failed, pickup_counts, run_counts FROM pgqueue_stat_history) AS both_tables "
            "WHERE begin >= to_timestamp(%s)",
            [begin],
        )
        expected = cursor.fetchone()
    assert (
        sum(span.done for span in spans), sum(span.failed for span in spans),
        sum(span.pickups[0] for span in spans), sum(span.runs[15] for span in spans),
    ) == expected  # fmt: skip
    assert expected[0] > 5


@pytest.mark.parametrize("window", live.WINDOWS)
def test_what_is_much_is_read_in_steps_the_newest_first(
    window: str, history: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = live._Window(live.WINDOWS[window]).take(DB)
    monkeypatch.setattr(live, "_PAST", live._PAST.replace(str(live.MAX_MINUTE_ROWS), "150"))
    one = live._Window(live.WINDOWS[window])
    seen = []
    for _ in range(len(whole.spans)):
        past = one.take(DB)
        gaps = [place for place, span in enumerate(past.spans) if span is None]
        assert gaps == list(range(len(gaps)))
        seen.append(len(gaps))
        if past.is_whole:
            break
    assert seen == sorted(set(seen), reverse=True)
    assert seen[-1] == 0
    assert len(seen) > 2 or window == "hour"
    assert [span and span.done for span in past.spans] == [span and span.done for span in whole.spans]


def test_who_comes_back_after_long_misses_nothing(history: None, monkeypatch: pytest.MonkeyPatch) -> None:
    one = live._Window(live.WINDOWS["day"])
    whole = one.take(DB)
    one._over = dict(list(one._over.items())[:20])  # as if it had been read so long ago
    monkeypatch.setattr(live, "_PAST", live._PAST.replace(str(live.MAX_MINUTE_ROWS), "300"))
    for _ in range(50):
        past = one.take(DB)
        if past.is_whole:
            break
    assert [span and span.done for span in past.spans] == [span and span.done for span in whole.spans]


def test_one_part_that_is_too_much_by_itself_is_left_out(history: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_PAST", live._PAST.replace(str(live.MAX_MINUTE_ROWS), "20"))
    one = live._Window(live.WINDOWS["week"])
    for _ in range(400):
        past = one.take(DB)
        if past.is_whole:
            break
    assert past.is_whole
    # Of the hours there is a row each, of the minutes sixty.
    assert [span is None for span in past.spans[50:60]] == [False] * 10
    assert past.spans[-5] is None


@pytest.mark.parametrize("window", live.WINDOWS)
def test_what_is_over_is_read_once_and_what_is_not_again(window: str, history: None) -> None:
    one = live._Window(live.WINDOWS[window])
    first = one.take(DB)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_stat_history SET succeeded = succeeded + 1000")
    add(State.SUCCEEDED, 7)
    again, anew = one.take(DB), live._Window(live.WINDOWS[window]).take(DB)
    assert [len(past.spans) for past in (first, again, anew)] == [live.WINDOWS[window].points] * 3
    changed = [place for place, span in enumerate(first.spans) if span and again.spans[place].done != span.done]  # type: ignore[union-attr]
    assert changed
    # The one that goes on, and those that have just ended.
    assert min(changed) >= len(first.spans) - 2 - 180 // live.WINDOWS[window].seconds_per_point
    assert sum(span.done for span in anew.spans if span) > sum(span.done for span in again.spans if span)
    assert again.spans[-1] == pytest.approx(anew.spans[-1]) or again.spans[-1].done == anew.spans[-1].done  # type: ignore[union-attr]


def test_a_window_of_a_clock_that_was_set_back_begins_anew(history: None) -> None:
    one = live._Window(live.WINDOWS["hour"])
    before = one.take(DB)
    one._over = {slot + 10_000: span for slot, span in one._over.items()}
    assert one.take(DB).spans[:50] == before.spans[:50]


@pytest.mark.parametrize("window", live.WINDOWS)
def test_a_window_walks_the_index_of_the_history(window: str, history: None) -> None:
    analyze()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(snapshot._PLANNING, ["10s"])
        cursor.execute("ANALYZE pgqueue_stat_history")
        length = live.WINDOWS[window]
        text = plan(
            live._PAST, {"size": length.seconds_per_point, "points": length.points, "since": 0, "until": live._NO_END}
        )
    assert "Seq Scan on pgqueue_stat_history" not in text, text
    for seconds in (60, 3600):
        assert f"Index Cond: ((seconds = {seconds}) AND (begin >= " in text, text


# -- each task by itself ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", live.RECORD_SECONDS)
def test_records_of_tasks_are_what_the_tables_have_of_them(window: str, history: None) -> None:
    taken = live._take_records(DB, live.RECORD_SECONDS[window])
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT task, sum(succeeded), sum(failed), sum(pickup_counts[1]), sum(run_counts[16]) FROM ("
            "SELECT minute AS begin, task, succeeded, failed, pickup_counts, run_counts FROM pgqueue_stat UNION ALL "
            "SELECT begin, task, succeeded, failed, pickup_counts, run_counts FROM pgqueue_stat_history) AS tables "
            "WHERE begin >= date_trunc('minute', statement_timestamp() - make_interval(secs => %s), 'UTC') "
            "GROUP BY task ORDER BY sum(succeeded + failed) DESC, task",
            [live.RECORD_SECONDS[window]],
        )
        expected = [tuple(row) for row in cursor.fetchall()]
    assert [(one.task, one.done, one.failed, one.pickups[0], one.runs[15]) for one in taken.tasks] == expected
    assert len(expected) == 4 or window in ("live", "hour")
    assert not taken.is_cut


def test_of_very_many_records_the_newest_are_read_and_that_is_said(
    history: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_RECORDS", live._RECORDS.replace(str(live.MAX_MINUTE_ROWS), "10"))
    monkeypatch.setattr(live, "MAX_MINUTE_ROWS", 10)
    taken = live._take_records(DB, live.RECORD_SECONDS["week"])
    assert taken.is_cut
    # Without a gap: nine of the minutes, since of the tenth there may be more, and nothing of the hours before.
    assert sum(one.failed for one in taken.tasks) == 9
    assert 9 * 60 <= taken.seconds < live.RECORD_SECONDS["week"]


@pytest.mark.parametrize("window", live.RECORD_SECONDS)
def test_records_walk_the_index_of_the_history(window: str, history: None) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(snapshot._PLANNING, ["10s"])
        cursor.execute("ANALYZE pgqueue_stat_history")
        text = plan(live._RECORDS, {"seconds": live.RECORD_SECONDS[window]})
    assert "Seq Scan on pgqueue_stat_history" not in text, text


@given(counts=st.lists(st.integers(0, 1000), min_size=16, max_size=16), share=st.floats(0, 1))
def test_a_quantile_is_in_the_bucket_that_it_falls_into(counts: list[int], share: float) -> None:
    found = stats.quantile(counts, share)
    if not sum(counts):
        assert found is None
        return
    assert found is not None
    below = sum(n for n, bound in zip(counts, stats.BOUNDS, strict=False) if bound <= found)
    up_to = sum(n for n, low in zip(counts, (0.0, *stats.BOUNDS), strict=True) if low <= found)
    assert below - 1e-6 * sum(counts) <= share * sum(counts) + max(counts)
    assert share * sum(counts) <= up_to + 1e-6 * sum(counts)
    assert found <= stats.BOUNDS[-1]

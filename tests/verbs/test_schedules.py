"""Schedules fire exactly once per tick, whoever looks, and one that is broken keeps nobody else from firing."""

from __future__ import annotations

import ast
import inspect
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections

from pgqueue_django import schedules, task
from pgqueue_django.cron import Line
from pgqueue_django.exceptions import InvalidSchedule
from pgqueue_django.models import Job, Schedule
from pgqueue_django.schedules import due_ticks, fire, periodic
from pgqueue_django.states import State

from .rows import DB, claim, ending, settle

pytestmark = pytest.mark.django_db
Make = Callable[..., Schedule]


@task(queue_name="ticks")
def tick(word: str = "") -> str:
    return word


@dataclass
class Parcel:
    number: int


@task
def send(parcel: Parcel) -> None: ...


TASK = tick.path


@pytest.fixture
def make() -> Make:
    """A row whose next tick was ``ago`` seconds ago."""

    def row(name: str = "nightly", *, ago: float = 0.5, line: str = "0 3 * * *", **columns: Any) -> Schedule:
        values = {"task": TASK, "line": line, "zone": "UTC", "args": [], "kwargs": {}, **columns}
        made = Schedule.objects.create(name=name, **values)
        set_next(made, ago)
        return made

    return row


def set_next(row: Schedule, ago: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pgqueue_schedule SET next_at = statement_timestamp() - make_interval(secs => %s) WHERE id = %s",
            [ago, row.pk],
        )


def age(seconds: float) -> None:
    """As if no worker had said for so long that its code has them."""
    Schedule.objects.update(declared_at=datetime.now(UTC) - timedelta(seconds=seconds))


def again(row: Schedule) -> Schedule:
    return Schedule.objects.get(pk=row.pk)


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    own: dict[str, Any] = {}
    monkeypatch.setattr(schedules, "_declared", own)
    return own


# -- firing ----------------------------------------------------------------------------------------------------


def test_a_tick_makes_one_job_with_the_tick_in_its_key_and_moves_on(make: Make) -> None:
    row = make(args=["a"])
    due_at = again(row).next_at
    assert due_at is not None
    assert fire(DB) == (1, False)
    job = Job.objects.get()
    assert (job.task, job.queue_name, job.args, job.state) == (TASK, "ticks", ["a"], State.QUEUED)
    assert job.idempotency_key == f"schedule:nightly:{due_at:%Y-%m-%dT%H:%M:%SZ}"
    moved = again(row)
    assert moved.next_at == Line("0 3 * * *").next_after(due_at)
    assert (moved.last_tick, moved.last_job_id, moved.error) == (due_at, job.pk, "")
    assert moved.late_seconds is not None
    assert 0.5 <= moved.late_seconds < 60
    assert fire(DB) == (0, False)
    assert Job.objects.count() == 1


def test_what_is_not_due_disabled_or_retired_does_not_fire(make: Make) -> None:
    make("later", ago=-60)
    make("off", is_enabled=False)
    make("gone", retired_at=datetime(2026, 1, 1, tzinfo=UTC))
    make("never").delete()
    assert fire(DB) == (0, False)


def test_a_tick_that_fired_before_fires_no_second_time_even_if_the_row_went_back(make: Make) -> None:
    """As if the advance had been lost: the key is taken."""
    row = make()
    due_at = again(row).next_at
    fire(DB)
    Schedule.objects.filter(pk=row.pk).update(next_at=due_at)
    fire(DB)
    assert Job.objects.count() == 1


def test_skip_next_leaves_one_tick_out(make: Make) -> None:
    row = make(skip_next=True)
    assert fire(DB) == (0, False)
    assert (again(row).skip_next, Job.objects.count()) == (False, 0)
    set_next(row, 1)
    assert fire(DB) == (1, False)


def test_run_now_is_beside_the_ticks(make: Make) -> None:
    row = make(ago=-3600, args=["by hand"])
    before = again(row).next_at
    schedules.run_now(DB, row.pk)
    schedules.run_now(DB, row.pk)
    assert list(Job.objects.values_list("idempotency_key", "args")) == [(None, ["by hand"])] * 2
    assert again(row).next_at == before


def test_overlap_skip_waits_for_the_job_of_the_tick_before(make: Make) -> None:
    row = make(overlap="skip")
    fire(DB)
    set_next(row, 1)
    assert fire(DB) == (0, False)
    moved = again(row).next_at
    assert moved is not None
    assert moved > datetime.now(UTC)
    settle(claim(queue_name="ticks")[0], ending(State.SUCCEEDED))
    set_next(row, 1)
    assert fire(DB) == (1, False)


# -- missed ticks ----------------------------------------------------------------------------------------------


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_a_late_tick_is_not_missed_while_no_later_one_is_due() -> None:
    daily = Line("0 3 * * *")
    for missed in ("one", "none"):
        found = due_ticks(daily, at("2026-05-01T03:00Z"), at("2026-05-01T09:00Z"), missed)
        assert found == ([at("2026-05-01T03:00Z")], at("2026-05-02T03:00Z"))


def test_missed_ticks_are_made_up_once_or_left_out() -> None:
    daily = Line("0 3 * * *")
    first, now = at("2026-05-01T03:00Z"), at("2026-05-09T12:00Z")
    assert due_ticks(daily, first, now, "none") == ([at("2026-05-09T03:00Z")], at("2026-05-10T03:00Z"))
    assert due_ticks(daily, first, now, "one") == (
        [at("2026-05-08T03:00Z"), at("2026-05-09T03:00Z")],
        at("2026-05-10T03:00Z"),
    )


def test_after_an_outage_of_months_the_ticks_are_not_walked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    next_after = Line.next_after
    monkeypatch.setattr(Line, "next_after", lambda self, moment: looks.append(1) or next_after(self, moment))
    due_ticks(Line("* * * * * */1"), at("2026-01-01T00:00Z"), at("2026-06-01T00:00Z"), "one")
    due_ticks(Line("0 0 29 2 *"), at("2008-02-29T00:00Z"), at("2026-06-01T00:00Z"), "one")
    assert len(looks) < 100


@pytest.mark.parametrize("line", ["* * * * *", "*/7 3 * * *", "30 1 * * *", "0 0 1 * *", "0 12 13 * 5", "0 0 29 2 *"])
def test_what_fires_is_due_and_what_follows_is_not(line: str) -> None:
    draw = random.Random(line)
    parsed = Line(line, "America/New_York")
    for _ in range(30):
        begin = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(minutes=draw.randrange(2_000_000))
        first = parsed.next_after(begin)
        assert first is not None
        now = first + timedelta(seconds=draw.choice([0, 1, 30, 3600, 90_000, 10_000_000]))
        ticks, following = due_ticks(parsed, first, now, "one")
        assert first <= ticks[0]
        assert ticks == sorted(set(ticks))
        assert ticks[-1] <= now
        assert following is not None
        assert now < following == parsed.next_after(ticks[-1])
        assert 1 <= len(ticks) <= 2


# -- broken ones -----------------------------------------------------------------------------------------------


def test_a_line_that_cannot_be_read_disables_its_schedule_and_no_other(make: Make) -> None:
    broken = [make(f"broken-{line}", ago=9, line=line) for line in ("0 0 30 2 *", "nonsense", "60 * * * *", "@reboot")]
    no_zone = make("zone", ago=9, zone="Mars/Olympus")
    good = make()
    assert fire(DB) == (1, False)
    for row in (*broken, no_zone):
        assert not again(row).is_enabled
        assert again(row).error
    assert "no date ever matches" in again(broken[0]).error
    assert again(good).is_enabled


def test_arguments_that_the_task_does_not_take_leave_it_due_and_say_so(make: Make) -> None:
    """In a rolling deploy a worker with the new function may be next."""
    row = make(kwargs={"wrong": 1})
    good = make("good")
    assert fire(DB) == (1, False)
    assert again(row).is_enabled
    assert "wrong" in again(row).error
    Schedule.objects.filter(pk=row.pk).update(kwargs={"word": "right"})
    assert fire(DB) == (1, False)
    assert (again(row).error, again(good).error) == ("", "")


def test_a_task_that_is_unknown_here_stays_due_for_a_worker_that_has_it(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    row = make(task="nowhere.at_all")
    good = make("good")
    assert fire(DB) == (1, False)
    assert fire(DB) == (0, False)
    assert again(row).is_enabled
    assert "nowhere.at_all" in again(row).error
    assert len([one for one in caplog.records if "nightly does not fire" in one.getMessage()]) == 1
    Schedule.objects.filter(pk=row.pk).update(task=TASK)
    assert fire(DB) == (1, False)
    assert (again(row).error, again(good).error) == ("", "")


def test_hundreds_that_fail_stand_behind_those_that_do_not(make: Make) -> None:
    for number in range(schedules.BATCH + 5):
        make(f"broken {number:03}", ago=60, task="nowhere.at_all")
    good = make(ago=1)
    for _ in range(3):
        fire(DB)
    assert again(good).last_job_id is not None


@pytest.mark.django_db(transaction=True)
def test_one_whose_insert_is_refused_keeps_nobody_from_firing(make: Make) -> None:
    """procrastinate #1464: the loop stopped at the first error."""
    make("refused", ago=9, args=["refuse"])
    for number in range(20):
        make(f"good {number}")
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF new.args::text LIKE '%refuse%' THEN RAISE 'not this one'; END IF; RETURN new; END $$; "
            "CREATE TRIGGER refuse BEFORE INSERT ON pgqueue_job FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    try:
        assert fire(DB).jobs == 20
        assert Schedule.objects.get(name="refused").error == "not this one"
        assert Schedule.objects.get(name="refused").is_enabled
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION refuse CASCADE")
    assert fire(DB).jobs == 1


@pytest.mark.django_db(transaction=True)
def test_a_row_that_a_session_holds_is_passed_over(make: Make, second_connection: Any) -> None:
    held = make("held", ago=9)
    make("free")
    with second_connection.transaction():
        second_connection.execute("SELECT FROM pgqueue_schedule WHERE id = %s FOR UPDATE", [held.pk])
        assert fire(DB).jobs == 1
    assert fire(DB).jobs == 1


def test_a_schedule_that_fails_in_any_way_keeps_nobody_from_firing(make: Make) -> None:
    row = make("early", ago=9, zone="America/New_York")
    good = make()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_schedule SET next_at = '0001-01-01 00:00+00' WHERE id = %s", [row.pk])
    assert fire(DB) == (1, False)
    assert again(row).error.startswith("OverflowError: ")
    assert again(good).last_job_id is not None


def test_a_tick_that_is_none_any_more_fires_with_the_one_after_it() -> None:
    """The rules for clocks may have changed since it was planned, or a person has written it."""
    monthly = Line("0 3 1 * *")
    stored, now = at("2026-04-30T17:11:05Z"), at("2026-05-01T09:00Z")
    assert due_ticks(monthly, stored, now, "one") == ([stored, at("2026-05-01T03:00Z")], at("2026-06-01T03:00Z"))
    assert due_ticks(monthly, stored, now, "none") == ([at("2026-05-01T03:00Z")], at("2026-06-01T03:00Z"))


def test_a_project_without_time_zones_fires_the_same_tick(make: Make, settings: Any) -> None:
    row = make(ago=7200, line="0 * * * *")
    settings.USE_TZ, settings.TIME_ZONE = False, "America/New_York"
    try:
        assert fire(DB).jobs == 2
    finally:
        settings.USE_TZ, settings.TIME_ZONE = True, "UTC"
    keys = list(Job.objects.order_by("id").values_list("idempotency_key", flat=True))
    later = again(row).next_at
    assert later is not None
    assert keys == [f"schedule:nightly:{later - timedelta(hours=n):%Y-%m-%dT%H:%M:%SZ}" for n in (2, 1)]


# -- many at a time --------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_thousand_ticks_and_eight_schedulers_that_are_killed_make_a_thousand_jobs(make: Make) -> None:
    """oban #1488, django-q: two leaders, and every entry twice. Here there is none."""
    Schedule.objects.bulk_create(
        Schedule(name=f"s{number}", task=TASK, line="0 3 * * *", zone="UTC", args=[], kwargs={})
        for number in range(1_000)
    )
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_schedule SET next_at = statement_timestamp() - interval '1 s'")
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            try:
                fire(DB, limit=10)
            except DatabaseError:
                connections[DB].close()
        connections[DB].close()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    kills = 0
    while Schedule.objects.filter(last_job_id=None).exists():
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1) AS one"
            )
            kills += cursor.fetchone()[0]
    stop.set()
    for thread in threads:
        thread.join(20)
    assert kills > 10
    assert Job.objects.count() == 1_000
    keys = set(Job.objects.values_list("idempotency_key", flat=True))
    assert {str(key).split(":")[1] for key in keys} == {f"s{number}" for number in range(1_000)}


def test_no_clock_but_the_databases_is_read() -> None:
    tree = ast.parse(inspect.getsource(schedules))
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not {call for call in calls if call.endswith((".now", ".utcnow", "time.time", ".today"))}


# -- from code -------------------------------------------------------------------------------------------------


def test_what_the_code_declares_is_in_the_table_once_and_keeps_its_tick(declared: dict[str, Any]) -> None:
    """pg-boss #592: start-up code re-created the schedule, and it ran twice."""
    assert periodic("0 3 * * *", tz="Europe/Warsaw", args=["x"])(tick) is tick
    for _ in range(3):
        schedules.declare(DB)
    row = Schedule.objects.get()
    assert (row.name, row.task, row.line, row.zone, row.args) == (TASK, TASK, "0 3 * * *", "Europe/Warsaw", ["x"])
    assert row.next_at is not None
    assert row.next_at.minute == 0
    set_next(row, 1)
    before = again(row).next_at
    schedules.declare(DB)
    assert again(row).next_at == before
    assert fire(DB) == (1, False)


def test_a_line_that_changed_begins_anew_from_now(declared: dict[str, Any]) -> None:
    periodic("0 3 * * *", name="x")(tick)
    schedules.declare(DB)
    set_next(Schedule.objects.get(), 100_000)
    declared.clear()
    periodic("*/5 * * * *", name="x")(tick)
    schedules.declare(DB)
    row = Schedule.objects.get()
    assert row.line == "*/5 * * * *"
    assert row.next_at is not None
    assert row.next_at.minute % 5 == 0
    assert fire(DB) == (0, False)


def test_a_schedule_of_another_version_is_left_to_its_workers(declared: dict[str, Any]) -> None:
    periodic("0 3 * * *", name="x")(tick)
    schedules.declare(DB)
    row = Schedule.objects.get()
    set_next(row, 1)
    declared.clear()
    # Removed here, or with another line.
    assert fire(DB) == (0, False)
    periodic("0 4 * * *", name="x")(tick)
    assert fire(DB) == (0, False)
    declared.clear()
    periodic("0 3 * * *", name="x")(tick)
    assert fire(DB) == (1, False)


def test_arguments_of_another_version_are_left_to_its_workers(declared: dict[str, Any]) -> None:
    """In a rolling deploy that adds one, the old function would refuse the call and switch the schedule off."""
    periodic("0 3 * * *", name="x", kwargs={"word": "a"})(tick)
    schedules.declare(DB)
    Schedule.objects.update(kwargs={"word": "a", "region": "eu"})
    row = Schedule.objects.get()
    set_next(row, 1)
    assert fire(DB) == (0, False)
    assert (again(row).is_enabled, again(row).error) == (True, "")
    schedules.declare(DB)
    assert fire(DB) == (1, False)


def test_hundreds_of_another_version_keep_none_of_ours_from_firing(declared: dict[str, Any], make: Make) -> None:
    for number in range(schedules.BATCH + 5):
        make(f"theirs {number:03}", ago=60, is_code=True)
    good = make(ago=1)
    assert fire(DB).jobs == 1
    assert again(good).last_job_id is not None


def test_what_another_version_wrote_and_left_is_declared_again(declared: dict[str, Any]) -> None:
    """In a rolling deploy an old worker may start once more, after the new ones did, and write its own lines."""
    periodic("0 3 * * *", name="x")(tick)
    schedules.declare(DB)
    declared.clear()
    periodic("0 4 * * *", name="x")(tick)
    schedules.keep(DB)
    assert Schedule.objects.get().line == "0 3 * * *", "its workers may be there"
    age(schedules.ABANDONED_SECONDS + 1)
    schedules.keep(DB)
    row = Schedule.objects.get()
    assert row.line == "0 4 * * *"
    set_next(row, 1)
    assert fire(DB) == (1, False)


def test_one_that_others_have_retired_comes_back_with_its_worker(declared: dict[str, Any]) -> None:
    """A worker that could say nothing for ten minutes: its database was cut off, or it stood still."""
    periodic("0 3 * * *", name="x")(tick)
    schedules.declare(DB)
    mine = dict(declared)
    declared.clear()
    age(schedules.RETIRE_SECONDS + 1)
    schedules.keep(DB)
    assert Schedule.objects.get().retired_at is not None
    declared.update(mine)
    schedules.keep(DB)
    row = Schedule.objects.get()
    assert row.retired_at is None
    assert row.next_at is not None


def test_arguments_that_json_does_not_know_are_written_as_the_task_reads_them(declared: dict[str, Any]) -> None:
    periodic("0 3 * * *", name="x", args=[Parcel(7)])(send)
    schedules.declare(DB)
    set_next(Schedule.objects.get(), 1)
    assert fire(DB) == (1, False)
    assert Job.objects.get().args == [{"number": 7}]


def test_one_that_is_in_no_code_any_more_is_retired_and_comes_back_with_it(declared: dict[str, Any]) -> None:
    periodic("0 3 * * *", name="x")(tick)
    schedules.declare(DB)
    row = Schedule.objects.get()
    declared.clear()
    schedules.keep(DB)
    assert again(row).retired_at is None
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_schedule SET declared_at = now() - interval '11 minutes'")
    schedules.keep(DB, may_retire=False)
    assert again(row).retired_at is None, "who has just come does not know who else is coming"
    schedules.keep(DB)
    assert again(row).retired_at is not None
    assert again(row).next_at is None
    periodic("0 3 * * *", name="x")(tick)
    schedules.declare(DB)
    assert again(row).retired_at is None
    assert again(row).next_at is not None


def test_workers_keep_what_their_code_has(declared: dict[str, Any]) -> None:
    periodic("0 3 * * *", name="x")(tick)
    schedules.declare(DB)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_schedule SET declared_at = now() - interval '11 minutes'")
    schedules.keep(DB)
    row = Schedule.objects.get()
    assert row.retired_at is None
    assert row.declared_at is not None
    assert row.declared_at > datetime.now(UTC) - timedelta(minutes=1)


def test_a_persons_row_is_not_overwritten_and_a_persons_switch_stays(declared: dict[str, Any], make: Make) -> None:
    mine = make("x", line="0 9 * * *")
    periodic("0 3 * * *", name="x")(tick)
    schedules.declare(DB)
    assert again(mine).line == "0 9 * * *"
    declared.clear()
    periodic("0 3 * * *", name="y")(tick)
    schedules.declare(DB)
    Schedule.objects.filter(name="y").update(is_enabled=False)
    schedules.declare(DB)
    assert not Schedule.objects.get(name="y").is_enabled


@pytest.mark.parametrize(
    ("line", "options", "why"),
    [
        ("0 0 30 2 *", {}, "no date ever matches"),
        ("0 3 * * *", {"tz": "Mars/Olympus"}, "no time zone"),
        ("0 3 * * *", {"missed": "all"}, "missed is none or one"),
        ("0 3 * * *", {"name": "x" * 101}, "1 to 100 printable characters"),
        ("0 3 * * *", {"name": "a\0b"}, "1 to 100 printable characters"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(
    declared: dict[str, Any], line: str, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidSchedule, match=why):
        periodic(line, **options)(tick)
    assert declared == {}


def test_a_second_schedule_of_a_task_needs_a_name(declared: dict[str, Any]) -> None:
    periodic("0 3 * * *")(tick)
    with pytest.raises(InvalidSchedule, match="name="):
        periodic("0 4 * * *")(tick)
    periodic("0 4 * * *", name="second")(tick)


def test_a_call_that_the_task_does_not_take_is_refused_where_it_is_written(declared: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        periodic("0 3 * * *", kwargs={"wrong": 1})(tick)


def test_a_round_has_an_end_however_many_are_due(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "_FIRE_SECONDS", 0.0)
    for number in range(3):
        make(f"s{number}")
    found = fire(DB)
    assert found.more
    assert found.jobs < 3


def test_a_round_in_which_all_fail_is_not_followed_by_another_at_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "_FIRE_SECONDS", 0.0)
    for number in range(3):
        make(f"s{number}", task="nowhere.at_all")
    assert fire(DB) == (0, False)

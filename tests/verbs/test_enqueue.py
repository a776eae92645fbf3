"""enqueue and enqueue_many: () -> queued or scheduled, in the caller's transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, connection, transaction

from pgqueue_django import transitions
from pgqueue_django.models import Job
from pgqueue_django.states import State
from pgqueue_django.transitions import Enqueued

from .rows import DB, Rival, claim, database_now, make_job, move_clock, new, row, seconds_from_now, state_of, statements

pytestmark = pytest.mark.django_db

KEYED = {"idempotency_key": "k"}
Make = Callable[..., Enqueued]


def one(**options: Any) -> Enqueued:
    return transitions.enqueue(DB, new(**options))


def one_of_many(**options: Any) -> Enqueued:
    return transitions.enqueue_many(DB, [new(**options)])[0]


@pytest.fixture(params=["enqueue", "enqueue_many", "enqueue_many by COPY"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
    if request.param.endswith("COPY"):
        monkeypatch.setattr(transitions, "_COPY_FROM", 1)
    return one if request.param == "enqueue" else one_of_many


@pytest.fixture(params=["INSERT", "COPY"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How ``enqueue_many`` sends its jobs without keys, whatever their number."""
    monkeypatch.setattr(transitions, "_COPY_FROM", 1 if request.param == "COPY" else 1_000_000)
    return request.param  # type: ignore[no-any-return]


# -- what is in the row ----------------------------------------------------------------------------------------


def test_the_row_holds_what_was_given(make: Make) -> None:
    options = {"queue_name": "mail", "priority": -7, "max_attempts": 3, "idempotency_key": "order 1", "label": "x"}
    payload = {"args": [1, "ü"], "kwargs": {"a": None}, "backoff": {"base": 1, "factor": 3, "cap": 9}}
    found = row(make(task="shop.tasks.mail", **options, **payload).id)
    assert found is not None
    assert found.items() >= {"task": "shop.tasks.mail", **options, **payload}.items()
    assert found["attempts"] == found["fencing_token"] == 0
    assert found["history"] == []
    assert found["enqueued_at"] == found["run_after"]


@pytest.mark.parametrize(
    "text",
    ["\\N", "\\.", "\\", "", "a\tb\nc\rd\x01\x7f\\e\\t \"f\" 'g' {h,NULL} %s %% $1 -- ü 漢 😀", "\\\n" * 30],
    ids=ascii,
)
def test_every_text_arrives_as_it_is(make: Make, text: str) -> None:
    found = Job.objects.get(pk=make(task=text, queue_name=text, label=text, args=[text], kwargs={text: text}).id)
    assert (found.task, found.queue_name, found.label) == (text, text, text)
    assert (found.args, found.kwargs) == ([text], {text: text})


def test_numbers_of_a_payload_keep_every_digit(make: Make) -> None:
    made = make(args="[12345678901234567890123, 0.1234567890123456789]")
    with connection.cursor() as cursor:
        cursor.execute("SELECT args::text FROM pgqueue_job WHERE id = %s", [made.id])
        assert cursor.fetchone() == ("[12345678901234567890123, 0.1234567890123456789]",)


def test_without_a_moment_a_job_is_ready_at_once(make: Make) -> None:
    made = make()
    assert state_of(made.id) == State.QUEUED
    assert [held.id for held in claim()] == [made.id]


def test_a_timedelta_counts_from_the_databases_clock(make: Make) -> None:
    found = Job.objects.get(pk=make(run_after=timedelta(minutes=1)).id)
    assert found.state == State.SCHEDULED
    assert found.run_after - found.enqueued_at == timedelta(minutes=1)


def test_an_aware_datetime_is_that_moment(make: Make) -> None:
    moment = datetime(2099, 1, 1, tzinfo=UTC)
    found = Job.objects.get(pk=make(run_after=moment).id)
    assert (found.state, found.run_after) == (State.SCHEDULED, moment)


def test_a_moment_that_has_passed_makes_a_ready_job_and_jumps_no_queue(make: Make) -> None:
    first = make()
    past = make(run_after=datetime(2001, 1, 1, tzinfo=UTC))
    also_past = make(run_after=timedelta(seconds=-1))
    assert {state_of(job.id) for job in (past, also_past)} == {State.QUEUED}
    assert [held.id for held in claim(3)] == [first.id, past.id, also_past.id]


def test_time_does_not_stand_still_in_a_long_transaction(make: Make) -> None:
    with transaction.atomic():
        began = database_now()
        first = Job.objects.get(pk=make().id)
        second = Job.objects.get(pk=make().id)
    assert began < first.enqueued_at < second.enqueued_at
    assert first.run_after < second.run_after


# -- what it costs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [one, one_of_many])
@pytest.mark.parametrize("options", [{}, KEYED, {"run_after": timedelta(hours=1)}])
def test_enqueue_is_one_insert(make: Make, options: dict[str, Any]) -> None:
    with statements() as sent:
        make(**options)
    (insert,) = sent
    assert "INSERT INTO pgqueue_job" in insert


def test_a_taken_key_costs_a_second_statement(make: Make) -> None:
    make(**KEYED)
    with statements() as sent:
        make(**KEYED)
    assert len(sent) == 2


def test_ten_thousand_jobs_take_bounded_round_trips() -> None:
    jobs = [new(args=[number]) for number in range(10_000)]
    with statements() as sent:
        answers = transitions.enqueue_many(DB, jobs)
    assert len(sent) == 1 + 10_000 / transitions.BATCH
    assert all("COPY pgqueue_job" in copy for copy in sent[1:])
    ids = [answer.id for answer in answers]
    assert ids == sorted(set(ids))
    assert list(Job.objects.order_by("id").values_list("args", flat=True)) == [[number] for number in range(10_000)]


def test_ten_thousand_jobs_with_keys_that_are_all_taken_take_bounded_round_trips() -> None:
    jobs = [new(idempotency_key=str(number)) for number in range(10_000)]
    made = transitions.enqueue_many(DB, jobs)
    with statements() as sent:
        again = transitions.enqueue_many(DB, jobs)
    assert len(sent) <= 2 * 10_000 / transitions.BATCH + 1
    assert [answer.id for answer in again] == [answer.id for answer in made]
    assert not any(answer.created for answer in again)


def test_large_arguments_are_split_over_statements_by_their_size(by: str) -> None:
    megabyte = f'["{"x" * 1024 * 1024}"]'
    with statements() as sent:
        transitions.enqueue_many(DB, [new(args=megabyte) for _ in range(10)])
    assert len([sql for sql in sent if by in sql]) == 3


def test_a_few_jobs_are_one_insert_and_many_are_copied() -> None:
    for count, sends in ((49, ["INSERT"]), (50, ["nextval", "COPY"])):
        with statements() as sent:
            transitions.enqueue_many(DB, [new() for _ in range(count)])
        assert [word in sql for word, sql in zip(sends, sent, strict=True)] == [True] * len(sends)


def test_no_jobs_are_no_statement() -> None:
    with statements() as sent:
        assert transitions.enqueue_many(DB, []) == []
    assert sent == []


# -- order -----------------------------------------------------------------------------------------------------


def test_a_bulk_is_claimed_in_the_order_in_which_it_was_given(by: str) -> None:
    made = transitions.enqueue_many(DB, [new() for _ in range(50)])
    assert [held.id for held in claim(50)] == [job.id for job in made]


@pytest.mark.parametrize("batch", [1000, 3], ids=["one statement", "several statements"])
def test_keys_do_not_change_the_order_of_a_bulk(by: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ["zebra", None, "ant", "yak", None, "bee", "cow", None, "dog", "ape"]
    with monkeypatch.context() as patch:
        patch.setattr(transitions, "BATCH", batch)
        made = transitions.enqueue_many(DB, [new(args=[place], idempotency_key=key) for place, key in enumerate(keys)])
    held = claim(len(keys))
    assert [job.id for job in held] == [job.id for job in made]
    assert [job.args for job in held] == [f"[{place}]" for place in range(len(keys))]


@pytest.mark.parametrize("copy_from", [2, 50])
@pytest.mark.parametrize("keys", ["abcde", [None] * 5, ["a", None, "b", None, "c", None]])
def test_a_bulk_that_takes_several_statements_has_one_moment(
    keys: Any, copy_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transitions, "BATCH", 2)
    monkeypatch.setattr(transitions, "_COPY_FROM", copy_from)
    made = transitions.enqueue_many(DB, [new(idempotency_key=key) for key in keys])
    assert len(set(Job.objects.filter(pk__in=[job.id for job in made]).values_list("run_after", flat=True))) == 1


def test_a_bulk_has_each_jobs_own_moment_priority_and_queue(by: str) -> None:
    summer = datetime(2099, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    jobs = [
        new(queue_name="a", priority=5),
        new(queue_name="b", run_after=timedelta(hours=1)),
        new(queue_name="c", run_after=summer),
        new(queue_name="d", run_after=datetime(2001, 1, 1, tzinfo=UTC)),
        new(queue_name="e", run_after=timedelta(days=-1)),
    ]
    found = [Job.objects.get(pk=made.id) for made in transitions.enqueue_many(DB, jobs)]
    assert [(job.queue_name, job.priority, job.state) for job in found] == [
        ("a", 5, "queued"),
        ("b", 0, "scheduled"),
        ("c", 0, "scheduled"),
        ("d", 0, "queued"),
        ("e", 0, "queued"),
    ]
    assert found[1].run_after - found[1].enqueued_at == timedelta(hours=1)
    assert found[2].run_after == summer
    assert {job.run_after for job in found[3:]} == {found[0].run_after}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("option", "value"), [("server_side_binding", True), ("prepare_threshold", 0), ("client_encoding", "LATIN1")]
)
def test_a_bulk_arrives_whatever_the_connection_is_set_to(
    by: str, option: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], option, value)
    jobs = [new(args=["ü\t"], label="ü\n"), new(args=["ü\t"], label="ü\n", **KEYED)]
    # Twice: from the second on a statement may be a prepared one, and the key is taken.
    for made in Rival(lambda: [transitions.enqueue_many(DB, jobs) for _ in range(2)]).result():
        assert [Job.objects.get(pk=job.id).args for job in made] == [["ü\t"], ["ü\t"]]
    assert set(Job.objects.values_list("label", flat=True)) == {"ü\n"}


@pytest.mark.django_db
def test_every_bulk_takes_its_cursor_from_the_backend(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some choose the tenant's schema as they hand one out."""
    taken = []
    cursor = connection._cursor
    monkeypatch.setattr(connection, "_cursor", lambda *args: taken.append(args) or cursor(*args))
    transitions.enqueue_many(DB, [new()])
    assert taken


@pytest.mark.django_db
def test_a_bulk_is_made_where_row_level_security_forbids_copy() -> None:
    with connection.cursor() as cursor:
        # Of this transaction: all of it is rolled back.
        cursor.execute(
            "CREATE ROLE pgqueue_tenant; GRANT ALL ON pgqueue_job TO pgqueue_tenant; "
            "GRANT USAGE ON SEQUENCE pgqueue_job_id_seq TO pgqueue_tenant; "
            "ALTER TABLE pgqueue_job ENABLE ROW LEVEL SECURITY; "
            "CREATE POLICY tenants ON pgqueue_job USING (label = 'mine'); SET LOCAL ROLE pgqueue_tenant"
        )
    made = transitions.enqueue_many(DB, [new(label="mine") for _ in range(200)])
    assert [job.id for job in made] == list(Job.objects.order_by("id").values_list("pk", flat=True))
    with pytest.raises(DatabaseError, match="row-level security"):
        transitions.enqueue_many(DB, [new(label="theirs") for _ in range(200)])


@pytest.mark.django_db(transaction=True)
def test_a_project_without_time_zones_has_the_same_moments(by: str, settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "America/New_York"
    moment = datetime(2099, 1, 1, tzinfo=UTC)
    jobs = [new(run_after=moment), new(run_after=timedelta(hours=1)), new()]
    made = Rival(lambda: transitions.enqueue_many(DB, jobs)).result()
    settings.USE_TZ, settings.TIME_ZONE = True, "UTC"
    found = [Job.objects.get(pk=job.id) for job in made]
    assert found[0].run_after == moment
    assert abs(seconds_from_now(found[1].run_after) - 3600) < 5
    assert abs(seconds_from_now(found[2].run_after)) < 5


# -- keys ------------------------------------------------------------------------------------------------------


def test_both_callers_get_the_same_job_and_know_who_created_it(make: Make) -> None:
    first, second = make(**KEYED), make(**KEYED, args=["other"])
    assert (first.created, second.created) == (True, False)
    assert first.id == second.id
    assert Job.objects.get().args == []


def test_a_key_belongs_to_its_task(make: Make) -> None:
    assert make(task="a", **KEYED).created
    assert make(task="b", **KEYED).created


def test_without_a_key_every_call_makes_a_job(make: Make) -> None:
    assert make().id != make().id


@pytest.mark.parametrize("state", list(State))
def test_a_key_is_taken_whatever_became_of_its_job(make: Make, state: State) -> None:
    job = make_job(state, **KEYED)
    assert make(task=job.task, **KEYED) == Enqueued(job.pk, created=False)


def test_a_key_is_free_again_when_its_job_is_gone(make: Make) -> None:
    job = make_job("succeeded", prunable=True, **KEYED)
    transitions.prune(DB)
    made = make(task=job.task, **KEYED)
    assert made.created
    assert made.id != job.pk


def test_a_key_that_stands_twice_in_a_bulk_makes_one_job() -> None:
    answers = transitions.enqueue_many(DB, [new(idempotency_key=key) for key in "abab"])
    assert [answer.created for answer in answers] == [True, True, False, False]
    assert answers[0].id == answers[2].id
    assert answers[1].id == answers[3].id


def test_a_bulk_answers_in_order_with_new_and_taken_keys_mixed(by: str) -> None:
    taken = one(idempotency_key="b")
    answers = transitions.enqueue_many(DB, [new(idempotency_key=key) for key in ("c", "b", None, "a")])
    assert [answer.created for answer in answers] == [True, False, True, True]
    assert answers[1].id == taken.id
    assert [Job.objects.get(pk=answer.id).idempotency_key for answer in answers] == ["c", "b", None, "a"]


@pytest.mark.django_db(transaction=True)
def test_sixteen_threads_with_the_same_keys_make_one_row_each(make: Make) -> None:
    together = threading.Barrier(16)

    def keep_asking() -> list[tuple[int, bool]]:
        together.wait(10)
        return [(made.id, made.created) for made in (make(idempotency_key=f"key {n}") for n in range(50))]

    answers = [rival.result(30) for rival in [Rival(keep_asking) for _ in range(16)]]

    assert Job.objects.count() == 50
    for about_one_key in zip(*answers, strict=True):
        assert len({job_id for job_id, _ in about_one_key}) == 1
        assert sum(created for _, created in about_one_key) == 1


@pytest.mark.django_db(transaction=True)
def test_a_winner_that_vanishes_between_the_two_statements_leaves_its_key_to_us(
    make: Make, second_connection: psycopg.Connection[Any]
) -> None:
    old = make_job("succeeded", **KEYED)
    looks = []

    def vanish(execute: Any, sql: str, *rest: Any) -> Any:
        if "INSERT" not in sql and "pgqueue_job" in sql:
            looks.append(second_connection.execute("DELETE FROM pgqueue_job").rowcount)
        return execute(sql, *rest)

    with connection.execute_wrapper(vanish):
        made = make(task=old.task, **KEYED)
    assert looks[0] == 1
    assert made.created
    assert made.id != old.pk


# -- the caller's transaction ----------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_taken_key_does_not_poison_the_callers_transaction(make: Make) -> None:
    make(**KEYED)
    with transaction.atomic():
        make(**KEYED)
        other = make()
        make(**KEYED)
    assert state_of(other.id) == State.QUEUED


@pytest.mark.django_db(transaction=True)
def test_the_job_exists_if_and_only_if_the_caller_commits(make: Make) -> None:
    with transaction.atomic():
        make()
        transaction.set_rollback(True)
    assert not Job.objects.exists()
    with transaction.atomic():
        make()
        assert not Rival(Job.objects.exists).result()
    assert Rival(Job.objects.exists).result()


@pytest.mark.django_db(transaction=True)
def test_a_key_whose_first_transaction_rolled_back_is_free_again(make: Make) -> None:
    for keep in (False, True):
        with transaction.atomic():
            made = make(**KEYED)
            transaction.set_rollback(not keep)
        assert made.created
    assert Job.objects.get().pk == made.id


def test_a_key_whose_savepoint_rolled_back_is_free_again(make: Make) -> None:
    with transaction.atomic():
        make(**KEYED)
        transaction.set_rollback(True)
    assert make(**KEYED).created


@pytest.mark.django_db(transaction=True)
def test_a_bulk_is_made_as_a_whole_or_not_at_all(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "BATCH", 2)
    bad = [new(**KEYED), new(), new(), new(priority=101)]
    with pytest.raises(IntegrityError):
        transitions.enqueue_many(DB, bad)
    assert not Job.objects.exists()
    with transaction.atomic():
        kept = one()
        with pytest.raises(IntegrityError), transaction.atomic():
            transitions.enqueue_many(DB, bad)
    assert [job.pk for job in Job.objects.all()] == [kept.id]


@pytest.mark.django_db(transaction=True)
def test_above_read_committed_a_key_taken_after_the_snapshot_is_a_serialization_failure(make: Make) -> None:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert not Job.objects.exists()
        Rival(lambda: one(**KEYED)).result()
        with pytest.raises(OperationalError) as raised:
            make(**KEYED)
        transaction.set_rollback(True)
    assert raised.value.__cause__.sqlstate == "40001"  # type: ignore[union-attr]


def test_a_waiting_job_is_not_claimed_before_its_moment(make: Make) -> None:
    made = make(run_after=timedelta(hours=1))
    assert claim(5) == []
    move_clock(made.id, "run_after", -1)
    assert transitions.promote(DB) == 1
    assert [held.id for held in claim(5)] == [made.id]

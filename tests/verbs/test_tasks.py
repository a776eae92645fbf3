"""Tasks: calls and options are checked before any SQL, and become the row that was asked for."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection, transaction

from pgqueue_django import (
    Backoff,
    Enqueued,
    InvalidOption,
    InvalidPayload,
    NoResult,
    TaskNotFound,
    enqueue,
    enqueue_many,
    job_options,
    payload,
    task,
    task_by_name,
)
from pgqueue_django.models import Job
from pgqueue_django.outcomes import Succeeded
from pgqueue_django.states import State
from pgqueue_django.tasks import MAX_LABEL

from . import tasks_of_tests as tasks
from .rows import claim_one, make_job, seconds_from_now, settle, statements

pytestmark = pytest.mark.django_db


def test_a_call_becomes_a_row() -> None:
    enqueued = tasks.charge.enqueue(7, amount_cents=1999)
    job = Job.objects.get()
    assert enqueued == Enqueued(job.pk, created=True)
    assert (job.task, job.queue_name, job.priority) == (f"{tasks.__name__}.charge", "billing", 10)
    assert (job.args, job.kwargs, job.max_attempts) == ([7], {"amount_cents": 1999}, 3)
    assert job.backoff == {"base": 2, "factor": 2, "cap": 3600}


def test_a_label_is_made_of_the_arguments_of_each_call() -> None:
    tasks.labelled.enqueue(7, urgent=True)
    tasks.labelled.enqueue(8, "for Zoë")
    enqueue_many([tasks.labelled.call(9), tasks.labelled.using(label="by hand {0}").call(10)])
    tasks.report.enqueue(1)
    tasks.charge.enqueue(1)
    labels = list(Job.objects.order_by("id").values_list("label", flat=True))
    assert labels == ["invoice 7, -", "invoice 8, for Zoë", "invoice 9, -", "by hand {0}", "a report", ""]


def test_a_label_is_cut_and_made_storable() -> None:
    tasks.labelled.enqueue(7, "x" * 500)
    tasks.labelled.using(label="a\0b\udc80" + "y" * 300).enqueue(7)
    long, strange = Job.objects.order_by("id").values_list("label", flat=True)
    assert long == ("invoice 7, " + "x" * 500)[:MAX_LABEL]
    assert strange.startswith("a\\x00b\\udc80yyy")
    assert len(strange) == MAX_LABEL


def test_where_no_label_can_be_made_the_job_is_enqueued_without_and_its_arguments_are_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks.mislabelled.enqueue("a secret")
    assert Job.objects.get().label == ""
    assert "mislabelled: no label could be made: TypeError" in caplog.text
    assert "a secret" not in caplog.text


@pytest.mark.parametrize("label", [3, b"x", ["a"]])
def test_what_is_no_label_is_refused(label: Any) -> None:
    with pytest.raises(InvalidOption, match="label="):
        tasks.charge.using(label=label)
    with pytest.raises(InvalidOption, match="label="):
        job_options(label=label)


def test_a_moment_may_have_an_offset_that_postgresql_would_not_take() -> None:
    ahead = datetime.now(timezone(timedelta(hours=16, minutes=50))) + timedelta(hours=1)
    tasks.charge.using(run_after=ahead).enqueue(7)
    enqueue_many([tasks.charge.using(run_after=ahead).call(8)])
    assert set(Job.objects.values_list("run_after", flat=True)) == {ahead}


def test_the_function_enqueue_does_the_same() -> None:
    enqueue(tasks.charge, 7, amount_cents=1)
    assert Job.objects.get().args == [7]


def test_aenqueue_is_on_the_connection_and_in_the_transaction_of_the_caller() -> None:
    with transaction.atomic():
        async_to_sync(tasks.charge.aenqueue)(7)
        assert Job.objects.count() == 1
        transaction.set_rollback(True)
    assert Job.objects.count() == 0


def test_using_changes_the_next_jobs_and_not_the_task() -> None:
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    changed = tasks.charge.using(
        queue_name="slow", priority=-5, run_after=moment, idempotency_key="k", max_attempts=9, database="default"
    )
    changed.enqueue(1)
    job = Job.objects.get()
    assert (job.queue_name, job.priority, job.run_after) == ("slow", -5, moment)
    assert (job.idempotency_key, job.max_attempts) == ("k", 9)
    assert tasks.charge.queue_name == "billing"
    with pytest.raises(FrozenInstanceError):
        tasks.charge.priority = 3  # type: ignore[misc]


def test_a_timedelta_counts_from_now() -> None:
    tasks.charge.using(run_after=timedelta(hours=1)).enqueue(1)
    assert 3590 < seconds_from_now(Job.objects.get().run_after) <= 3600


def test_the_context_is_left_out_by_the_caller() -> None:
    tasks.export.enqueue(3)
    assert Job.objects.get().args == [3]


def test_a_dataclass_is_written_as_json_and_checked() -> None:
    tasks.refund.enqueue(tasks.Amount(5))
    assert Job.objects.get().args == [{"cents": 5}]
    with pytest.raises(InvalidPayload, match="cents"):
        tasks.refund.enqueue({"cents": "five"})  # type: ignore[arg-type]


def test_many_calls_of_several_tasks_are_one_statement_in_the_order_given() -> None:
    with statements() as sent:
        made = enqueue_many([tasks.charge.call(1), tasks.remind.call(2), tasks.charge.call(3)])
    assert len(sent) == 1
    assert [Job.objects.get(pk=one.id).args for one in made] == [[1], [2], [3]]
    assert [one.id for one in made] == sorted(one.id for one in made)
    with pytest.raises(TypeError, match=r"task\.call"):
        enqueue_many([tasks.charge])  # type: ignore[list-item]


def test_a_task_whose_code_is_elsewhere_is_a_name() -> None:
    elsewhere = task_by_name("somewhere.else.tasks.charge")
    elsewhere.using(priority=5).enqueue(42, amount_cents=1)
    job = Job.objects.get()
    assert (job.task, job.args, job.kwargs, job.priority) == (elsewhere.path, [42], {"amount_cents": 1}, 5)


@pytest.mark.parametrize("call", [(), (1, 2, 3), ("x", "y", "z")])
def test_a_wrong_call_is_a_type_error_before_any_sql(call: tuple[Any, ...]) -> None:
    with statements() as sent, pytest.raises(TypeError, match="charge"):
        tasks.charge.enqueue(*call)
    with statements() as sent, pytest.raises(TypeError, match="nothing"):
        tasks.charge.enqueue(1, nothing=2)  # type: ignore[call-arg]
    assert sent == []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "NaN"),
        (float("inf"), "infinite"),
        ("a\0b", "NUL"),
        ("\udc80", "surrogate"),
        (b"x", "text"),
        ({1}, "list"),
        (Decimal("1"), r"str\(value\)"),
        ("x" * 300_000, "MAX_PAYLOAD_BYTES"),
        (User(pk=1), "primary key"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_json_is_refused_with_its_path_and_the_remedy_before_any_sql(value: Any, said: str) -> None:
    with statements() as sent, pytest.raises(InvalidPayload, match=said) as raised:
        tasks.charge.enqueue({"deep": [value]} if not isinstance(value, str) or len(value) < 9 else value)
    assert sent == []
    if len(str(value)) < 100:
        assert "args[0]['deep'][0]" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"priority": 101}, "-100 to 100"),
        ({"priority": 1.5}, "whole number"),
        ({"priority": True}, "whole number"),
        ({"queue_name": ""}, "letters"),
        ({"queue_name": "a b"}, "letters"),
        ({"queue_name": "ü"}, "letters"),
        ({"queue_name": "x" * 64}, "63"),
        ({"idempotency_key": ""}, "1 to 200"),
        ({"idempotency_key": "x" * 201}, "1 to 200"),
        ({"idempotency_key": "a\0"}, "NUL"),
        ({"idempotency_key": 7}, "text"),
        ({"run_after": datetime(2030, 1, 1)}, "time zone"),
        ({"run_after": datetime.max.replace(tzinfo=UTC)}, "days"),
        ({"run_after": timedelta.max}, "days"),
        ({"run_after": 5}, "aware datetime or a timedelta"),
        ({"max_attempts": 0}, "at least 1"),
        ({"max_attempts": 2**31}, "at least 1"),
        ({"database": "nowhere"}, "DATABASES"),
    ],
    ids=str,
)
def test_an_option_out_of_its_range_says_what_is_allowed(options: Any, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        tasks.charge.using(**options)


@pytest.mark.parametrize("unknown", ["timeout", "delay", "backoff", "func"])
def test_an_unknown_option_is_a_type_error_that_names_the_known_ones(unknown: str) -> None:
    with pytest.raises(TypeError, match=rf"{unknown}.*run_after"):
        tasks.charge.using(**{unknown: 1})  # type: ignore[misc]


def test_a_task_is_a_function_of_a_module() -> None:
    def inner() -> None: ...

    with pytest.raises(InvalidOption, match="module"):
        task(inner)
    with pytest.raises(InvalidOption, match="function"):
        task(3)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "options", [{"timeout": 0}, {"timeout": -1}, {"backoff": 3}, {"atomic": True}, {"queue_name": "a b"}], ids=str
)
def test_options_of_the_decorator_are_checked_where_the_task_is_made(options: Any) -> None:
    with pytest.raises(InvalidOption):
        task(**options)(tasks._plain)


def test_a_coroutine_cannot_be_atomic() -> None:
    with pytest.raises(InvalidOption, match="plain functions"):
        task(atomic=True, timeout=5)(tasks.remind.func)  # type: ignore[arg-type]


def test_a_task_that_no_worker_could_import_is_refused_where_it_is_enqueued(monkeypatch: pytest.MonkeyPatch) -> None:
    # As far as this process knows, nobody has looked for it yet.
    monkeypatch.setattr("pgqueue_django.tasks._unknown_until", {})
    with pytest.raises(TaskNotFound, match="decorate"):
        tasks.hidden.enqueue()
    assert not Job.objects.exists()


@pytest.mark.parametrize("path", ["", "charge", "shop..tasks", "shop tasks.x", "x" * 300 + ".y", "shop.tasks.charge;"])
def test_a_name_that_is_no_import_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidOption, match="import path"):
        task_by_name(path)


def test_backoff_of_the_task_is_in_the_row() -> None:
    made = task(backoff=Backoff(base=1, factor=3, cap=9))(tasks._plain)
    assert made.backoff.numbers() == {"base": 1, "factor": 3, "cap": 9}


@pytest.mark.django_db(transaction=True)
def test_the_migration_can_be_taken_back_and_applied_again() -> None:
    call_command("migrate", "pgqueue_django", "zero", verbosity=0)
    assert "pgqueue_job" not in connection.introspection.table_names()
    call_command("migrate", "pgqueue_django", verbosity=0)
    assert "pgqueue_job" in connection.introspection.table_names()


# -- results ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [{"invoice": 7, "cents": 1.5}, [1, None, "Zażółć"], None, 0, False, ""])
def test_the_result_of_a_job_is_read_back_as_it_was_returned(value: Any) -> None:
    enqueued = tasks.charge.enqueue(7)
    outcome = Succeeded(payload.dump(value, where="result", limit=None))
    settle(claim_one(enqueued.id), outcome)
    with statements() as asked:
        assert tasks.charge.result(enqueued) == value
    assert len(asked) == 1
    assert tasks.charge.result(enqueued.id) == value
    assert task_by_name(tasks.charge.path).result(enqueued) == value


@pytest.mark.parametrize("state", sorted(set(State) - {State.SUCCEEDED}))
def test_what_has_not_succeeded_has_no_result_and_says_what_it_is(state: State) -> None:
    job = make_job(state, task=tasks.charge.path)
    with pytest.raises(NoResult, match=state) as caught:
        tasks.charge.result(job.pk)
    assert caught.value.state == state


def test_another_tasks_job_has_no_result_of_this_one() -> None:
    job = make_job(State.SUCCEEDED, task=tasks.remind.path)
    with pytest.raises(NoResult, match=tasks.remind.path) as caught:
        tasks.charge.result(job.pk)
    assert caught.value.state is None
    with pytest.raises(NoResult, match="no job 0"):
        tasks.charge.result(0)


def test_a_coroutine_reads_a_result_too() -> None:
    job = make_job(State.SUCCEEDED, task=tasks.remind.path)
    assert async_to_sync(tasks.remind.aresult)(job.pk) == "ok"

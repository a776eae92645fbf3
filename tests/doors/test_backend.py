"""The backend of Django's own tasks: what enqueues, what is read, what is refused. Runs of them: tests/machine."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import django
import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext, override_settings
from django.utils import timezone
from django.utils.module_loading import import_string
from verbs import rows

import pgqueue_django
from pgqueue_django import (
    Backoff,
    InvalidOption,
    InvalidPayload,
    TaskNotFound,
    job_options,
    options,
    task_by_name,
    transitions,
)
from pgqueue_django.exceptions import LeaseLost
from pgqueue_django.models import Job
from pgqueue_django.outcomes import Failure, Kind
from pgqueue_django.states import State
from pgqueue_django.tasks import declared_tasks, of_django

pytestmark = pytest.mark.django_db

compat = pytest.importorskip("pgqueue_django.compat", exc_type=ImproperlyConfigured, reason="no django.tasks here")

from pgqueue_django import results  # noqa: E402
from pgqueue_django.backend import PgQueueBackend  # noqa: E402
from tests.machine import django_handlers as handlers  # noqa: E402
from tests.machine import handlers as ours  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
OURS = "pgqueue_django.backend.PgQueueBackend"
DUMMY = f"{compat.BaseTaskBackend.__module__.rpartition('.')[0]}.dummy.DummyBackend"
IMMEDIATE = DUMMY.replace("dummy.Dummy", "immediate.Immediate")
GIVE = "tests.machine.django_handlers.give"


@contextmanager
def statements(count: int) -> Iterator[list[str]]:
    """So many statements run inside; those of SQL, without the transaction's own."""
    found: list[str] = []
    with CaptureQueriesContext(connection) as captured:
        yield found
    found += [query["sql"] for query in captured if "SAVEPOINT" not in query["sql"]]
    assert len(found) == count, found


def backend(**params: Any) -> PgQueueBackend:
    return PgQueueBackend("default", {"QUEUES": [], **params})


def one_of(job: Job) -> Any:
    return backend().get_result(str(job.pk))


@pytest.fixture(autouse=True)
def no_task_of_these_tests_stays_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "declared", dict(options.declared))


# -- enqueue ---------------------------------------------------------------------------------------------------


def test_enqueue_is_one_insert_in_the_callers_transaction() -> None:
    with statements(1) as found, transaction.atomic():
        result = handlers.give.enqueue({"order": 7})
        transaction.set_rollback(True)
    assert found[0].lstrip().startswith("INSERT")
    assert not Job.objects.exists()
    with pytest.raises(compat.TaskResultDoesNotExist):
        handlers.give.get_result(result.id)


def test_aenqueue_is_one_insert_too() -> None:
    with statements(1):
        result = async_to_sync(handlers.give_async.aenqueue)(3)
    assert result.args == [3]
    assert async_to_sync(handlers.give_async.aget_result)(result.id) == result


def test_reading_a_result_is_one_query_and_gives_what_enqueue_gave() -> None:
    enqueued = handlers.give_slowly.enqueue({"b": 1, "a": [1.5, None, "x"]})
    with statements(1):
        read = handlers.give_slowly.get_result(enqueued.id)
    assert read == enqueued
    assert read.task == handlers.give_slowly
    assert (read.status, read.state, read.attempts, read.worker_ids) == ("READY", "queued", 0, [])
    assert (read.task.queue_name, read.task.priority) == ("slow", 5)
    assert list(read.args[0]) == ["b", "a"]
    row = Job.objects.get(pk=int(enqueued.id))
    assert (row.queue_name, row.priority, row.task) == ("slow", 5, "tests.machine.django_handlers.give_slowly")
    assert enqueued.enqueued_at == row.enqueued_at


def test_results_are_read_where_they_are_written(settings: Any) -> None:
    settings.DATABASE_ROUTERS = ["tests.doors.test_backend.ToReplica"]
    enqueued = handlers.give.enqueue(1)
    assert handlers.give.get_result(enqueued.id) == enqueued


class ToReplica:
    def db_for_read(self, model: type, **hints: Any) -> str:
        return "a replica that lags"

    def db_for_write(self, model: type, **hints: Any) -> str:
        return "default"


@pytest.mark.parametrize("ahead", [timedelta(hours=2), "datetime"])
def test_run_after_may_be_a_moment_or_a_length(ahead: Any) -> None:
    moment = timezone.now() + timedelta(hours=2) if ahead == "datetime" else ahead
    enqueued = handlers.give.using(run_after=moment).enqueue(1)
    row = Job.objects.get(pk=int(enqueued.id))
    assert (row.state, enqueued.state, enqueued.status) == (State.SCHEDULED, State.SCHEDULED, "READY")
    assert abs((row.run_after - row.enqueued_at).total_seconds() - 7200) < 5
    assert enqueued.task.run_after == row.run_after
    assert handlers.give.get_result(enqueued.id) == enqueued
    if ahead == "datetime":
        assert enqueued.task.run_after == moment


@pytest.mark.parametrize("past", [timedelta(hours=-2), datetime(2020, 1, 1, tzinfo=timezone.get_fixed_timezone(0))])
def test_run_after_in_the_past_is_now(past: Any) -> None:
    enqueued = handlers.give.using(run_after=past).enqueue(1)
    assert (enqueued.state, enqueued.task) == (State.QUEUED, handlers.give)
    assert handlers.give.get_result(enqueued.id) == enqueued


def test_a_moment_without_a_time_zone_is_one_of_the_projects_where_use_tz_is_off(settings: Any) -> None:
    with pytest.raises(compat.InvalidTask, match="aware"):
        handlers.give.using(run_after=datetime(2030, 1, 1))
    settings.USE_TZ = False
    settings.TIME_ZONE = "Europe/Warsaw"
    enqueued = handlers.give.using(run_after=datetime(2030, 1, 1, 12)).enqueue(1)
    with connection.cursor() as cursor:
        cursor.execute("SELECT run_after = '2030-01-01 12:00+01' FROM pgqueue_job WHERE id = %s", [enqueued.id])
        assert cursor.fetchone() == (True,)


def test_moments_of_attempts_have_no_time_zone_where_use_tz_is_off(settings: Any) -> None:
    settings.USE_TZ = False
    settings.TIME_ZONE = "Europe/Warsaw"
    connection.ensure_timezone()
    job = rows.make_job(State.RETRYING, task=GIVE, due=True)
    transitions.promote(rows.DB)
    began = one_of(job).last_attempted_at
    transitions.release(rows.DB, [rows.claim_one(job.pk).pair])
    assert one_of(job).last_attempted_at == one_of(job).started_at == began
    assert timezone.is_naive(began)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (float("nan"), InvalidPayload),
        (float("inf"), InvalidPayload),
        ("a\0b", InvalidPayload),
        ("\ud800", InvalidPayload),
        ("x" * 300_000, InvalidPayload),
        ({1: "a", "1": "b"}, InvalidPayload),
        (datetime(2026, 1, 1), TypeError),
        (object(), TypeError),
        ({1, 2}, TypeError),
    ],
)
def test_what_json_or_postgresql_cannot_hold_is_refused_before_any_sql(value: Any, error: type[Exception]) -> None:
    with transaction.atomic():
        with statements(0), pytest.raises(error):
            handlers.give.enqueue({"deep": [value]})
        handlers.give.enqueue("the block goes on")
    assert Job.objects.get().args == ["the block goes on"]


def test_keys_become_texts_as_they_come_back() -> None:
    enqueued = handlers.give.enqueue({1: {None: b"x", True: (1, 2)}})
    assert enqueued.args == [{"1": {"null": "x", "true": [1, 2]}}]
    assert handlers.give.get_result(enqueued.id).args == enqueued.args


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2), {}), ((1,), {"number": 1}), ((1,), {"speed": 2})])
def test_a_call_that_the_function_does_not_take_is_refused(args: Any, kwargs: Any) -> None:
    with statements(0), pytest.raises(TypeError, match="give_number"):
        handlers.give_number.enqueue(*args, **kwargs)


@dataclasses.dataclass
class Amount:
    cents: int


def take(amount: Amount) -> None: ...


def test_arguments_are_plain_json_whatever_the_annotations_say() -> None:
    """As under any other backend: the handler gets what JSON has."""
    task = compat.task_backends["default"].task_class(
        func=take, priority=0, backend="default", queue_name="default", run_after=None, takes_context=False
    )
    ours_of_it = of_django(task)
    assert ours_of_it.signature is not None
    assert ours_of_it.signature.decode('[{"cents": 5}]', "{}") == ([{"cents": 5}], {})


def test_the_context_is_no_argument_of_the_caller() -> None:
    assert handlers.tell_async.enqueue("hello").args == ["hello"]
    with pytest.raises(TypeError):
        handlers.tell_async.enqueue("context", "hello")


def test_a_key_gives_both_callers_the_same_result() -> None:
    keyed = handlers.give.using(idempotency_key="once", max_attempts=9)
    first = keyed.enqueue(1)
    with statements(2):
        second = keyed.enqueue(2)
    assert first == second
    assert second.args == [1]
    assert (first.task.idempotency_key, first.task.max_attempts) == ("once", 9)
    row = Job.objects.get()
    assert (row.idempotency_key, row.max_attempts) == ("once", 9)


def test_a_task_under_another_name_than_its_functions_is_told_to_who_enqueues() -> None:
    renamed = (
        compat.Task
        if False
        else type(handlers.give)(
            func=handlers.give_async.func,
            priority=0,
            backend="default",
            queue_name="default",
            run_after=None,
        )
    )
    renamed.enqueue(1)  # the function of that name is another task's, and a task
    hidden = type(handlers.give)(func=ours.note, priority=0, backend="default", queue_name="default", run_after=None)
    with statements(0), pytest.raises(compat.InvalidTask, match=r"handlers\.note is no task"):
        hidden.enqueue("event")


# -- results ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (State.SCHEDULED, "READY"),
        (State.QUEUED, "READY"),
        (State.RETRYING, "READY"),
        (State.RUNNING, "RUNNING"),
        (State.SUCCEEDED, "SUCCESSFUL"),
        (State.FAILED, "FAILED"),
        (State.DEAD, "FAILED"),
        (State.CANCELLED, "FAILED"),
    ],
)
def test_each_state_has_its_status(state: State, status: str) -> None:
    result = one_of(rows.make_job(state, task=GIVE))
    assert (result.status, result.state) == (status, state)
    assert result.is_finished == (state in (State.SUCCEEDED, State.FAILED, State.DEAD, State.CANCELLED))
    assert (result.finished_at is not None) == result.is_finished
    if state == State.SUCCEEDED:
        assert (result.return_value, result.errors) == ("ok", [])
    else:
        with pytest.raises(ValueError, match="Task"):
            _ = result.return_value
    if status == "FAILED":
        assert issubclass(result.errors[-1].exception_class, BaseException)


def test_every_state_has_a_status() -> None:
    assert set(results.STATUS) == set(State)


@pytest.mark.parametrize("kind", list(Kind))
def test_the_class_of_every_kind_of_failure_can_be_imported(kind: Kind) -> None:
    types = {
        Kind.TIMEOUT: "JobTimeout",
        Kind.LEASE_EXPIRED: "LeaseExpired",
        Kind.WORKER_LOST: "WorkerLost",
        Kind.TRANSACTION: "TransactionLeftOpen",
        Kind.ERROR: "ZeroDivisionError",
    }
    failure = Failure(kind, types.get(kind, "pgqueue_django.exceptions.Retry"), "why it failed")
    error = results._error(failure.entry())
    assert issubclass(error.exception_class, BaseException)
    assert "why it failed" in error.traceback
    if kind == Kind.ERROR:
        assert error.exception_class is ZeroDivisionError


def test_what_the_reaper_writes_can_be_imported_too() -> None:
    job = rows.make_job(State.RUNNING, task=GIVE, max_attempts=1, expired=True)
    assert transitions.reap(rows.DB, by="w") == 1
    (error,) = one_of(job).errors
    assert error.exception_class_path == "pgqueue_django.exceptions.LeaseLost"
    assert import_string(error.exception_class_path) is error.exception_class


def test_workers_and_errors_are_one_for_each_attempt_over_requeues_too() -> None:
    job = rows.make_job(State.RETRYING, task=GIVE, worker_id="a", due=True)
    began = Job.objects.get(pk=job.pk).started_at
    transitions.promote(rows.DB)
    assert one_of(job).worker_ids == ["a"]
    held = rows.claim_one(job.pk, worker_id="b")
    assert one_of(job).worker_ids == ["a", "b"]
    transitions.release(rows.DB, [held.pair])
    given_back = one_of(job)
    assert (given_back.worker_ids, given_back.started_at, given_back.last_attempted_at) == (["a"], began, began)
    rows.settle(rows.claim_one(job.pk, worker_id="c"), rows.ending(State.SUCCEEDED))
    assert one_of(job).worker_ids == ["a", "c"]
    transitions.requeue(rows.DB, [job.pk])
    assert one_of(job).worker_ids == ["a", "c"]
    rows.claim_one(job.pk, worker_id="d")
    transitions.cancel(rows.DB, [job.pk])
    assert one_of(job).worker_ids == ["a", "c", "d"]
    rows.move_clock(job.pk, "run_after", -1)
    transitions.requeue(rows.DB, [job.pk])
    rows.settle(rows.claim_one(job.pk, worker_id="e"), rows.ending(State.FAILED))
    transitions.requeue(rows.DB, [job.pk])
    transitions.cancel(rows.DB, [job.pk])
    result = one_of(job)
    assert (result.worker_ids, result.attempts) == (["a", "c", "d", "e"], 4)
    assert len(result.errors) == 3  # of a, of e, and that it was cancelled
    assert result.started_at == began
    assert result.last_attempted_at > began


def test_disowned_and_reaped_attempts_count_and_refunded_ones_do_not() -> None:
    job = rows.make_job(State.RUNNING, task=GIVE, worker_id="a", expired=True)
    transitions.reap(rows.DB, by="w")
    rows.move_clock(job.pk, "run_after", -1)
    transitions.promote(rows.DB)
    held = rows.claim_one(job.pk, worker_id="b")
    transitions.disown(rows.DB, "b", begun=[held.pair], by="w")
    rows.move_clock(job.pk, "run_after", -1)
    transitions.promote(rows.DB)
    rows.claim_one(job.pk, worker_id="c")
    transitions.disown(rows.DB, "c", by="w")
    result = one_of(job)
    assert (result.worker_ids, result.status, len(result.errors)) == (["a", "b"], "READY", 2)


def test_a_wait_that_nobody_asked_for_is_not_shown_as_run_after() -> None:
    retrying = rows.make_job(State.RETRYING, task=GIVE)
    parked = rows.make_job(State.QUEUED, task=GIVE)
    transitions.release(rows.DB, [rows.claim_one(parked.pk).pair], unknown=[parked.pk])
    assert Job.objects.get(pk=parked.pk).run_after > timezone.now()
    for job in (retrying, parked):
        assert one_of(job).task == handlers.give


def test_an_attempt_that_is_given_back_hides_none_before_it() -> None:
    job = rows.make_job(State.SUCCEEDED, task=GIVE, worker_id="a")
    transitions.requeue(rows.DB, [job.pk])
    transitions.release(rows.DB, [rows.claim_one(job.pk, worker_id="b").pair])
    result = one_of(job)
    assert result.attempts == 1
    assert result.last_attempted_at == result.started_at == job.started_at


def test_a_row_remembers_a_thousand_workers_and_no_more() -> None:
    job = rows.make_job(State.QUEUED, task=GIVE)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pgqueue_job SET past_worker_ids = (SELECT jsonb_agg(n::text) FROM generate_series(1, 999) n)"
        )
    for worker in ("x", "y"):
        rows.settle(rows.claim_one(job.pk, worker_id=worker), rows.ending(State.RETRYING))
        rows.move_clock(job.pk, "run_after", -1)
        transitions.promote(rows.DB)
    worker_ids = one_of(job).worker_ids
    assert (len(worker_ids), worker_ids[0], worker_ids[-2:]) == (999, "3", ["x", "y"])


def test_a_first_attempt_that_succeeds_writes_nothing_of_the_kind() -> None:
    row = rows.row(rows.make_job(State.SUCCEEDED, task=GIVE).pk)
    assert row is not None
    assert (row["past_worker_ids"], row["first_started_at"]) == (None, None)


def test_refresh_brings_everything_up_to_date() -> None:
    result, other = handlers.give.enqueue(1), handlers.give.enqueue(1)
    for one in (result, other):
        rows.settle(rows.claim_one(int(one.id)), rows.ending(State.SUCCEEDED))
    with statements(1):
        result.refresh()
    with statements(1):
        async_to_sync(other.arefresh)()
    for one in (result, other):
        assert one == handlers.give.get_result(one.id)
        assert (one.state, one.status, one.return_value, one.attempts) == (State.SUCCEEDED, "SUCCESSFUL", "ok", 1)
        assert None not in (one.started_at, one.last_attempted_at, one.finished_at)
    changed = {one.name for one in dataclasses.fields(result)} - results.REFRESHED
    assert changed == {"task", "id", "args", "kwargs", "backend"}


@pytest.mark.parametrize(
    "id", ["", "0", "-1", "007", "1.0", " 1", "1e3", "123", "invalid uuid", "²", "٣", str(2**63), "9" * 40, 1, None]
)
def test_no_such_id_is_no_such_result(id: Any) -> None:
    Job.objects.all().delete()
    rows.make_job(State.QUEUED, task=GIVE)
    with pytest.raises(compat.TaskResultDoesNotExist):
        handlers.give.get_result(id)
    with pytest.raises(compat.TaskResultDoesNotExist):
        async_to_sync(backend().aget_result)(id)


def test_an_id_is_written_in_one_way_only() -> None:
    id = str(rows.make_job(State.QUEUED, task=GIVE).pk)
    assert backend().get_result(id).id == id
    with statements(0), pytest.raises(compat.TaskResultDoesNotExist):
        backend().get_result(f"0{id}")


def test_a_result_is_of_the_backend_that_was_asked(settings: Any) -> None:
    settings.TASKS = {alias: {"BACKEND": OURS, "QUEUES": []} for alias in ("default", "queue")}
    queue = compat.task_backends["queue"]
    enqueued = queue.enqueue(handlers.give, [1], {})
    assert (enqueued.backend, enqueued.task.backend) == ("queue", "queue")
    assert queue.get_result(enqueued.id) == enqueued


def test_tasks_are_known_as_soon_as_their_module_is_imported() -> None:
    path = handlers.give_slowly.module_path
    handlers.give_slowly.using(queue_name="elsewhere")
    assert path in declared_tasks()
    assert options.declared[path] == "slow"


def test_the_largest_id_is_looked_up() -> None:
    with statements(1), pytest.raises(compat.TaskResultDoesNotExist):
        backend().get_result(str(2**63 - 1))


def test_a_result_of_another_task_does_not_match() -> None:
    enqueued = handlers.give.enqueue(1)
    with pytest.raises(Exception, match="Task does not match"):
        handlers.give_async.get_result(enqueued.id)


def test_a_job_of_our_own_task_can_be_read_as_a_result() -> None:
    enqueued = ours.give.enqueue(3)
    result = backend().get_result(str(enqueued.id))
    assert (result.task.func, result.args, result.status) == (ours.give.func, [3], "READY")


def test_a_job_whose_code_is_elsewhere_says_so() -> None:
    enqueued = task_by_name("elsewhere.tasks.charge").enqueue(3)
    with pytest.raises(TaskNotFound, match=r"elsewhere\.tasks\.charge"):
        backend().get_result(str(enqueued.id))


def test_a_queue_that_is_in_queues_no_more_does_not_break_its_jobs(settings: Any) -> None:
    enqueued = handlers.give_slowly.enqueue(1)
    settings.TASKS = {"default": {"BACKEND": OURS, "QUEUES": ["default"]}}
    read = handlers.give_slowly.get_result(enqueued.id)
    assert read == enqueued
    read.refresh()
    with pytest.raises(compat.InvalidTask, match="'slow' is not valid"):
        handlers.give_slowly.enqueue(1)


@pytest.mark.skipif(django.VERSION < (6, 1), reason="tasks can be pickled from Django 6.1 on")
def test_tasks_and_results_can_be_pickled() -> None:
    enqueued = handlers.give.using(idempotency_key="once").enqueue(1)
    assert pickle.loads(pickle.dumps(enqueued)) == enqueued


# -- options ---------------------------------------------------------------------------------------------------


def test_job_options_reach_the_row_and_the_worker() -> None:
    enqueued = handlers.fail.enqueue("x")
    row = Job.objects.get(pk=int(enqueued.id))
    assert (row.max_attempts, row.backoff) == (2, {"base": 0.01, "factor": 1, "cap": 0.01})
    found = import_task("tests.machine.django_handlers.write_atomically")
    assert (found.atomic, found.timeout, found.origin) == (True, 20, handlers.write_atomically)


def import_task(path: str) -> Any:
    from pgqueue_django.tasks import resolve

    return resolve(path)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"max_attempts": 2.5},
        {"timeout": 0},
        {"timeout": "soon"},
        {"timeout": timedelta(0)},
        {"backoff": 3},
        {"atomic": True},
    ],
)
def test_options_out_of_their_range_are_refused_at_import(options: Any) -> None:
    with pytest.raises(InvalidOption):
        job_options(**options)(ours.note)


def test_job_options_stands_below_task() -> None:
    with pytest.raises(InvalidOption, match="below"):
        job_options(max_attempts=3)(handlers.give)
    with pytest.raises(InvalidOption, match="async"):
        job_options(atomic=True, timeout=3)(handlers.give_async.func)


@pytest.mark.parametrize("path", [DUMMY, IMMEDIATE, OURS])
def test_job_options_can_be_imported_under_any_backend(path: str, settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": path, "QUEUES": []}}

    @job_options(max_attempts=3, timeout=timedelta(minutes=1), backoff=Backoff(cap=5))
    def function() -> None: ...

    function.__qualname__ = "function"
    made = compat.task_backends["default"].task_class(
        func=function, priority=0, backend="default", queue_name="default", run_after=None, takes_context=False
    )
    assert made.func is function


@pytest.mark.skipif((6, 0) <= django.VERSION < (6, 1), reason="Django 6.0's @task takes no other options")
def test_the_decorator_takes_our_options_from_django_61_on() -> None:
    decorator: Any = import_string("django.tasks.task" if django.VERSION >= (6, 0) else "django_tasks.task")
    made = decorator(max_attempts=7, timeout=timedelta(seconds=9), backoff=Backoff(cap=5))(handlers.give.func)
    enqueued = made.enqueue(1)
    row = Job.objects.get(pk=int(enqueued.id))
    assert (row.max_attempts, row.backoff["cap"], made.timeout) == (7, 5, 9)
    assert (of_django(made).timeout, of_django(made).max_attempts) == (9, 7)
    with pytest.raises(compat.InvalidTask, match="max_attempts"):
        decorator(max_attempts=0)(handlers.give.func)
    with pytest.raises(compat.InvalidTask, match="async"):
        decorator(atomic=True, timeout=3)(handlers.give_async.func)


@pytest.mark.parametrize("name", ["ImmediateBackend", "DummyBackend"])
def test_the_kits_backends_take_our_options(name: str, settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": f"pgqueue_django.testing.{name}", "QUEUES": []}}
    ours_too = compat.task_backends["default"].task_class(
        func=handlers.give.func,
        priority=0,
        backend="default",
        queue_name="default",
        run_after=None,
        takes_context=False,
        max_attempts=3,
        timeout=timedelta(seconds=9),
        backoff=Backoff(cap=5),
    )
    with statements(0):
        result = ours_too.using(idempotency_key="once", max_attempts=4).enqueue(1)
    assert (result.task.max_attempts, result.task.timeout, result.task.idempotency_key) == (4, 9, "once")
    assert result.status == ("SUCCESSFUL" if name == "ImmediateBackend" else "READY")
    with pytest.raises(compat.InvalidTask, match="max_attempts"):
        ours_too.using(max_attempts=0)
    length = timedelta(minutes=5)
    if name == "DummyBackend":
        assert ours_too.using(run_after=length).enqueue(1).task.run_after == length
    else:
        with pytest.raises(compat.InvalidTask, match="run_after"):
            ours_too.using(run_after=length)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"queue_name": "a b"}, "queue_name"),
        ({"priority": 101}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"run_after": timedelta(days=99999)}, "run_after"),
        ({"idempotency_key": "x" * 201}, "idempotency_key"),
        ({"idempotency_key": "\0"}, "idempotency_key"),
        ({"max_attempts": -1}, "max_attempts"),
    ],
)
def test_using_refuses_what_no_row_can_hold(changes: Any, what: str) -> None:
    with pytest.raises(compat.InvalidTask, match=what):
        handlers.give.using(**changes)


# -- settings --------------------------------------------------------------------------------------------------


def test_a_task_of_a_project_that_has_another_backend_in_its_tests_goes_there(settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": DUMMY, "QUEUES": []}}
    with statements(0):
        handlers.give.enqueue(1)
    assert len(compat.task_backends["default"].results) == 1


def test_a_task_made_under_another_backend_can_be_sent_to_ours() -> None:
    both = {"default": {"BACKEND": DUMMY}, "queue": {"BACKEND": OURS, "QUEUES": []}}
    with override_settings(TASKS=both):
        stock = compat.task_backends["default"].task_class(
            func=handlers.give.func,
            priority=0,
            backend="default",
            queue_name="default",
            run_after=None,
            takes_context=False,
        )
        enqueued = stock.using(backend="queue").enqueue(1)
        assert Job.objects.get().pk == int(enqueued.id)
        assert enqueued.backend == "queue"
        enqueued.refresh()


@pytest.mark.parametrize(
    ("params", "id", "words"),
    [
        ({"OPTIONS": {"databse": "default"}}, "pgqueue.E102", "databse"),
        ({"OPTIONS": {"database": "elsewhere"}}, "pgqueue.E103", "elsewhere"),
        ({"QUEUES": ["default", "a b"]}, "pgqueue.E104", "a b"),
    ],
)
def test_wrong_options_are_found_by_check_and_refused_by_enqueue(
    params: Any, id: str, words: str, settings: Any
) -> None:
    (problem,) = backend(**params).check()
    assert (problem.id, words in problem.msg, bool(problem.hint)) == (id, True, True)
    assert backend().check() == []
    settings.TASKS = {"default": {"BACKEND": OURS, "QUEUES": [], **params}}
    with pytest.raises(SystemCheckError, match=id):
        call_command("check")
    if "OPTIONS" in params:
        with statements(0), pytest.raises(ImproperlyConfigured, match=words):
            handlers.give.enqueue(1)


def test_an_app_that_is_not_installed_is_said(settings: Any) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "pgqueue_django"]
    (problem,) = backend().check()
    assert (problem.id, "INSTALLED_APPS" in problem.hint) == ("pgqueue.E101", True)


_EARLY = """
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["early"{apps}], TASKS={{"default": {{"BACKEND": "{backend}"}}}},
    DATABASES={{"default": {{"ENGINE": "django.db.backends.postgresql", "NAME": "nowhere"}}}}, USE_TZ=True,
)
import early
django.setup()
from django.core.management import call_command
try:
    call_command("check")
except SystemExit:
    raise
except Exception as error:
    print(error)
print("early", early.charge.module_path, early.charge.func.pgqueue_options.max_attempts)
"""


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize(
    "path", [OURS, "pgqueue_django.testing.DummyBackend", "pgqueue_django.testing.ImmediateBackend"]
)
def test_modules_with_tasks_are_imported_before_django_is_ready(tmp_path: Path, installed: bool, path: str) -> None:
    framework = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
    (tmp_path / "early.py").write_text(
        f"from {framework} import task\nfrom pgqueue_django import job_options\n"
        "@task\n@job_options(max_attempts=3, timeout=5)\ndef charge(): ...\n"
    )
    apps = ', "pgqueue_django"' if installed else ""
    apps += ', "django_tasks"' if framework == "django_tasks" else ""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _EARLY.format(backend=path, apps=apps)],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "early early.charge 3" in done.stdout, done.stderr
    assert ("pgqueue.E101" in done.stdout) == (not installed and path == OURS)


@pytest.mark.skipif(django.VERSION < (6, 0), reason="the backport is an app, which does that itself")
def test_the_backends_are_checked_where_nobody_has_imported_djangos_tasks() -> None:
    code = """
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["pgqueue_django"], TASKS={"default": {"BACKEND": "%s", "OPTIONS": {"databse": "x"}}},
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "nowhere"}},
)
django.setup()
from django.core.management import call_command
call_command("check")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code % OURS],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "pgqueue.E102" in done.stderr


def test_without_the_framework_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    if django.VERSION >= (6, 0):
        pytest.skip("Django has it")
    monkeypatch.setitem(sys.modules, "django_tasks", None)
    monkeypatch.delitem(sys.modules, "pgqueue_django.compat")
    with pytest.raises(ImproperlyConfigured, match=r"pgqueue-django\[backport\]"):
        import_string("pgqueue_django.compat.Task")


_WITHOUT = """
import sys
sys.modules["django_tasks"] = None
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes",
                    "django.contrib.messages", "django.contrib.sessions", "pgqueue_django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "nothing"}},
)
django.setup()
from importlib import import_module
for name in sys.argv[1:]:
    import_module(f"pgqueue_django.{name}")
"""


def test_without_the_framework_everything_else_can_be_imported() -> None:
    """On Django 5.2 without the backport: the URLs above all, which every page of the project needs."""
    if django.VERSION >= (6, 0):
        pytest.skip("Django has it")
    root = Path(pgqueue_django.__file__).parent
    found = (path.relative_to(root).with_suffix("") for path in root.rglob("*.py"))
    names = {".".join(path.parts).removesuffix(".__init__") for path in found if "migrations" not in path.parts}
    needs_it = {"compat", "results", "backend", "testing.backends", "__init__"}
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, *sorted(names - needs_it)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# -- signals ---------------------------------------------------------------------------------------------------


@pytest.fixture
def heard() -> Iterator[Callable[..., list[Any]]]:
    connected = []

    def connect(signal: Any, *, error: BaseException | None = None) -> list[Any]:
        told: list[Any] = []

        def receiver(sender: Any, task_result: Any, **kwargs: Any) -> None:
            told.append((sender, task_result))
            if error is not None:
                raise error

        signal.connect(receiver)
        connected.append((signal, receiver))
        return told

    yield connect
    for signal, receiver in connected:
        signal.disconnect(receiver)


@pytest.mark.parametrize("others", ["cancelled", "claimed"])
def test_nobody_is_told_of_an_attempt_that_is_somebody_elses(heard: Any, others: str) -> None:
    told = heard(compat.task_started), heard(compat.task_finished)
    job = rows.make_job(State.QUEUED, task=GIVE)
    mine = rows.claim_one(job.pk, worker_id="a")
    if others == "cancelled":
        transitions.cancel(rows.DB, [job.pk])
    else:
        transitions.release(rows.DB, [mine.pair])
        rows.settle(rows.claim_one(job.pk, worker_id="b"), rows.ending(State.SUCCEEDED))
        transitions.requeue(rows.DB, [job.pk])
        theirs = rows.claim_one(job.pk, worker_id="c")
    with pytest.raises(LeaseLost):
        results.started(results.read(rows.DB, [job.pk])[job.pk], rows.DB, mine, handlers.give)
    if others == "claimed":
        rows.settle(theirs, rows.ending(State.SUCCEEDED))
    row = results.read(rows.DB, [job.pk])[job.pk]
    results.finished(row, mine, rows.ending(State.SUCCEEDED), handlers.give, rows.DB, ValueError())
    assert told == ([], [])


def test_nobody_is_told_of_an_outcome_that_was_taken_back(heard: Any) -> None:
    told = heard(compat.task_finished)
    job = rows.make_job(State.QUEUED, task=GIVE)
    held = rows.claim_one(job.pk)
    rows.settle(held, rows.ending(State.SUCCEEDED))
    row = results.read(rows.DB, [job.pk])[job.pk]
    transitions.requeue(rows.DB, [job.pk])
    requeued = results.read(rows.DB, [job.pk])[job.pk]
    results.finished(requeued, held, rows.ending(State.SUCCEEDED), handlers.give, rows.DB, ValueError())
    assert told == []
    results.finished(row, held, rows.ending(State.SUCCEEDED), handlers.give, rows.DB, ValueError())
    assert len(told) == 1


def test_a_job_is_shown_by_the_backend_of_its_database(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings, "other", connections.settings["default"])
    settings.TASKS = {
        "default": {"BACKEND": OURS, "QUEUES": []},
        "missing": {"BACKEND": "does.not.exist"},
        "wrong": {"BACKEND": OURS, "OPTIONS": {"database": "nowhere"}},
        "dummy": {"BACKEND": DUMMY},
        "shard": {"BACKEND": OURS, "QUEUES": [], "OPTIONS": {"database": "other"}},
        "same": {"BACKEND": OURS, "QUEUES": [], "OPTIONS": {"database": "other"}},
    }
    assert results.backend_of(handlers.give, "default") == ("default", PgQueueBackend)
    assert results.backend_of(handlers.give, "other") == ("shard", PgQueueBackend)
    assert results.backend_of(handlers.give.using(backend="same"), "other") == ("same", PgQueueBackend)
    assert results.backend_of(handlers.give, "elsewhere") == ("default", PgQueueBackend)


def test_task_enqueued_comes_from_the_backends_class_and_may_raise(heard: Any) -> None:
    before = heard(compat.task_enqueued, error=ZeroDivisionError())
    after = heard(compat.task_enqueued)
    enqueued = handlers.give.enqueue(1)
    assert before == after == [(PgQueueBackend, enqueued)]
    assert Job.objects.count() == 1


def test_a_key_that_is_taken_enqueues_nothing_and_says_nothing(heard: Any) -> None:
    told = heard(compat.task_enqueued)
    keyed = handlers.give.using(idempotency_key="once")
    keyed.enqueue(1)
    keyed.enqueue(1)
    assert len(told) == 1

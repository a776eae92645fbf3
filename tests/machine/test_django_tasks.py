"""Tasks of Django's own framework, run by workers: outcomes, contexts, signals."""

from __future__ import annotations

import gc
import logging
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction

from pgqueue_django import enqueue_many, schedules, task_by_name, transitions
from pgqueue_django.models import Job
from pgqueue_django.states import State
from pgqueue_django.worker import announcer, executor

from .workers import GRACE, REAL_DATABASE, Running, always, notes, our_threads, wait_for, wait_for_state

pytestmark = REAL_DATABASE

compat = pytest.importorskip("pgqueue_django.compat", exc_type=ImproperlyConfigured, reason="no django.tasks here")

from pgqueue_django.backend import PgQueueBackend  # noqa: E402
from tests.machine import django_handlers as handlers  # noqa: E402

Drain = Callable[..., Running]
Told = list[tuple[Any, Any, Any]]


@pytest.fixture
def heard() -> Iterator[Callable[..., Told]]:
    """``heard(signal, act)``: what its receivers were told of, with what ``sys.exc_info()`` had for them."""
    connected = []

    def connect(signal: Any, act: Callable[[Any], None] = lambda result: None) -> Told:
        told: Told = []

        def receiver(sender: Any, task_result: Any, **kwargs: Any) -> None:
            told.append((sender, task_result, sys.exc_info()[1]))
            act(task_result)

        signal.connect(receiver)
        connected.append((signal, receiver))
        return told

    yield connect
    for signal_, receiver in connected:
        signal_.disconnect(receiver)


@pytest.fixture
def release(worker: Any) -> Iterator[threading.Event]:
    """Receivers wait for it; set before the workers are ended, so that none stays behind."""
    event = threading.Event()
    yield event
    event.set()


def raises(error: BaseException) -> Callable[[Any], None]:
    def act(result: Any) -> None:
        raise error

    return act


# -- outcomes --------------------------------------------------------------------------------------------------


def test_plain_and_async_tasks_end_with_their_result(drain: Drain) -> None:
    value = {"rows": [1, 2.5, None], "word": "ż"}
    results = [handlers.give.enqueue(value), handlers.give_async.enqueue(value)]
    drain()
    for result in results:
        result.refresh()
        assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", value, 1)
        assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at


def test_what_is_returned_becomes_json_as_arguments_do(drain: Drain) -> None:
    result = handlers.give.using(queue_name="default").enqueue(0)
    odd = handlers.give_odd.enqueue()
    drain()
    result.refresh()
    odd.refresh()
    assert (result.return_value, odd.return_value) == (0, {"1": ["x", [1, 2]]})


@pytest.mark.parametrize(
    ("task", "args", "path", "words"),
    [
        (handlers.fail, ["boo"], "builtins.ValueError", "ValueError: boo"),
        (handlers.fail_async, ["boo"], "builtins.ValueError", "ValueError: boo"),
        (handlers.give_up, ["no"], "pgqueue_django.exceptions.PermanentError", "no"),
        (handlers.leave, [], "builtins.SystemExit", "SystemExit: 3"),
        (handlers.interrupt_itself, [], "builtins.KeyboardInterrupt", "KeyboardInterrupt"),
        (handlers.give_what_is_no_json, [], "pgqueue_django.exceptions.InvalidPayload", "JSON"),
        (handlers.write_atomically_and_fail, ["x"], "django.db.utils.IntegrityError", "no"),
    ],
)
def test_a_failure_keeps_its_class_and_traceback(
    drain: Drain, task: Any, args: list[Any], path: str, words: str
) -> None:
    result = task.enqueue(*args)
    wait_for(lambda: drain() and Job.objects.get().state in (State.DEAD, State.FAILED))
    result.refresh()
    assert result.status == "FAILED"
    assert (result.errors[-1].exception_class_path, words in result.errors[-1].traceback) == (path, True)
    assert len(result.errors) == len(result.worker_ids) == result.attempts
    assert notes() == []


def test_each_attempt_sees_what_was_before_it(drain: Drain) -> None:
    result = handlers.try_three_times.enqueue()
    drain()
    wait_for(lambda: drain() and Job.objects.get().state == State.SUCCEEDED)
    result.refresh()
    assert result.return_value == [3, True]
    assert [event for _, event in notes()] == [
        "[1, 1, 0, 'RUNNING', 1]",
        "[2, 2, 1, 'RUNNING', 2]",
        "[3, 3, 2, 'RUNNING', 3]",
    ]
    assert [error.exception_class_path for error in result.errors] == ["pgqueue_django.exceptions.Retry"] * 2
    assert result.started_at < result.last_attempted_at
    assert len(result.worker_ids) == 3


def test_a_context_has_the_result_and_our_own_context(drain: Drain) -> None:
    result = handlers.tell_async.enqueue("hello")
    drain()
    result.refresh()
    assert result.return_value == [result.id, 1, "hello"]


def test_options_below_the_decorator_hold_in_the_worker(drain: Drain, worker: Any, gate: Any) -> None:
    written = handlers.write_atomically.enqueue("kept")
    late = handlers.overrun.enqueue(str(gate()))
    drain()
    written.refresh()
    late.refresh()
    assert (written.return_value, notes()) == ("kept", [(0, "kept")])
    assert (late.status, late.errors[0].exception_class_path) == ("FAILED", "pgqueue_django.exceptions.JobTimeout")


def test_arguments_that_no_longer_fit_fail_at_once(drain: Drain) -> None:
    enqueued = task_by_name("tests.machine.django_handlers.give_number").enqueue(1, speed=2)
    drain()
    assert wait_for_state(enqueued, State.FAILED).history[0]["kind"] == "payload"


def test_they_can_have_a_schedule(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "_declared", {})
    assert schedules.periodic("* * * * * *", args=[7])(handlers.give_number) is handlers.give_number
    with pytest.raises(TypeError, match="give_number"):
        schedules.periodic("@daily", name="wrong", args=["too", "many"])(handlers.give_number)
    worker()
    wait_for(lambda: Job.objects.filter(state=State.SUCCEEDED).count() >= 2)
    first = Job.objects.order_by("id")[0]
    assert (first.task, first.result) == ("tests.machine.django_handlers.give_number", 7)


def test_they_can_be_called_by_name_too(drain: Drain) -> None:
    enqueued = task_by_name("tests.machine.django_handlers.give").enqueue("by name")
    drain()
    assert wait_for_state(enqueued, State.SUCCEEDED).result == "by name"


# -- signals ---------------------------------------------------------------------------------------------------


def test_receivers_are_told_once_that_it_began_and_once_that_it_ended(drain: Drain, heard: Any) -> None:
    began, ended = heard(compat.task_started), heard(compat.task_finished)
    results = [handlers.give.enqueue(1), handlers.give_async.enqueue(2), handlers.write_atomically.enqueue("x")]
    drain()
    assert {sender for sender, _, _ in began + ended} == {PgQueueBackend}
    assert sorted(result.id for _, result, _ in began) == sorted(result.id for result in results)
    for _, result, _ in began:
        assert (result.status, result.attempts, len(result.worker_ids)) == ("RUNNING", 1, 1)
        assert result.started_at is not None
    # As it stands in the row: the outcome was committed before.
    told = {result.id: result for _, result, _ in ended}
    assert told == {result.id: result.task.get_result(result.id) for result in results}
    assert {result.status for result in told.values()} == {"SUCCESSFUL"}
    assert [error for _, _, error in ended] == [None] * 3


def test_a_retry_has_not_finished(drain: Drain, heard: Any) -> None:
    began, ended = heard(compat.task_started), heard(compat.task_finished)
    result = handlers.fail.enqueue("boo")
    drain()
    wait_for(lambda: drain() and Job.objects.get().state == State.DEAD)
    assert [(one.attempts, len(one.errors)) for _, one, _ in began] == [(1, 0), (2, 1)]
    ((_, told, error),) = ended
    assert told == result.task.get_result(result.id)
    assert (type(error), str(error)) == (ValueError, "boo")
    assert error.__traceback__.tb_next is not None
    frame = error.__traceback__
    while frame.tb_next is not None:
        frame = frame.tb_next
    assert (frame.tb_frame.f_code.co_name, frame.tb_frame.f_locals) == ("fail", {})


def test_nobody_is_told_of_a_retry_that_waits(drain: Drain, heard: Any) -> None:
    ended = heard(compat.task_finished)
    result = handlers.write_atomically_and_fail.using(max_attempts=2).enqueue("x")
    drain()
    result.refresh()
    assert (result.state, ended) == (State.RETRYING, [])


def test_failures_reach_djangos_own_log_with_their_traceback(drain: Drain, caplog: Any) -> None:
    name = handlers.task.__module__.rpartition(".")[0]
    caplog.set_level(logging.INFO, logger=name)
    failed, done = handlers.fail_async.enqueue("boo"), handlers.give.enqueue(1)
    drain()
    records = {
        record.getMessage(): record
        for record in caplog.records
        if record.name == name and "state=RUN" not in record.msg
    }
    (failure,) = [record for text, record in records.items() if f"id={failed.id}" in text and "FAILED" in text]
    assert (failure.levelname, failure.exc_info[0]) == ("ERROR", ValueError)
    (success,) = [record for text, record in records.items() if f"id={done.id}" in text and "SUCCESSFUL" in text]
    assert (success.levelname, success.exc_info) == ("INFO", None)


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), SystemExit(3)])
@pytest.mark.parametrize("which", ["task_started", "task_finished"])
def test_a_receiver_that_raises_changes_no_outcome(drain: Drain, heard: Any, which: str, error: Any) -> None:
    told, others = heard(getattr(compat, which), raises(error)), heard(getattr(compat, which))
    results = [handlers.give.enqueue(number) for number in range(3)] + [handlers.give_async.enqueue(3)]
    drain()
    for number, result in enumerate(results):
        result.refresh()
        assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", number, 1)
    assert len(told) == 4
    if isinstance(error, ZeroDivisionError):
        assert len(others) == 4


def test_receivers_may_use_the_database(drain: Drain, heard: Any) -> None:
    def write(result: Any) -> None:
        handlers.handlers.note(f"{result.status}", int(result.id))

    heard(compat.task_started, write)
    heard(compat.task_finished, write)
    result, other = handlers.give.enqueue(1), handlers.give_async.enqueue(1)
    drain()
    assert sorted(notes()) == sorted(
        (int(one.id), status) for one in (result, other) for status in ("RUNNING", "SUCCESSFUL")
    )


def test_a_receiver_that_hangs_is_left_behind_at_the_end(worker: Any, heard: Any, release: Any, log: Any) -> None:
    heard(compat.task_finished, lambda result: release.wait(30))
    results = [handlers.give.enqueue(number) for number in range(5)]
    running = worker(shutdown_timeout=0.3)
    for result in results:
        wait_for_state(int(result.id), State.SUCCEEDED)
    running.loop.stop(signal.SIGTERM)
    assert running.join() == 0
    assert log("their receivers of task_finished were not told")
    release.set()
    wait_for(lambda: not our_threads())


def test_a_second_signal_does_not_wait_for_a_receiver_that_hangs(worker: Any, heard: Any, release: Any) -> None:
    told = heard(compat.task_finished, lambda result: release.wait(60))
    handlers.give.enqueue(1)
    running = worker(shutdown_timeout=30)
    wait_for(lambda: told)
    running.loop.stop(signal.SIGTERM)
    running.loop.stop(signal.SIGINT)
    assert running.join(1 + GRACE) == 130


def test_receivers_that_are_slower_than_handlers_slow_the_worker(
    worker: Any, heard: Any, release: Any, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcer, "_BEHIND", 5)
    told = heard(compat.task_finished, lambda result: release.wait(30))
    by_name = task_by_name(handlers.give.module_path)
    enqueue_many(by_name.call(number) for number in range(3000))
    running = worker(concurrency=2)
    wait_for(lambda: running.loop._announcer.is_behind and not running.loop.held)
    wait_for(lambda: log("nothing is claimed until they have caught up"))
    done = Job.objects.filter(state=State.SUCCEEDED).count()
    assert 5 <= done <= 2000  # one claim's worth more
    always(lambda: Job.objects.filter(state=State.QUEUED).count() == 3000 - done, 0.3)
    release.set()
    wait_for(lambda: len(told) == 3000, 30)
    assert running.stop() == 0


def test_a_job_that_is_sent_back_before_receivers_heard_of_it_is_not_shown_as_finished(
    worker: Any, heard: Any, release: Any
) -> None:
    told = heard(compat.task_finished, lambda result: release.wait(30))
    first = handlers.give.enqueue(1)
    running = worker()
    wait_for(lambda: told)
    second = handlers.give_up.enqueue("no")
    wait_for_state(int(second.id), State.FAILED)
    transitions.delete("default", [int(second.id)])
    release.set()
    wait_for(lambda: not running.loop._announcer.waiting)
    assert [result.id for _, result, _ in told] == [first.id]
    assert running.stop() == 0


def test_a_receiver_of_task_started_is_stopped_by_the_timeout_and_its_handler_does_not_begin(
    drain: Drain, heard: Any, log: Any
) -> None:
    def spin(result: Any) -> None:
        while True:
            time.sleep(0.001)

    heard(compat.task_started, spin)
    result = handlers.note_in_time.enqueue()
    drain()
    result.refresh()
    assert (result.status, result.errors[0].exception_class_path) == (
        "FAILED",
        "pgqueue_django.exceptions.JobTimeout",
    )
    assert notes() == []
    assert not log("a receiver of task_started raised")


def test_a_cancelled_job_has_no_handler_and_no_receivers(drain: Drain, heard: Any) -> None:
    told = heard(compat.task_started) + heard(compat.task_finished)
    result = handlers.give.enqueue(1)
    transitions.cancel("default", [int(result.id)])
    drain()
    result.refresh()
    assert (told, result.status, result.errors[0].exception_class_path) == (
        [],
        "FAILED",
        "pgqueue_django.exceptions.JobCancelled",
    )


def test_a_worker_without_such_tasks_has_no_thread_for_them(drain: Drain, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(announcer.Announcer, "start", lambda self: started.append(self))
    handlers.handlers.give.enqueue(1)
    drain()
    assert started == []


# -- what must not spoil anything else -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "assignment",
    [
        "args = ('[' || repeat('1', 5000) || ']')::json",  # more digits than Python reads
        "args = (repeat('[', 3000) || repeat(']', 3000))::json",
        "progress = repeat('1', 5000)::jsonb",
        "prune_after = 'infinity'",
    ],
)
def test_a_row_that_cannot_be_read_fails_alone(worker: Any, heard: Any, assignment: str) -> None:
    told = heard(compat.task_finished)
    bad, *good = [handlers.give.enqueue(number) for number in range(4)]
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE pgqueue_job SET max_attempts = 1, {assignment} WHERE id = %s", [bad.id])
    running = worker(concurrency=4)
    ended = Job.objects.filter(pk=int(bad.id), state__in=[State.FAILED, State.DEAD])
    wait_for(ended.exists)
    for result in good:
        wait_for_state(int(result.id), State.SUCCEEDED)
    wait_for(lambda: not running.loop._announcer.waiting)
    assert {one.id for _, one, _ in told} >= {one.id for one in good}
    assert running.stop() == 0


def test_a_statement_of_a_receiver_that_fails_is_not_in_the_transaction_of_the_attempt(
    drain: Drain, heard: Any
) -> None:
    def divide(result: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")

    heard(compat.task_started, divide)
    result = handlers.write_atomically.enqueue("kept")
    drain()
    result.refresh()
    assert (result.status, notes()) == ("SUCCESSFUL", [(0, "kept")])


def leave_open(result: Any) -> None:
    transaction.atomic().__enter__()
    handlers.handlers.note("in a transaction that is left open", int(result.id))


@pytest.mark.parametrize("task", [handlers.give, handlers.give_async])
def test_a_transaction_that_a_receiver_leaves_open_fails_no_attempt(
    drain: Drain, heard: Any, log: Any, task: Any
) -> None:
    heard(compat.task_started, leave_open)
    result = task.enqueue(1)
    drain()
    result.refresh()
    assert (result.status, result.attempts, notes()) == ("SUCCESSFUL", 1, [])
    assert log("a receiver of task_started left an atomic block")


def test_a_transaction_that_a_receiver_leaves_open_takes_nothing_of_later_ones(
    worker: Any, heard: Any, log: Any
) -> None:
    def act(result: Any) -> None:
        if result.args == ["leave"]:
            leave_open(result)
        else:
            handlers.handlers.note("kept")

    heard(compat.task_finished, act)
    running = worker()
    for word in ("leave", "write"):
        wait_for_state(int(handlers.give.enqueue(word).id), State.SUCCEEDED)
        wait_for(lambda: not running.loop._announcer.waiting)
    assert notes() == [(0, "kept")]
    assert log("a receiver of task_finished left an atomic block")


def test_what_a_receiver_sets_in_its_session_does_not_reach_the_next_one(worker: Any, heard: Any) -> None:
    def act(result: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('lock_timeout')")
            handlers.handlers.note(cursor.fetchone()[0])
            cursor.execute("SET lock_timeout = '123s'")

    heard(compat.task_finished, act)
    handlers.give.enqueue(1)
    handlers.give.enqueue(2)
    running = worker()
    wait_for(lambda: not running.loop._announcer.waiting and len(notes()) == 2)
    assert [event for _, event in notes()] == ["0"] * 2


class Unspeakable(BaseException):
    def __str__(self) -> str:
        raise ValueError("not even a word of it")


def test_an_error_of_a_receiver_that_cannot_be_read_does_not_end_the_telling(drain: Drain, heard: Any) -> None:
    told = heard(compat.task_finished, raises(Unspeakable()))
    for number in range(2):
        handlers.give.enqueue(number)
        drain()
    assert len(told) == 2


def test_an_error_that_refuses_to_be_assigned_to_is_told_of_as_any_other(
    drain: Drain, heard: Any, caplog: pytest.LogCaptureFixture
) -> None:
    told = heard(compat.task_finished)
    handlers.fail_frozen.enqueue()
    drain()
    assert [type(error).__name__ for _, _, error in told] == ["FrozenError"]
    assert "were not told" not in caplog.text


@pytest.mark.parametrize(
    "options", [{"max_time": 0.3}, {"max_jobs": 1}, {"drain": True}], ids=lambda one: next(iter(one))
)
def test_a_receiver_that_hangs_does_not_keep_a_worker_that_is_done(
    worker: Any, heard: Any, release: Any, options: Any
) -> None:
    told = heard(compat.task_finished, lambda result: release.wait(30))
    handlers.give.enqueue(1)
    running = worker(shutdown_timeout=0.3, **options)
    wait_for(lambda: told)
    assert running.join() == 0


def test_nothing_of_an_attempt_is_kept_once_its_receivers_have_heard(
    worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the collector of cycles: it would find them late, with all that their variables hold."""
    made: list[weakref.ref[executor.Attempt]] = []
    begin = executor.Attempt.begin
    monkeypatch.setattr(executor.Attempt, "begin", lambda attempt: made.append(weakref.ref(attempt)) or begin(attempt))
    for name in ("django.tasks", "django_tasks"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)  # records hold tracebacks
    running = worker()
    tasks = [handlers.give, handlers.give_async, handlers.give_up, handlers.fail, handlers.fail_async]
    gc.disable()
    try:
        for task in tasks:
            task.using(max_attempts=1).enqueue("boo")
        handlers.fail.enqueue("boo")  # twice
        wait_for(lambda: not Job.objects.filter(finished_at=None).exists())
        wait_for(lambda: not [one() for one in made if one() is not None])
    finally:
        gc.enable()
    assert len(made) == len(tasks) + 2
    assert running.stop() == 0


def test_the_row_of_an_attempt_is_let_go_before_its_handler_begins(
    drain: Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    begin = executor.Attempt.begin
    monkeypatch.setattr(
        executor.Attempt, "begin", lambda attempt: made.append((attempt, attempt.row)) or begin(attempt)
    )
    for task in (handlers.give, handlers.give_async):
        task.enqueue(1)
    drain()
    assert [(row is None, attempt.row) for attempt, row in made] == [(False, None)] * 2


def test_variables_of_the_errors_before_an_error_are_let_go_too(drain: Drain, heard: Any) -> None:
    ended = heard(compat.task_finished)
    handlers.fail_of_another.enqueue()
    drain()
    ((_, _, error),) = ended
    for one in (error, error.__cause__, error.__cause__.__context__, error.exceptions[0]):
        frame = one.__traceback__
        while frame.tb_next is not None:
            frame = frame.tb_next
        assert frame.tb_frame.f_locals == {}


# -- processes -------------------------------------------------------------------------------------------------


def test_a_worker_process_runs_them_and_a_killed_one_loses_none(process: Any, gate: Any) -> None:
    door = gate()
    waiting = handlers.wait.enqueue(str(door))
    first = process("--lease", "1", "--concurrency", "2").wait_until_ready()
    wait_for_state(int(waiting.id), State.RUNNING)
    first.kill()
    more = [handlers.give.enqueue(number) for number in range(20)]
    process("--lease", "1", "--concurrency", "2", "--poll-interval", "0.1").wait_until_ready()
    door.open()
    deadline = time.monotonic() + 30
    for result in [waiting, *more]:
        wait_for_state(int(result.id), State.SUCCEEDED, timeout=max(1.0, deadline - time.monotonic()))
    waiting.refresh()
    assert (waiting.return_value, waiting.attempts, len(waiting.errors)) == ("done", 2, 1)
    assert waiting.errors[0].exception_class_path == "pgqueue_django.exceptions.LeaseLost"
    assert len(set(waiting.worker_ids)) == 2

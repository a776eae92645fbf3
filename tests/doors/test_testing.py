"""The test kit, in tests of every manner: in one transaction, with commits, and a real worker in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connection, connections, transaction
from django.db.models.functions import Now
from django.test import TestCase, TransactionTestCase
from django.utils import timezone, translation
from verbs import rows

from pgqueue_django import InvalidPayload, PermanentError, TaskNotFound, queues, schedules, task_by_name
from pgqueue_django.models import Chore, Job, Schedule
from pgqueue_django.models import Worker as WorkerRow
from pgqueue_django.schedules import periodic
from pgqueue_django.states import State
from pgqueue_django.testing import (
    MOST,
    Ran,
    TooManyJobs,
    assert_enqueued,
    assert_not_enqueued,
    capture_jobs,
    eager,
    run_jobs,
    travel,
    worker,
)

from . import kit_tasks as tasks

DB = rows.DB
IN_ONE_TRANSACTION = pytest.mark.django_db
COMMITS = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Only the schedules of the test."""
    own: dict[str, Any] = {}
    monkeypatch.setattr(schedules, "_declared", own)
    return own


def one(ran: list[Ran]) -> Ran:
    assert len(ran) == 1, ran
    return ran[0]


def states(ran: list[Ran]) -> list[str]:
    return [str(attempt.state) for attempt in ran]


def row(job: Any) -> Job:
    return Job.objects.get(pk=job.id)


# -- run_jobs: what comes of an attempt ------------------------------------------------------------------------


class RunJobs(TestCase):
    """In the transaction of a plain TestCase."""

    def test_a_job_runs_for_real_and_its_row_says_so(self) -> None:
        job = tasks.charge.enqueue(7, amount_cents=1999)
        ran = one(run_jobs())
        assert (ran.id, ran.task, ran.args, ran.kwargs) == (
            job.id,
            "doors.kit_tasks.charge",
            [7],
            {"amount_cents": 1999},
        )
        assert (ran.state, ran.attempt, ran.result) == (State.SUCCEEDED, 1, {"invoice": 7, "cents": 1999})
        assert (ran.queue_name, ran.error) == ("billing", None)
        found = row(job)
        assert (found.state, found.attempts, found.result) == ("succeeded", 1, {"invoice": 7, "cents": 1999})
        assert found.finished_at is not None
        assert run_jobs() == []

    def test_it_is_this_connection_that_runs_it(self) -> None:
        before = connection.connection
        Group.objects.create(name="not committed")
        tasks.close_connections.enqueue("not committed")
        assert one(run_jobs()).result == 1
        assert connection.connection is before
        assert not before.closed
        with pytest.raises(DatabaseError, match='"pgqueue_attempt" does not exist'), transaction.atomic():
            connection.cursor().execute("RELEASE SAVEPOINT pgqueue_attempt")

    def test_a_handler_may_run_jobs_itself(self) -> None:
        before = connection.connection
        tasks.run_others.enqueue()
        assert one(run_jobs()).result == ["succeeded"]
        assert connection.connection is before
        assert Group.objects.get().name == "by another"

    def test_an_async_task_has_the_same_connection(self) -> None:
        Group.objects.create(name="not committed")
        tasks.note_async.enqueue("async")
        assert one(run_jobs()).result == 2
        assert Group.objects.filter(name="async").exists()

    def test_an_atomic_task_and_its_outcome_are_one(self) -> None:
        good, bad = tasks.note_atomically.enqueue("good"), tasks.note_atomically.enqueue("bad", error="no")
        assert states(run_jobs()) == ["succeeded", "dead"]
        assert row(good).result == "good"
        assert row(bad).history[0]["message"] == "no"
        assert set(Group.objects.values_list("name", flat=True)) == {"good"}

    def test_what_a_plain_handler_wrote_before_it_failed_stays_as_after_a_worker(self) -> None:
        tasks.note_and_fail.enqueue("half")
        assert states(run_jobs()) == ["dead"]
        assert Group.objects.filter(name="half").exists()

    def test_a_statement_that_fails_is_a_failed_attempt_and_the_test_goes_on(self) -> None:
        job = tasks.note_twice.enqueue("x")
        ran = one(run_jobs())
        assert (ran.state, type(ran.error).__name__) == (State.DEAD, "IntegrityError")
        assert row(job).history[0]["kind"] == "error"
        assert Group.objects.filter(name="x").exists(), "in a worker it would be committed"
        Group.objects.create(name="the test goes on")

    def test_a_handler_may_go_on_after_a_failed_statement_as_in_a_worker(self) -> None:
        for number, task in enumerate(
            (tasks.note_twice_and_go_on, tasks.send_nonsense_and_go_on, tasks.fail_in_a_block_without_a_savepoint)
        ):
            task.enqueue(str(number))
            assert one(run_jobs()).result == "went on"
        assert set(Group.objects.values_list("name", flat=True)) == {"0", "1"}

    def test_blocks_of_a_handler_commit_and_roll_back(self) -> None:
        tasks.roll_back_and_commit.enqueue("x")
        assert one(run_jobs()).result == 1
        assert Group.objects.get().name == "x"
        tasks.commit_by_hand.enqueue("y")
        assert states(run_jobs()) == ["succeeded"]
        assert set(Group.objects.values_list("name", flat=True)) == {"x", "y 0", "y 1"}

    def test_what_a_hook_does_after_the_commit_does_not_undo_an_atomic_job(self) -> None:
        job = tasks.leave_a_block_open_in_a_hook.enqueue("x")
        assert states(run_jobs()) == ["succeeded"]
        assert row(job).state == "succeeded"
        assert Group.objects.filter(name="x").exists()

    def test_what_a_worker_refuses_is_refused(self) -> None:
        Group.objects.create(name="x")
        job = tasks.lock_without_a_block.enqueue("x")
        assert states(run_jobs()) == ["dead"]
        assert "select_for_update cannot be used outside of a transaction" in row(job).history[0]["message"]

    def test_a_transaction_that_is_left_open_is_a_failed_attempt(self) -> None:
        wrapper = connections["default"]
        before = {name: list(value) if isinstance(value, list) else value for name, value in vars(wrapper).items()}
        for task, what in (
            (tasks.leave_a_block_open, "an atomic block"),
            (tasks.leave_a_block_open_in_an_atomic_one, "an atomic block"),
            (tasks.switch_autocommit_off, "a transaction"),
            (tasks.break_it_behind_django, "a failed transaction"),
        ):
            job = task.enqueue("x")
            ran = one(run_jobs())
            assert ran.state == row(job).state == State.DEAD
            assert row(job).history[0]["kind"] == "transaction"
            assert f"left {what} on database 'default' open" in row(job).history[0]["message"]
            assert f"left {what} on database 'default' open" in str(ran.error)
        assert Group.objects.get().name == "x before"
        after = vars(wrapper)
        assert set(after) == set(before)
        # The wake-ups of four enqueues wait for the test's commit.
        assert {name for name in before if after[name] != before[name]} == {"savepoint_state", "run_on_commit"}

    def test_a_handler_may_open_a_durable_block_as_in_a_worker(self) -> None:
        tasks.note_durably.enqueue("x")
        assert states(run_jobs()) == ["succeeded"]

    def test_exits_and_bad_results_are_failed_attempts(self) -> None:
        for task, kind in ((tasks.exits, "error"), (tasks.gives_up, "permanent"), (tasks.returns_a_set, "result")):
            job = task.enqueue()
            ran = one(run_jobs())
            assert ran.error is not None
            assert row(job).history[0]["kind"] == kind

    def test_arguments_that_fit_no_more_are_a_failed_job(self) -> None:
        job = task_by_name(tasks.charge.path).enqueue("a", "b", "c")
        ran = one(run_jobs())
        assert (ran.state, type(ran.error)) == (State.FAILED, InvalidPayload)
        assert row(job).history[0]["kind"] == "payload"

    def test_a_task_that_is_not_known_goes_back(self) -> None:
        job = task_by_name("doors.kit_tasks.gone").enqueue(1)
        ran = one(run_jobs())
        assert (ran.state, type(ran.error)) == (State.SCHEDULED, TaskNotFound)
        assert (row(job).state, row(job).attempts) == ("scheduled", 0)
        task_by_name("doors.kit_tasks.gone").enqueue(1)
        with pytest.raises(TaskNotFound):
            run_jobs(raise_errors=True)

    def test_ctrl_c_stops_the_test_and_not_the_job(self) -> None:
        tasks.is_stopped.enqueue()
        with pytest.raises(KeyboardInterrupt):
            run_jobs()
        assert Job.objects.get().state == "running"

    def test_what_ran_beyond_its_timeout_has_timed_out(self) -> None:
        job = tasks.take_too_long.enqueue()
        assert states(run_jobs()) == ["dead"]
        assert row(job).history[0]["kind"] == "timeout"

    def test_progress_is_in_the_row(self) -> None:
        job = tasks.report.enqueue()
        run_jobs()
        assert row(job).progress == {"fraction": 0.5, "message": "half"}

    def test_a_job_that_is_cancelled_while_it_runs_stays_so(self) -> None:
        job = tasks.cancel_itself.enqueue()
        assert states(run_jobs()) == ["cancelled"]
        assert row(job).state == "cancelled"

    def test_a_handler_has_none_of_the_tests_context(self) -> None:
        tasks.language.enqueue()
        with translation.override("de"):
            assert one(run_jobs()).result == "en"
            assert translation.get_language() == "de"


# -- run_jobs: what runs ---------------------------------------------------------------------------------------


class WhatRuns(TestCase):
    def test_what_handlers_enqueue_runs_too(self) -> None:
        tasks.chain.enqueue(3)
        assert [ran.args for ran in run_jobs()] == [[3], [2], [1], [0]]
        tasks.fan_out.enqueue(["a", "b"])
        assert states(run_jobs()) == ["succeeded"] * 3
        assert Group.objects.count() == 2

    def test_the_order_is_that_of_a_worker(self) -> None:
        tasks.charge.using(priority=0).enqueue(1)
        tasks.charge.using(priority=5).enqueue(2)
        tasks.charge.using(priority=0).enqueue(3)
        assert [ran.args for ran in run_jobs()] == [[2], [1], [3]]

    def test_queues_are_taken_in_the_order_in_which_they_are_named(self) -> None:
        for name in ("a", "b", "c"):
            tasks.note.using(queue_name=name).enqueue(name)
        assert [ran.queue_name for ran in run_jobs(queues=["c", "a"])] == ["c", "a"]
        assert [ran.queue_name for ran in run_jobs()] == ["b"]

    def test_nothing_of_a_paused_queue_runs(self) -> None:
        tasks.charge.enqueue(1)
        queues.pause(DB, "billing")
        assert run_jobs() == []
        assert run_jobs(queues=["billing"]) == []
        queues.resume(DB, "billing")
        assert states(run_jobs()) == ["succeeded"]

    def test_a_limit_is_a_number_of_attempts(self) -> None:
        for number in range(3):
            tasks.charge.enqueue(number)
        assert [ran.args for ran in run_jobs(limit=2)] == [[0], [1]]
        assert run_jobs(limit=0) == []
        assert Job.objects.get(state="queued").attempts == 0
        assert [ran.args for ran in run_jobs(limit=2)] == [[2]]

    def test_a_job_that_enqueues_itself_for_ever_ends_the_test(self) -> None:
        tasks.for_ever.enqueue()
        with pytest.raises(TooManyJobs, match=rf"made {MOST} attempts \({MOST} of doors.kit_tasks.for_ever\), and"):
            run_jobs()
        assert Job.objects.get(state="queued").attempts == 0, "the one that was too many was handed back"
        assert len(run_jobs(limit=5)) == 5

    def test_retries_wait_for_their_time_or_are_made_at_once(self) -> None:
        job = tasks.fails_until.enqueue(3)
        assert states(run_jobs()) == ["retrying"]
        assert run_jobs() == []
        assert states(run_jobs(retries=True)) == ["retrying", "succeeded"]
        assert (row(job).attempts, row(job).result) == (3, 3)
        assert [entry["message"] for entry in row(job).history] == ["attempt 1", "attempt 2"]

    def test_retries_of_queues_that_are_not_named_wait(self) -> None:
        tasks.fails_until.using(queue_name="a").enqueue(2)
        tasks.fails_until.using(queue_name="b").enqueue(2)
        run_jobs()
        assert [ran.queue_name for ran in run_jobs(queues=["a"], retries=True)] == ["a"]
        assert Job.objects.get(queue_name="b").state == "retrying"

    def test_a_job_is_dead_after_its_attempts(self) -> None:
        tasks.fails_until.enqueue(9)
        assert states(run_jobs(retries=True)) == ["retrying", "retrying", "dead"]

    def test_errors_are_raised_where_they_are_asked_for(self) -> None:
        job = tasks.fails_until.enqueue(9)
        with pytest.raises(ValueError, match="attempt 1") as caught:
            run_jobs(raise_errors=True)
        assert row(job).state == "retrying", "the attempt is recorded first"
        assert any("fails_until" in str(entry.path) or entry.name == "fails_until" for entry in caught.traceback)
        assert f"fails_until(9) #{job.id}, attempt 1: retrying" in caught.value.__notes__[0]
        tasks.gives_up.enqueue()
        with pytest.raises(PermanentError):
            run_jobs(raise_errors=True)

    def test_a_retry_that_was_asked_for_is_no_error_while_attempts_are_left(self) -> None:
        tasks.asks_for_more_time.enqueue()
        assert states(run_jobs(raise_errors=True, retries=True)) == ["retrying", "succeeded"]

    def test_a_lease_that_has_ended_is_given_up(self) -> None:
        job = rows.make_job(State.RUNNING, task=tasks.chain.path, args=[0], backoff={"base": 1, "factor": 1, "cap": 1})
        assert run_jobs() == []
        with travel(minutes=5):
            assert run_jobs() == []
            assert row(job).state == "retrying"
            assert row(job).history[0]["kind"] == "lease_expired"
            assert states(run_jobs(retries=True)) == ["succeeded"]

    def test_an_attempt_reads_well(self) -> None:
        job = tasks.charge.enqueue(7, amount_cents=1)
        assert str(one(run_jobs())) == f"doors.kit_tasks.charge(7, amount_cents=1) #{job.id}, attempt 1: succeeded"
        job = tasks.gives_up.enqueue()
        assert str(one(run_jobs())).endswith("attempt 1: failed (PermanentError: no use)")


class Hooks(TestCase):
    """What waits for a commit, in a transaction that has none."""

    def test_the_hooks_of_a_handler_run_when_its_block_ends_or_at_once(self) -> None:
        tasks.hook.enqueue("x")
        assert [ran.task.rpartition(".")[2] for ran in run_jobs()] == ["hook", "note"]
        assert Group.objects.filter(name="x by a hook").exists()
        tasks.hook_at_once.enqueue("y")
        assert one(run_jobs()).result is True

    def test_a_hook_that_fails_fails_its_attempt(self) -> None:
        tasks.hook.using(max_attempts=1).enqueue("x", error="too bad")
        ran = one(run_jobs())
        assert (ran.state, str(ran.error)) == (State.DEAD, "too bad")

    def test_hooks_of_the_test_are_left_alone(self) -> None:
        called: list[str] = []
        with self.captureOnCommitCallbacks() as callbacks:
            transaction.on_commit(lambda: called.append("test"))
            tasks.hook.enqueue("x")
            tasks.fails_until.enqueue(2)
            before = list(connection.run_on_commit)
            assert len(run_jobs(retries=True)) == 4
            assert connection.run_on_commit == before, "and those of the verbs that stand for a worker are gone"
        assert called == []
        callbacks[0]()
        assert called == ["test"]

    def test_what_a_callback_enqueues_runs(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            transaction.on_commit(lambda: tasks.note.enqueue("after the commit") and None)
            assert run_jobs() == []
        assert states(run_jobs()) == ["succeeded"]

    def test_run_inside_of_captured_callbacks_each_hook_runs_once(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            tasks.hook.enqueue("x")
            run_jobs()
        assert Job.objects.count() == 2
        assert Group.objects.count() == 2


class Coroutines(TestCase):
    async def test_from_a_coroutine(self) -> None:
        from asgiref.sync import sync_to_async

        await tasks.note_async.aenqueue("x")
        ran = await sync_to_async(run_jobs)()
        assert states(ran) == ["succeeded"]
        assert await Group.objects.acount() == 1

    async def test_eager_from_a_coroutine(self) -> None:
        with eager() as ran:
            await tasks.note_async.aenqueue("x")
            assert states(ran) == ["succeeded"]


class Committing(TransactionTestCase):
    """Without a transaction around it, as in a worker."""

    def test_jobs_run_and_commit(self) -> None:
        tasks.note.enqueue("plain")
        tasks.note_async.enqueue("async")
        tasks.note_atomically.enqueue("atomic")
        tasks.note_atomically.enqueue("lost", error="no")
        tasks.note_twice_and_go_on.enqueue("twice")
        assert states(run_jobs()) == ["succeeded", "succeeded", "succeeded", "dead", "succeeded"]
        with rows.connect() as session:
            names = {name for (name,) in session.execute("SELECT name FROM auth_group")}
        assert names == {"plain", "async", "atomic", "twice"}

    def test_a_block_that_is_left_open_is_a_failed_attempt(self) -> None:
        job = tasks.leave_a_block_open.enqueue("x")
        assert states(run_jobs()) == ["dead"]
        assert row(job).history[0]["kind"] == "transaction"
        assert not connection.in_atomic_block
        assert not Group.objects.exists()


# -- what was enqueued -----------------------------------------------------------------------------------------


class Capturing(TestCase):
    def test_jobs_are_there_as_they_are_made(self) -> None:
        tasks.charge.enqueue(0)
        with capture_jobs() as jobs:
            assert list(jobs) == []
            tasks.charge.using(run_after=timedelta(hours=1), idempotency_key="k").enqueue(7, amount_cents=5)
            assert len(jobs) == 1
            with capture_jobs() as inner:
                tasks.fan_out.enqueue(["a", "b"])
            run_jobs()
            tasks.charge.using(idempotency_key="k").enqueue(7)  # is there already
        tasks.charge.enqueue(9)
        first = jobs[0]
        assert (first.task, first.args, first.kwargs) == (tasks.charge.path, [7], {"amount_cents": 5})
        assert (first.queue_name, first.state, first.priority) == ("billing", "scheduled", 10)
        assert first.run_after - first.enqueued_at == timedelta(hours=1)
        assert [job.task.rpartition(".")[2] for job in jobs] == ["charge", "fan_out", "note", "note"]
        assert [job.args for job in jobs.of(tasks.note)] == [["a"], ["b"]]
        assert [job.args for job in inner] == [[["a", "b"]]]
        assert "doors.kit_tasks.charge(7, amount_cents=5) #" in repr(jobs)

    def test_bulks_of_every_size(self) -> None:
        from pgqueue_django import enqueue_many

        with capture_jobs() as jobs:
            enqueue_many([tasks.charge.call(number) for number in range(120)])
        assert [job.args for job in jobs] == [[number] for number in range(120)]

    def test_what_is_rolled_back_was_not_made(self) -> None:
        with capture_jobs() as jobs:
            savepoint = connection.savepoint()
            tasks.charge.enqueue(1)
            connection.savepoint_rollback(savepoint)
        assert not jobs


@COMMITS
def test_the_first_job_of_a_sequence_is_captured(transactional_db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER SEQUENCE pgqueue_job_id_seq RESTART WITH 1")
    with capture_jobs() as jobs:
        tasks.charge.enqueue(1)
    assert len(jobs) == 1


class Asserting(TestCase):
    def test_a_call_is_the_same_however_its_arguments_were_passed(self) -> None:
        job = tasks.charge.enqueue(7, amount_cents=1999)
        assert [found.pk for found in assert_enqueued(tasks.charge)] == [job.id]
        assert_enqueued(tasks.charge.path, args=[7], kwargs={"amount_cents": 1999})
        assert_enqueued(tasks.charge, args=[7, 1999])
        assert_enqueued(tasks.charge, args=[7], kwargs={"amount_cents": 1999})
        assert_enqueued(tasks.charge, args=[], kwargs={"invoice_id": 7, "amount_cents": 1999})
        assert_enqueued(tasks.charge, kwargs={"invoice_id": 7})
        for wrong in (
            {"args": [7]},
            {"args": [7, 1]},
            {"args": []},
            {"kwargs": {"invoice_id": 8}},
            {"kwargs": {"invoice_id": 7, "amount_cents": 1}},
            {"queue_name": "mail"},
            {"count": 2},
            {"count": 0},
            {"run_after": timedelta(hours=1)},
            {"state": "scheduled"},
        ):
            with pytest.raises(AssertionError):
                assert_enqueued(tasks.charge, **wrong)
        with pytest.raises(TypeError):
            assert_enqueued(tasks.charge, args=[1, 2, 3])
        with pytest.raises(AssertionError):
            assert_enqueued(tasks.charge.path, args=[7, 1999])

    def test_an_argument_that_was_left_out_is_its_default(self) -> None:
        tasks.charge.enqueue(7)
        assert_enqueued(tasks.charge, args=[7, 0])
        assert_enqueued(tasks.charge, kwargs={"amount_cents": 0})

    def test_arguments_are_compared_as_they_are_stored(self) -> None:
        tasks.refund.enqueue(tasks.Amount(5), by="me", why="so")
        assert_enqueued(tasks.refund, args=[tasks.Amount(5)], kwargs={"by": "me", "why": "so"})
        assert_enqueued(tasks.refund, kwargs={"amount": {"cents": 5}})
        assert_enqueued(tasks.refund, kwargs={"by": "me"})
        assert_not_enqueued(tasks.refund, args=[tasks.Amount(6)], kwargs={"by": "me", "why": "so"})
        assert_not_enqueued(tasks.refund, args=[tasks.Amount(5)], kwargs={"by": "me"})

    def test_when_it_may_run(self) -> None:
        tomorrow = timezone.now() + timedelta(days=1)
        tasks.charge.using(run_after=tomorrow).enqueue(1)
        tasks.charge.using(run_after=timedelta(hours=3)).enqueue(2)
        assert_enqueued(tasks.charge, args=[1], run_after=tomorrow, count=1)
        assert_enqueued(tasks.charge, args=[2], run_after=timedelta(hours=3), state="scheduled", count=1)
        assert_not_enqueued(tasks.charge, run_after=tomorrow + timedelta(seconds=2))
        with travel(days=2):
            tasks.charge.using(run_after=timedelta(hours=5)).enqueue(3)
            assert_enqueued(tasks.charge, args=[3], run_after=timedelta(hours=5), count=1)

    def test_whether_they_have_run_is_all_one(self) -> None:
        tasks.note.enqueue("x")
        run_jobs()
        assert_enqueued(tasks.note, args=["x"], state="succeeded", count=1)

    def test_the_message_shows_what_there_is_instead(self) -> None:
        assert_not_enqueued()
        with pytest.raises(AssertionError, match="There are no jobs at all"):
            assert_enqueued(tasks.charge)
        job = tasks.charge.using(run_after=datetime(2050, 1, 2, 3, 4, 5, tzinfo=UTC)).enqueue(7, amount_cents=5)
        with pytest.raises(AssertionError) as caught:
            assert_enqueued(tasks.charge, args=[8], queue_name="billing")
        assert str(caught.value) == (
            "one or more of doors.kit_tasks.charge(8), queue_name='billing' should have been enqueued, and none was. "
            f"There are:\n  doors.kit_tasks.charge(7, amount_cents=5) #{job.id}, queue billing, scheduled for "
            "2050-01-02 03:04:05+0000"
        )
        with pytest.raises(AssertionError, match=r"0 of any task should have been enqueued, and 1 was\."):
            assert_not_enqueued()
        with pytest.raises(AssertionError, match=r"charge\(\.\.\., invoice_id=8\)"):
            assert_enqueued(tasks.charge, kwargs={"invoice_id": 8})


# -- the clock -------------------------------------------------------------------------------------------------


class Travelling(TestCase):
    def test_what_is_scheduled_is_due_when_its_time_has_come(self) -> None:
        job = tasks.charge.using(run_after=timedelta(hours=3)).enqueue(1)
        when = row(job).run_after
        with travel(hours=2, minutes=59):
            assert run_jobs() == []
        with travel(timedelta(hours=3)):
            assert states(run_jobs()) == ["succeeded"]
        assert row(job).run_after == when, "the job keeps its moment: it is the clock that moves"
        assert row(job).finished_at > when

    def test_a_retry_is_due_after_its_backoff(self) -> None:
        tasks.fails_until.enqueue(2)
        run_jobs()
        with travel(minutes=4):
            assert run_jobs() == []
            with travel(minutes=6):
                assert states(run_jobs()) == ["succeeded"]

    def test_to_a_moment(self) -> None:
        moment = timezone.now() + timedelta(days=10)
        tasks.charge.using(run_after=moment).enqueue(1)
        with travel(to=moment - timedelta(minutes=1)):
            assert run_jobs() == []
        with travel(to=moment):
            assert states(run_jobs()) == ["succeeded"]
        with pytest.raises(ValueError, match="forward"):
            with travel(to=timezone.now() - timedelta(days=1)):
                pass
        with pytest.raises(ValueError, match="forward"):
            with travel(hours=-1):
                pass

    def test_what_is_enqueued_meanwhile_is_enqueued_then(self) -> None:
        tasks.every_hour.enqueue("x")
        assert states(run_jobs()) == ["succeeded"]
        with travel() as clock:
            for _ in range(3):
                clock.forward(hours=1)
                assert states(run_jobs()) == ["succeeded"]
        assert Group.objects.count() == 4
        assert run_jobs() == []

    def test_the_databases_clock_is_back_after_it(self) -> None:
        with suppress(ZeroDivisionError), travel(days=100):
            assert timezone.now() + timedelta(days=99) < _now() < timezone.now() + timedelta(days=101)
            raise ZeroDivisionError
        assert abs(_now() - timezone.now()) < timedelta(minutes=1)

    def test_a_schedule_of_the_code_fires_at_its_tick(self) -> None:
        periodic("0 3 * * *", tz="UTC")(tasks.tick)
        assert run_jobs() == []
        with travel(days=1):
            assert [ran.task for ran in run_jobs()] == [tasks.tick.path]
            assert run_jobs() == []
        with travel(days=1):
            assert run_jobs() == [], "that tick has been"
        assert Job.objects.get().idempotency_key.endswith("T03:00:00Z")

    def test_day_by_day_each_tick_is_a_job(self) -> None:
        periodic("0 3 * * *", tz="UTC")(tasks.tick)
        with travel() as clock:
            for _ in range(5):
                clock.forward(days=1)
                assert len(run_jobs()) == 1

    def test_in_one_go_they_are_missed_ticks(self) -> None:
        periodic("0 3 * * *", tz="UTC")(tasks.tick)
        with travel(days=30):
            assert len(run_jobs(schedules=False)) == 0
            assert len(run_jobs()) == 2

    def test_a_schedule_of_a_person_fires_at_its_tick(self) -> None:
        schedule = Schedule(name="mine", task=tasks.charge.path, line="0 * * * *", zone="UTC", args=[7], kwargs={})
        schedules.plan(DB, schedule)
        schedule.save()
        with travel(hours=1):
            assert [ran.args for ran in run_jobs()] == [[7]]


def _now() -> datetime:
    Group.objects.get_or_create(name="clock")
    moment = Group.objects.annotate(now=Now()).values_list("now", flat=True).first()
    assert isinstance(moment, datetime)
    return moment


# -- at once ---------------------------------------------------------------------------------------------------


class Eager(TestCase):
    def test_a_job_has_run_when_enqueue_returns(self) -> None:
        with eager() as ran:
            job = tasks.note.enqueue("x")
            assert row(job).state == "succeeded"
            assert Group.objects.filter(name="x").exists()
            tasks.fan_out.enqueue(["a", "b"])
        assert [one.task.rpartition(".")[2] for one in ran] == ["note", "fan_out", "note", "note"]
        assert ran[1].result == 0, "what a handler enqueues runs after it"
        job = tasks.note.enqueue("y")
        assert row(job).state == "queued"

    def test_it_runs_in_the_callers_transaction(self) -> None:
        with suppress(ZeroDivisionError), transaction.atomic(), eager() as ran:
            tasks.note.enqueue("x")
            raise ZeroDivisionError
        assert states(ran) == ["succeeded"]
        assert not Group.objects.exists()
        assert not Job.objects.exists()

    def test_what_is_due_later_waits(self) -> None:
        with eager() as ran:
            tasks.note.using(run_after=timedelta(hours=1)).enqueue("x")
            assert ran == []
            with travel(hours=1):
                tasks.note.enqueue("y")
            assert [one.args for one in ran] == [["x"], ["y"]]

    def test_errors_stay_in_the_row_or_are_raised_by_enqueue(self) -> None:
        with eager() as ran:
            tasks.gives_up.enqueue()
        assert states(ran) == ["failed"]
        with eager(raise_errors=True), pytest.raises(PermanentError):
            tasks.gives_up.enqueue()
        with eager(retries=True) as ran:
            tasks.fails_until.enqueue(3)
        assert states(ran) == ["retrying", "retrying", "succeeded"]

    def test_a_job_that_enqueues_itself_for_ever_ends_the_test(self) -> None:
        with eager(), pytest.raises(TooManyJobs):
            tasks.for_ever.enqueue()


# -- a worker in a thread --------------------------------------------------------------------------------------


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pgqueue ")]


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    yield
    assert our_threads() == []
    with connection.cursor() as cursor:
        # The server needs a moment to notice that they are gone.
        rows.wait_for(lambda: _sessions(cursor) == 0, rows.GRACE)


def _sessions(cursor: Any) -> int:
    cursor.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND backend_type = 'client backend'"
    )
    return int(cursor.fetchone()[0])


@COMMITS
def test_a_worker_runs_what_the_test_commits_and_ends_with_its_block(nothing_is_left: None) -> None:
    with worker(concurrency=2) as running:
        jobs = [tasks.note.enqueue("plain"), tasks.note_async.enqueue("async"), tasks.note_atomically.enqueue("atomic")]
        for job in jobs:
            assert running.wait_for(job).state == "succeeded"
        tasks.chain.enqueue(3)
        running.wait_until_idle()
    assert Job.objects.filter(state="succeeded").count() == 7
    assert not WorkerRow.objects.exists()


@COMMITS
def test_a_worker_ends_although_the_test_fails(nothing_is_left: None) -> None:
    with suppress(ZeroDivisionError), worker() as running:
        tasks.note.enqueue("x")
        running.wait_until_idle()
        raise ZeroDivisionError


@COMMITS
def test_waiting_for_a_job_that_has_ended_otherwise_fails_at_once_and_says_why(nothing_is_left: None) -> None:
    with worker() as running:
        job = tasks.gives_up.enqueue()
        with pytest.raises(
            AssertionError, match=rf"gives_up #{job.id} is failed, not succeeded\s+attempt 1: .*: no use"
        ):
            running.wait_for(job, timeout=60)
        assert running.wait_for(job, "failed").pk == job.id
        later = tasks.charge.using(run_after=timedelta(hours=1)).enqueue(1)
        with pytest.raises(AssertionError, match=r"charge #\d+ is scheduled after 0\.1 s, not succeeded"):
            running.wait_for(later, timeout=0.1)


@COMMITS
def test_travelling_reaches_the_worker(nothing_is_left: None) -> None:
    with worker() as running:
        job = tasks.charge.using(run_after=timedelta(days=3)).enqueue(1)
        retrying = tasks.fails_until.enqueue(2)
        running.wait_for(retrying, "retrying")
        with travel(days=3):
            running.wait_for(job)
            running.wait_for(retrying)
        assert row(job).finished_at - row(job).enqueued_at > timedelta(days=2)
        # And its chores go on in the present.
        soon = tasks.charge.using(run_after=timedelta(milliseconds=200)).enqueue(1)
        running.wait_for(soon)
        assert max(Chore.objects.values_list("due_at", flat=True)) < timezone.now() + timedelta(hours=1)


@COMMITS
def test_two_workers_share_the_queues(nothing_is_left: None) -> None:
    with worker(queues=["a"]) as first:
        with worker(queues=["b"]) as second:
            job = tasks.charge.using(queue_name="b").enqueue(1)
            assert second.wait_for(job).worker_id == second.loop.worker_id
        job = tasks.charge.using(queue_name="a").enqueue(1)
        assert first.wait_for(job).worker_id == first.loop.worker_id


@COMMITS
def test_a_handler_that_does_not_let_it_end_fails_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pgqueue_django.testing import kit

    gate = tmp_path / "gate"
    ending = ExitStack()
    ending.enter_context(worker(shutdown_timeout=0.1))
    tasks.wait_deaf_at.using(queue_name="deaf").enqueue(str(gate))
    rows.wait_for((tmp_path / "gate.began").exists)
    with monkeypatch.context() as patch:
        patch.setattr(kit, "_END_SECONDS", 0.5)
        with pytest.raises(AssertionError, match=r"threads of the worker still run: .*pgqueue slot"):
            ending.close()
    # The tests after it have nothing to do with that thread.
    with worker(queues=["default"]) as running:
        running.wait_for(tasks.note.enqueue("x"))
    gate.touch()
    rows.wait_for(lambda: not our_threads(), 20)


@IN_ONE_TRANSACTION
def test_a_worker_beside_a_transaction_is_refused() -> None:
    with pytest.raises(AssertionError, match="TransactionTestCase"):
        with worker():
            raise NotImplementedError
    assert our_threads() == []


# -- Django's own tasks ----------------------------------------------------------------------------------------


@IN_ONE_TRANSACTION
def test_tasks_of_djangos_own_framework_run_too() -> None:
    compat = pytest.importorskip("pgqueue_django.compat", exc_type=ImproperlyConfigured, reason="no django.tasks here")
    from tests.machine import django_handlers as handlers

    told: list[Any] = []

    def hear(task_result: Any, **_: Any) -> None:
        told.append((task_result.id, str(task_result.status)))

    compat.task_finished.connect(hear)
    try:
        result = handlers.give.enqueue(7)
        in_a_coroutine = handlers.give_async.enqueue(8)
        assert_enqueued(handlers.give, args=[7], count=1)
        assert [ran.result for ran in run_jobs()] == [7, 8]
        assert [(id, status.rpartition(".")[2]) for id, status in told] == [
            (result.id, "SUCCESSFUL"),
            (in_a_coroutine.id, "SUCCESSFUL"),
        ]
        result.refresh()
        assert result.return_value == 7
        with eager() as ran:
            assert handlers.give.get_result(handlers.give.enqueue(9).id).return_value == 9
        assert len(ran) == 1
    finally:
        compat.task_finished.disconnect(hear)

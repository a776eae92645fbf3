"""Django's own tests of its tasks, against our backend.

What is put in its place below names the dummy backend, or calls the database in a coroutine, which Django forbids.
"""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import django
import pytest
from asgiref.sync import sync_to_async
from django.tasks import TaskResultStatus, default_task_backend, task_backends
from django.tasks.backends.dummy import DummyBackend
from django.tasks.backends.immediate import ImmediateBackend
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
from django.test import TestCase, TransactionTestCase, override_settings
from tasks import tasks, test_dummy_backend, test_immediate_backend, test_tasks

from pgqueue_django.backend import PgQueueBackend
from pgqueue_django.models import Job

from .settings import TASKS


@override_settings(TASKS=TASKS)
class TaskTests(test_tasks.TaskTestCase, TestCase):
    def setUp(self) -> None:
        """There is no list of results to empty."""

    def test_using_correct_backend(self) -> None:
        assert default_task_backend == task_backends["default"]
        assert isinstance(task_backends["default"], PgQueueBackend)

    def test_get_backend(self) -> None:
        assert isinstance(tasks.noop_task.get_backend(), PgQueueBackend)
        assert isinstance(tasks.noop_task.using(backend="immediate").get_backend(), ImmediateBackend)

    def _check(self, result: Any) -> None:
        assert result.status == TaskResultStatus.READY
        assert result.task == tasks.noop_task
        assert (result.args, result.kwargs) == ([], {})
        assert default_task_backend.get_result(result.id) == result

    def test_enqueue_task(self) -> None:
        self._check(tasks.noop_task.enqueue())

    async def test_enqueue_task_async(self) -> None:
        await sync_to_async(self._check)(await tasks.noop_task.aenqueue())

    async def test_refresh_result(self) -> None:
        result = await tasks.noop_task.aenqueue()
        before = dataclasses.asdict(result)
        await sync_to_async(result.refresh)()
        assert dataclasses.asdict(result) == before
        await result.arefresh()
        assert dataclasses.asdict(result) == before

    async def test_get_missing_result(self) -> None:
        with pytest.raises(TaskResultDoesNotExist):
            await sync_to_async(tasks.noop_task.get_result)("123")
        with pytest.raises(TaskResultDoesNotExist):
            await tasks.noop_task.aget_result("123")


# What the tests of Django's two backends hold those to, and any other one as well.


@override_settings(TASKS=TASKS)
class BackendTests(TestCase):
    def test_what_has_just_been_enqueued(self) -> None:
        for task in (tasks.noop_task, tasks.noop_task_async):
            result = task.enqueue(1, two=3)
            assert result.status == TaskResultStatus.READY
            assert result.is_finished is False
            assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
            assert result.enqueued_at is not None
            with self.assertRaisesMessage(ValueError, "Task has not finished yet"):
                _ = result.return_value
            assert (result.task, result.args, result.kwargs) == (task, [1], {"two": 3})
            assert (result.attempts, result.errors, result.backend) == (0, [], "default")

    def test_enqueue_is_logged(self) -> None:
        with self.assertLogs("django.tasks", level="DEBUG") as logs:
            result = tasks.noop_task.enqueue()
        assert len(logs.output) == 1
        assert "enqueued" in logs.output[0]
        assert result.id in logs.output[0]

    def test_a_task_is_validated_once_more_when_it_is_enqueued(self) -> None:
        elsewhere = tasks.noop_task.using(queue_name="queue_1")
        fewer = {"default": {**TASKS["default"], "QUEUES": ["default"]}}
        with override_settings(TASKS=fewer), self.assertRaisesMessage(InvalidTask, "Queue 'queue_1' is not valid"):
            elsewhere.enqueue()

    async def test_and_when_a_coroutine_enqueues_it(self) -> None:
        elsewhere = tasks.noop_task.using(queue_name="queue_1")
        fewer = {"default": {**TASKS["default"], "QUEUES": ["default"]}}
        with override_settings(TASKS=fewer), self.assertRaisesMessage(InvalidTask, "Queue 'queue_1' is not valid"):
            await elsewhere.aenqueue()

    def test_check(self) -> None:
        assert list(default_task_backend.check()) == []

    def test_a_task_that_takes_a_context(self) -> None:
        assert tasks.get_task_id.enqueue().args == []


class TransactionTests(TransactionTestCase):
    @override_settings(TASKS=TASKS)
    def test_enqueue_does_not_wait_for_the_commit(self) -> None:
        from django.db import transaction

        with transaction.atomic():
            result = tasks.noop_task.enqueue()
            assert result.enqueued_at is not None
            assert Job.objects.count() == 1
        assert Job.objects.count() == 1


# The two backends of the test kit are Django's own in all that those have tests for.


def _named(name: str, **params: Any) -> dict[str, Any]:
    return {"default": {"BACKEND": f"pgqueue_django.testing.{name}", "QUEUES": [], **params}}


@override_settings(TASKS=_named("ImmediateBackend"))
class ImmediateTests(test_immediate_backend.ImmediateBackendTestCase):
    pass


@override_settings(TASKS=_named("DummyBackend"))
class DummyTests(test_dummy_backend.DummyBackendTestCase):
    if django.VERSION < (6, 0):

        def test_validate_disallowed_async_task(self) -> None:
            """The backport says it in other words."""
            with mock.patch.multiple(default_task_backend, supports_async_task=False):
                with pytest.raises(InvalidTask, match="does not support async"):
                    default_task_backend.validate_task(tasks.noop_task_async)


def test_the_kits_backends_are_those(settings: Any) -> None:
    for name, theirs in (("ImmediateBackend", ImmediateBackend), ("DummyBackend", DummyBackend)):
        settings.TASKS = _named(name)
        assert isinstance(task_backends["default"], theirs)
        assert type(task_backends["default"]).__module__ == "pgqueue_django.testing.backends"

"""``django.tasks`` on the queue: ``TASKS = {"default": {"BACKEND": "pgqueue_django.backend.PgQueueBackend"}}``.

A door: Django's calls become ``transitions.insert`` and readings of one row. There is one object for each thread, and
it is made while modules with tasks are imported, so it keeps nothing and looks at no model before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from . import compat, options, results
from .exceptions import InvalidOption, TaskNotFound

_OPTIONS = {"database"}
_MOST = 2**63 - 1  # the largest id


class TakesOurOptions(compat.BaseTaskBackend):
    """A backend whose ``@task`` takes our options and refuses what no job may have. Others can be made of it."""

    task_class = results.PgQueueTask

    def validate_task(self, task: Any) -> None:
        """Raises InvalidTask. ``run_after`` may be a timedelta: from the moment of the INSERT, by the database."""
        is_length = isinstance(task.run_after, timedelta) and self.supports_defer
        without: Any = _Without(task)
        super().validate_task(without if is_length else task)
        try:
            results.check(task)
            options.check_run_after(options.aware(task.run_after))
        except InvalidOption as error:
            raise compat.InvalidTask(str(error)) from error


class PgQueueBackend(TakesOurOptions):
    """``OPTIONS = {"database": alias}``: where its jobs are; else where the router writes them."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    @property
    def database(self) -> str:
        """The alias of its jobs. Raises ImproperlyConfigured."""
        if problems := [str(problem.msg) for problem in self._problems() if problem.is_serious()]:
            raise ImproperlyConfigured(" ".join(problems))
        return results.database_of(self)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> results.PgQueueTaskResult:
        """One INSERT, in the transaction that is open on its database.

        Raises InvalidTask; TypeError when the function does not take this call or an argument is no JSON;
        InvalidPayload for a value that JSON or PostgreSQL has no place for. All of that before any SQL.
        """
        from . import tasks, transitions

        self.validate_task(task)
        using = self.database
        try:
            ours = tasks.of_django(task)
            new = ours.new_job(tuple(results.plain(args)), results.plain(kwargs))
        except TaskNotFound as error:
            raise compat.InvalidTask(str(error)) from error
        while (inserted := transitions.insert(using, new)) is None:
            # As in transitions.enqueue: who has the key may be gone when it is looked for.
            if row := results.holder(using, new):
                return results.of_row(row, self.alias)
        result = results.of_inserted(task, inserted, new, self.alias)
        compat.task_enqueued.send_robust(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> results.PgQueueTaskResult:
        """One query. Raises TaskResultDoesNotExist, TaskNotFound where the code of the job is not."""
        id = _number(result_id)
        row = results.read(self.database, [id]).get(id) if id else None
        if row is None:
            raise compat.TaskResultDoesNotExist(result_id)
        return results.of_row(row, self.alias)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        return list(self._problems())

    def _problems(self) -> Iterator[checks.CheckMessage]:
        where = f'TASKS["{self.alias}"]'
        if not apps.is_installed("pgqueue_django"):
            yield checks.Error(
                f"{where} names the backend of pgqueue_django, which is not installed.",
                hint='Put "pgqueue_django" into INSTALLED_APPS.',
                id="pgqueue.E101",
            )
        if unknown := sorted(set(self.options) - _OPTIONS):
            yield checks.Error(
                f'{where}["OPTIONS"]: unknown {", ".join(map(str, unknown))}.',
                hint=f"Known: {', '.join(sorted(_OPTIONS))}. What concerns the worker is in settings.PGQUEUE.",
                id="pgqueue.E102",
            )
        alias = self.options.get("database")
        if alias is not None and alias not in connections:
            yield checks.Error(
                f'{where}["OPTIONS"]["database"] is {alias!r}.',
                hint=f"Give one of DATABASES: {', '.join(connections)}.",
                id="pgqueue.E103",
            )
        for name in sorted(self.queues, key=str):
            try:
                options.check_queue_name(name)
            except InvalidOption as error:
                yield checks.Error(
                    f'{where}["QUEUES"]: {error}',
                    hint="Give the queue another name; [] allows every name that a queue may have.",
                    id="pgqueue.E104",
                )


class _Without:
    """A task without its ``run_after``, which Django's own validation takes for a datetime."""

    run_after = None

    def __init__(self, task: Any) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


def _number(result_id: object) -> int | None:
    """The id of a row; None: there can be no such row."""
    if not isinstance(result_id, str) or not result_id.isascii() or not result_id.isdecimal() or len(result_id) > 19:
        return None
    number = int(result_id)
    return number if 0 < number <= _MOST and str(number) == result_id else None

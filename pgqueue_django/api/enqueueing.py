"""Jobs that come over HTTP: which tasks may, what is wrong with a request, and repeats of one.

The path of a task never causes an import: only what the project's own code has declared, with ``api=True``, is there
for a client, and whether it is unknown or not open he does not learn. Everything else is what the Python API checks.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any, NamedTuple

from django.apps import apps
from django.db import router
from django.utils.module_loading import module_has_submodule

from pgqueue_django import options, transitions
from pgqueue_django.deadline import patient
from pgqueue_django.exceptions import InvalidOption, InvalidPayload, TaskNotFound
from pgqueue_django.models import Job
from pgqueue_django.tasks import Call, Task, enqueue_many, resolve
from pgqueue_django.transitions import Enqueued

from . import limits, reading
from .errors import Problem, Wrong, invalid, pointer

logger = logging.getLogger("pgqueue_django")

FIELDS = (
    *("task", "args", "kwargs", "queue_name", "priority", "run_after", "delay_seconds", "idempotency_key"),
    "max_attempts",
)
MAX_BATCH = 1_000
_COMPARED = ("queue_name", "priority", "max_attempts")
_MAX_SECONDS = 366 * 100 * 24 * 3600  # what a timedelta can be is more than any option may

_discovery = threading.Lock()
_is_discovered = False


def discover() -> None:
    """Import the project's modules with tasks, once. One that cannot be imported here keeps none of the others away."""
    global _is_discovered
    with _discovery:
        if _is_discovered:
            return
        for app in apps.get_app_configs():
            if app.module is None or not module_has_submodule(app.module, "tasks"):
                continue
            try:
                import_module(f"{app.name}.tasks")
            except (Exception, SystemExit):
                logger.exception("api: %s.tasks cannot be imported: its tasks cannot be enqueued over HTTP", app.name)
        _is_discovered = True


def declared(path: str) -> Task[Any, Any] | None:
    """The task that the project's code has declared at this path; nothing is imported for it."""
    # A module that failed half-way has declared some, and is not there: to resolve one would run it again.
    if path not in options.declared or path.rpartition(".")[0] not in sys.modules:
        return None
    try:
        return resolve(path)
    except TaskNotFound:
        return None


def exposed(path: object) -> Task[Any, Any] | None:
    """The task at this path, if it is open to clients."""
    discover()
    found = declared(path) if isinstance(path, str) else None
    return found if found is not None and is_open(found) else None


def is_open(task: Task[Any, Any]) -> bool:
    """Whether clients may enqueue it: it says so, and its jobs are where the API looks for them.

    The id of a job in another database is here that of somebody else's.
    """
    return task.api and _database_of(task) == router.db_for_write(Job)


def _database_of(task: Task[Any, Any]) -> str:
    if task.origin is None:
        return task.using_database
    from pgqueue_django import results  # which needs the framework

    return results.database_of(task.origin.get_backend())


class Wish(NamedTuple):
    """One job that a client wants."""

    call: Call
    named: tuple[str, ...]
    """Those of its options that have to be the same in a repeat."""
    at: str
    """Where in the body it stands."""


def read(given: object, at: str = "") -> Wish:
    """The job that an object in the body describes. Raises Problem: 422, with everything that is wrong."""
    if not isinstance(given, dict):
        raise invalid([Wrong(at, "type", "A job is an object.")])
    errors = list(reading.unknown(given, FIELDS, at))
    task = exposed(given.get("task"))
    if task is None:
        message = "There is no such task that may be enqueued over HTTP." if "task" in given else "Name a task."
        errors.append(Wrong(f"{at}/task", "task", message))
    else:
        for name, value, wrong in _options(given, at):
            if wrong is None:
                try:
                    task = task.using(**{name: value})
                except InvalidOption as error:
                    wrong = Wrong(f"{at}/{name}", "option", str(error))
            if wrong is not None:
                errors.append(wrong)
    args, kwargs = given.get("args", []), given.get("kwargs", {})
    if not isinstance(args, list):
        errors.append(Wrong(f"{at}/args", "type", "It is an array."))
    if not isinstance(kwargs, dict):
        errors.append(Wrong(f"{at}/kwargs", "type", "It is an object."))
    if task is None or errors:
        raise invalid(errors)
    try:
        call = Call(task.using_database, task.new_job(tuple(args), kwargs))
    except InvalidPayload as error:
        place = error.path if error.path[:1] in (("args",), ("kwargs",)) else ()
        raise invalid([Wrong(at + pointer(*place), "payload", str(error))]) from None
    except TypeError as error:
        raise invalid([Wrong(at + _place(str(error)), "call", str(error))]) from None
    except TaskNotFound as error:
        raise invalid([Wrong(f"{at}/task", "task", "There is no such task that may be enqueued over HTTP.")]) from error
    return Wish(call, tuple(name for name in _COMPARED if name in given), at)


def _options(given: dict[str, Any], at: str) -> Iterator[tuple[str, Any, Wrong | None]]:
    for name in ("queue_name", "priority", "idempotency_key", "max_attempts"):
        if name in given:
            yield name, reading.whole(given[name]), None
    if given.get("run_after") is not None:
        moment = reading.moment(given["run_after"])
        message = "Give a moment with its offset from UTC, such as 2027-01-31T12:00:00Z."
        yield "run_after", moment, Wrong(f"{at}/run_after", "option", message) if moment is None else None
    if (delay := given.get("delay_seconds")) is not None:
        at += "/delay_seconds"
        if given.get("run_after") is not None:
            yield "run_after", None, Wrong(at, "option", "Give it or run_after, not both.")
        elif isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay <= _MAX_SECONDS:
            yield "run_after", None, Wrong(at, "option", "Give a number of seconds, of at least 0.")
        else:
            yield "run_after", timedelta(seconds=delay), None


def _place(message: str) -> str:
    """Where the argument is that a TypeError names."""
    if named := re.search(r"argument:? '([^']+)'$", message):
        return pointer("kwargs", named[1])
    return "/args" if "too many positional" in message else ""


class Made(NamedTuple):
    """What became of one wish."""

    enqueued: Enqueued
    row: dict[str, Any] | None
    """The columns that were asked for; None: the row is gone already."""


def make(wishes: Sequence[Wish], columns: Sequence[str]) -> list[Made]:
    """All of them, or none. Raises Problem: 422 where a key stands for other content, 429 where a queue is full."""
    database = router.db_for_write(Job)
    taken = _take(database, wishes)
    made: list[Enqueued] = []
    try:
        made = _make(database, wishes)
    finally:
        created = (wish for wish, one in zip(wishes, made, strict=False) if one.created)
        limits.give_back(database, taken - _by_queue(created))
    return _read(database, made, columns)


def _make(database: str, wishes: Sequence[Wish]) -> list[Enqueued]:
    if len(wishes) == 1 and wishes[0].call.job.idempotency_key is None:  # one statement, without BEGIN and COMMIT
        call = wishes[0].call
        return [transitions.enqueue(call.database, call.job)]
    with patient(database):
        enqueued = enqueue_many([wish.call for wish in wishes])
        if errors := list(_reused(database, wishes, enqueued)):
            raise Problem(422, "idempotency_key_reused", "The key is that of a job with other content.", errors=errors)
    return enqueued


def _take(database: str, wishes: Sequence[Wish]) -> Counter[str]:
    """The room that they need, taken. Raises Problem: 429. What repeats a job needs none: who repeats is answered."""
    needed = _by_queue(wishes)
    try:
        limits.take(database, needed)
    except Problem:
        keys = {(wish.call.job.task, wish.call.job.idempotency_key) for wish in wishes}
        named = {"task__in": {task for task, _ in keys}, "idempotency_key__in": {key for _, key in keys if key}}
        there = keys & set(Job.objects.using(database).filter(**named).values_list("task", "idempotency_key"))
        if not there:
            raise
        new = (wish for wish in wishes if (wish.call.job.task, wish.call.job.idempotency_key) not in there)
        needed = _by_queue(new)
        limits.take(database, needed)
    return needed


def _by_queue(wishes: Iterable[Wish]) -> Counter[str]:
    return Counter(wish.call.job.queue_name for wish in wishes)


def _read(database: str, enqueued: Sequence[Enqueued], columns: Sequence[str]) -> list[Made]:
    ids = [one.id for one in enqueued]
    rows = {row["id"]: row for row in Job.objects.using(database).filter(pk__in=ids).values(*columns)}
    return [Made(one, rows.get(one.id)) for one in enqueued]


def _reused(database: str, wishes: Sequence[Wish], enqueued: Sequence[Enqueued]) -> Iterator[Wrong]:
    """The wishes whose key another content has."""
    repeats = [(wish, one.id) for wish, one in zip(wishes, enqueued, strict=True) if not one.created]
    columns = ("id", "args", "kwargs", *_COMPARED)
    ids = [id for _, id in repeats]
    rows = {row["id"]: row for row in Job.objects.using(database).filter(pk__in=ids).values(*columns)}
    for wish, id in repeats:
        job, row = wish.call.job, rows.get(id)
        if row is None:
            continue  # pruned a moment ago: it was there, and it has run
        same = all(getattr(job, name) == row[name] for name in wish.named) and all(
            # As texts: 1, 1.0 and true are equal in Python.
            _sorted(json.loads(mine)) == _sorted(theirs)
            for mine, theirs in ((job.args, row["args"]), (job.kwargs, row["kwargs"]))
        )
        if not same:
            # Not which: who may enqueue need not learn of the jobs of others.
            yield Wrong(f"{wish.at}/idempotency_key", "reused", "Another job has it, with other content.")


def _sorted(value: Any) -> str:
    return json.dumps(value, sort_keys=True)

"""Jobs for the tests: made by the verbs, read back whole.

Only what no verb can do is written with an UPDATE of its own: moving a clock (an expired lease, a ``run_after``
that has come and a ``prune_after`` that has passed are moments that a test would have to sleep for), and setting
a job apart for the one claim that takes it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from pgqueue_django import transitions
from pgqueue_django.models import Job
from pgqueue_django.outcomes import DeadLettered, Failed, Failure, Kind, Retried, Settled, Succeeded
from pgqueue_django.states import State
from pgqueue_django.transitions import Claimed, NewJob, Settlement

DB = "default"
WORKER = "worker-1"
LEASE = 30.0
BOOM = Failure(Kind.ERROR, "ValueError", "boom", "Traceback ...")
BACKOFF = '{"base": 2, "factor": 2, "cap": 3600}'
# Seconds that a busy machine may hold a process up, beyond what we promise. What fails without the promise takes
# much longer, or never ends.
GRACE = 2.0


# -- making ----------------------------------------------------------------------------------------------------


def new(task: str = "shop.tasks.charge", **options: Any) -> NewJob:
    """A valid job; ``args``, ``kwargs`` and ``backoff`` may be given as Python values."""
    values: dict[str, Any] = {
        "args": "[]",
        "kwargs": "{}",
        "queue_name": "default",
        "priority": 0,
        "run_after": None,
        "max_attempts": 5,
        "backoff": BACKOFF,
        "idempotency_key": None,
        **options,
    }
    for name in ("args", "kwargs", "backoff"):
        if not isinstance(values[name], str):
            values[name] = json.dumps(values[name])
    return NewJob(task=task, **values)


def make_job(state: State | str = State.QUEUED, **columns: Any) -> Job:
    """One job in ``state``, brought there by the verbs.

    ``columns`` are those of ``NewJob``, and ``worker_id`` of the job's attempt. ``expired=True``: a running one
    whose lease has ended. ``due=True``: a waiting one whose time has come. ``prunable=True``: a finished one whose
    age has come. ``parked=True``: a scheduled one that a worker without its code handed back.
    """
    state = State(state)
    worker_id = columns.pop("worker_id", WORKER)
    flags = {name: columns.pop(name, False) for name in ("expired", "due", "prunable", "parked")}
    if state == State.SCHEDULED and not flags["parked"]:
        columns.setdefault("run_after", timedelta(hours=1))
    if state == State.DEAD:
        columns.setdefault("max_attempts", 1)
    job_id = transitions.enqueue(DB, new(**columns)).id
    if state == State.CANCELLED:
        assert transitions.cancel(DB, [job_id]) == {job_id}
    elif state not in (State.QUEUED, State.SCHEDULED) or flags["parked"]:
        held = claim_one(job_id, worker_id=worker_id)
        if flags["parked"]:
            assert transitions.release(DB, [held.pair], unknown=[job_id]).moved == {job_id}
        elif state != State.RUNNING:
            assert settle(held, ending(state), worker_id=worker_id).moved == {job_id}
    if flags["expired"]:
        move_clock(job_id, "lease_expires_at", -1)
    if flags["due"]:
        move_clock(job_id, "run_after", -1)
    if flags["prunable"]:
        move_clock(job_id, "prune_after", -1)
    job = Job.objects.get(pk=job_id)
    assert job.state == state
    return job


def ending(state: State) -> Settled:
    """An outcome that brings a running job to ``state``."""
    outcomes: dict[State, Settled] = {
        State.SUCCEEDED: Succeeded('"ok"'),
        State.RETRYING: Retried(BOOM, 60),
        State.FAILED: Failed(BOOM),
        State.DEAD: DeadLettered(BOOM),
    }
    return outcomes[state]


def claim_one(job_id: int, *, worker_id: str = WORKER) -> Claimed:
    """Claims this very job, whatever else is ready: for that moment it stands in a queue of its own."""
    name = Job.objects.values_list("queue_name", flat=True).get(pk=job_id)
    _set_queue(job_id, f"make-{job_id}")
    (held,) = claim(queue_name=f"make-{job_id}", worker_id=worker_id)
    _set_queue(job_id, name)
    return held._replace(queue_name=name)


def _set_queue(job_id: int, name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET queue_name = %s WHERE id = %s", [name, job_id])


def move_clock(job_ids: int | Sequence[int], column: str, seconds: float) -> None:
    """Sets a moment to ``seconds`` from now, by the database's clock."""
    ids = [job_ids] if isinstance(job_ids, int) else list(job_ids)
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE pgqueue_job SET {column} = statement_timestamp() + make_interval(secs => %s) WHERE id = ANY(%s)",
            [seconds, ids],
        )


# -- calling the verbs with what most tests do not care about ---------------------------------------------------


def claim(
    slots: int = 1,
    prefetch: int = 0,
    *,
    queue_name: str = "default",
    worker_id: str = WORKER,
    lease: float = LEASE,
    after: tuple[int, float, int] | None = None,
) -> list[Claimed]:
    return transitions.claim(
        DB,
        queue_name=queue_name,
        slots=slots,
        prefetch=prefetch,
        worker_id=worker_id,
        lease_seconds=lease,
        after=after,
    )


def settle(held: Claimed, outcome: Settled, *, worker_id: str = WORKER) -> transitions.Fenced:
    return transitions.settle(DB, [Settlement(held, outcome, 0.001, 0.01)], worker_id=worker_id)


def heartbeat(*held: Claimed, lease: float = LEASE, **options: Any) -> transitions.Fenced:
    return transitions.heartbeat(DB, [job.pair for job in held], lease_seconds=lease, **options)


def held_by(job: Job) -> Claimed:
    """The job as the worker that claimed it last knows it."""
    return Claimed(
        job.pk,
        job.fencing_token,
        job.task,
        job.queue_name,
        json.dumps(job.args),
        json.dumps(job.kwargs),
        job.attempts,
        job.max_attempts,
        json.dumps(job.backoff),
        0.0,
        job.priority,
        job.run_after.timestamp(),
    )


# -- reading ---------------------------------------------------------------------------------------------------


def row(job_id: int) -> dict[str, Any] | None:
    """Every column of the row; None: no such row."""
    return Job.objects.filter(pk=job_id).values().first()


def state_of(job_id: int) -> State | None:
    found = Job.objects.filter(pk=job_id).values_list("state", flat=True).first()
    return State(found) if found else None


def database_now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        return cursor.fetchone()[0]  # type: ignore[no-any-return]


def seconds_from_now(moment: datetime) -> float:
    return (moment - database_now()).total_seconds()


# -- waiting ---------------------------------------------------------------------------------------------------


def wait_for(condition: Callable[[], Any], timeout: float = 10.0) -> Any:
    """Polls until ``condition`` is true and returns what it gave; the only sleep in these tests."""
    deadline = time.monotonic() + timeout
    while True:
        if found := condition():
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"still not so after {timeout} s: {condition}")
        time.sleep(0.002)


class Rival(threading.Thread):
    """Runs one function on a thread, and so on a connection, of its own; ``result()`` gives what it returned."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self._value: Any = None
        self._error: BaseException | None = None
        self.pid: int | None = None
        self.start()

    def run(self) -> None:
        mine = connections[DB]
        try:
            mine.ensure_connection()
            self.pid = mine.connection.info.backend_pid
            self._value = self._function()
        except BaseException as error:
            self._error = error
        finally:
            mine.close()

    def result(self, timeout: float = 10.0) -> Any:
        self.join(timeout)
        assert not self.is_alive(), "the rival is still waiting"
        if self._error:
            raise self._error
        return self._value

    def wait_until_blocked(self) -> None:
        """Returns once the server says that its backend waits for somebody's lock."""
        wait_for(lambda: self.pid)
        wait_for(lambda: blocked_by_somebody(self.pid) or not self.is_alive())
        assert self.is_alive(), "the rival did not wait"


def blocked_by_somebody(pid: int | None) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid])
        return bool(cursor.fetchone()[0])


def connect() -> psycopg.Connection[Any]:
    """A raw session on the test database, in autocommit."""
    parameters = connections[DB].get_connection_params()
    names = ("host", "port", "user", "password", "dbname")
    wanted = {name: parameters[name] for name in names if parameters.get(name)}
    return psycopg.connect(**wanted, autocommit=True)


@contextmanager
def locked_elsewhere(session: psycopg.Connection[Any], *job_ids: int) -> Iterator[None]:
    """The rows are locked by another session's open transaction, as by an admin's open form.

    Whoever waits for them on this thread gives up with an error instead of hanging.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '2s'")
        with session.transaction(force_rollback=True):
            session.execute("SELECT 1 FROM pgqueue_job WHERE id = ANY(%s) FOR UPDATE", [list(job_ids)])
            yield
        cursor.execute("RESET lock_timeout")


@contextmanager
def statements() -> Iterator[list[str]]:
    """The statements that this thread's connection sent, but for those of transactions."""
    sent: list[str] = []
    with CaptureQueriesContext(connection) as captured:
        yield sent
    frame = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE SAVEPOINT")
    sent += [query["sql"].strip() for query in captured if not query["sql"].strip().startswith(frame)]

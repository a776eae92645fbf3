"""Every verb that moves a job: the only writer of the job table.

A verb is one function and one transaction; its docstring begins with its arrow. What every verb keeps:

* **Fence.** A write on a running job names the pair (id, fencing token) and asks for a lease. The token grows
  at every claim, so an attempt that was given up can never write again. The fence does not say
  ``state = 'running'``: a CHECK makes a lease the same thing, and with the word in it the planner takes the
  partial index of running jobs, whose statistics are always stale (settling 100 rows: 8.4 ms against 0.7).
* **Bounded.** At most ``BATCH`` rows a call, never a list of parameters that grows with the table.
* **Order.** Rows are locked in id order, or with SKIP LOCKED; so two verbs cannot deadlock.
* **Time** is ``statement_timestamp()``, the database's, in all that is stored or compared. Not ``now()``: in a
  long transaction of the caller that one stands still.
* Nobody but a person's verb (cancel, requeue, run_now, delete) waits for a row that someone else holds.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import psycopg
from django.db import DatabaseError, DataError, connections, transaction
from django.db.backends.utils import CursorWrapper

from . import conf, logs, stats, tracing, wakeups
from .backoff import Backoff
from .exceptions import InvalidOption
from .models import Job, JobQuerySet
from .outcomes import Failure, Kind, Retried, Settled, Succeeded
from .states import FINISHED, TRANSITIONS, State

logger = logging.getLogger("pgqueue_django")

BATCH = 1000
"""Rows that one call moves at the most."""

PRUNE_SPAN = 5_000
"""Ids that one call of ``prune_older`` looks at."""

_BULK_BYTES = 4 * 1024 * 1024  # of one statement of enqueue_many
_COPY_FROM = 50  # jobs without a key: COPY takes two round trips more than INSERT, and about 12 us a row less


# --------------------------------------------------------------------------------------------------------------
# Values that go in and come out
# --------------------------------------------------------------------------------------------------------------


class NewJob(NamedTuple):
    """A job that is to be enqueued; all values already validated (see tasks.py).

    A tuple, as are ``Claimed``, ``Settlement`` and ``stats.Sample``: one of each is made for every job, and a frozen
    dataclass takes four times as long to make (1.2 us against 0.3).
    """

    task: str
    args: str  # JSON text
    kwargs: str  # JSON text
    queue_name: str
    priority: int
    run_after: datetime | timedelta | None
    max_attempts: int
    backoff: str  # JSON text
    idempotency_key: str | None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The job that now exists. ``created`` is False when an earlier one with the same key stands for it."""

    id: int
    created: bool


class Claimed(NamedTuple):
    """A job that a worker holds: what running it needs, as the claim left it in the row."""

    id: int
    fencing_token: int
    task: str
    queue_name: str
    args: str  # JSON text
    kwargs: str  # JSON text
    attempt: int  # from 1
    max_attempts: int
    backoff: str  # JSON text
    pickup_seconds: float  # from when it could have run to the claim, on the database's clock
    priority: int
    run_after: float  # seconds since 1970, on the database's clock
    trace: str | None = None  # JSON text: of who enqueued it

    @property
    def pair(self) -> tuple[int, int]:
        return self.id, self.fencing_token

    @property
    def place(self) -> tuple[int, float, int]:
        """Where it stood in its queue."""
        return self.priority, self.run_after, self.id


class Settlement(NamedTuple):
    """An outcome on its way into the row."""

    job: Claimed
    outcome: Settled
    pickup_seconds: float | None = None  # to the start of the handler
    run_seconds: float | None = None

    def sample(self) -> stats.Sample:
        outcome = self.outcome
        expired = not isinstance(outcome, Succeeded) and outcome.failure.kind == Kind.LEASE_EXPIRED
        return stats.Sample(
            self.job.queue_name, self.job.task, outcome.state, self.pickup_seconds, self.run_seconds, expired
        )


@dataclass(frozen=True, slots=True)
class Fenced:
    """What became of each job of a fenced write."""

    moved: frozenset[int]
    busy: frozenset[int]  # still ours, but someone holds the row: try again
    gone: Mapping[int, State | None] = field(default_factory=dict)  # no longer ours; its state now, None: no row


# --------------------------------------------------------------------------------------------------------------
# Pieces of SQL that more than one verb needs
# --------------------------------------------------------------------------------------------------------------


def _held(**columns: str) -> str:
    """A fenced write's parameters as a table, cut down to the rows that pass the fence and that nobody holds.

    ``columns``: name and type of each array. The rows are locked, in the order of the parameters: id order.
    """
    arrays = ", ".join(f"%s::{kind}[]" for kind in columns.values())
    # LATERAL: each is one probe of the primary key. A join here is planned by statistics that take every lease
    # for null, and compares each row with each (288 rows: 36 ms against 2). FOR NO KEY UPDATE does not collide
    # with the FOR KEY SHARE that a foreign key to a job would take.
    return f"""
        SELECT told.* FROM unnest({arrays}) AS told({", ".join(columns)}) CROSS JOIN LATERAL (
            SELECT FROM pgqueue_job job
            WHERE job.id = told.id AND job.fencing_token = told.token AND job.lease_expires_at IS NOT NULL
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS locked
    """


# Appends to the history: the first entry and the newest stay.
_HISTORY = """
    (CASE WHEN jsonb_array_length(job.history) >= %s THEN job.history - 1 ELSE job.history END)
    || jsonb_build_array(jsonb_build_object(
        'attempt', job.attempts, 'worker', job.worker_id,
        'started_at', job.started_at, 'ended_at', statement_timestamp()) || (told.failure::jsonb - 'fingerprint'))
"""

# Of the newest failed attempt, in columns: to be looked for, and grouped.
_ERROR = """
    error_type = told.failure::jsonb ->> 'error_type', error_fingerprint = told.failure::jsonb ->> 'fingerprint'
"""

_PAST_WORKERS = 999

# Of a charged attempt that ends without being the last word: its worker, and when the first one began. An attempt that
# succeeds writes neither: they are worker_id and started_at.
_PAST = f"""
    past_worker_ids = CASE WHEN {{ends}} THEN
        (CASE WHEN jsonb_array_length(job.past_worker_ids) >= {_PAST_WORKERS} THEN job.past_worker_ids - 0
              ELSE COALESCE(job.past_worker_ids, '[]') END) || to_jsonb(job.worker_id)
        ELSE job.past_worker_ids END,
    first_started_at = CASE WHEN {{ends}} THEN COALESCE(job.first_started_at, job.started_at)
        ELSE job.first_started_at END
"""

# When a finished row may go: its state's age, and not before its key's.
_PRUNE_AFTER = """
    statement_timestamp() + make_interval(secs => GREATEST(
        told.keep, CASE WHEN job.idempotency_key IS NOT NULL AND told.keep IS NOT NULL THEN %s::float8 END))
"""


def _keep_seconds(state: State) -> float | None:
    return conf.current().retention[state]


def _fence_answer(cursor: CursorWrapper, told: Mapping[int, int], moved: Iterable[int]) -> Fenced:
    """Tells the rows that did not move apart: busy ones still pass the fence."""
    done = frozenset(moved)
    missing = [id for id in told if id not in done]
    if not missing:
        return Fenced(done, frozenset())
    cursor.execute(
        "SELECT id, fencing_token, lease_expires_at IS NOT NULL, state FROM pgqueue_job WHERE id = ANY(%s::bigint[])",
        [missing],
    )
    gone: dict[int, State | None] = dict.fromkeys(missing)
    busy = set()
    for id, token, leased, state in cursor.fetchall():
        if leased and token == told[id]:
            busy.add(id)
            del gone[id]
        else:
            gone[id] = State(state)
    return Fenced(done, frozenset(busy), gone)


def _bounded(ids: Collection[int]) -> list[int]:
    if len(ids) > BATCH:
        raise InvalidOption(f"{len(ids)} jobs in one call; pass at most {BATCH} at a time.")
    return sorted(ids)


def _sources(verb: str) -> list[str]:
    return [str(state) for state in TRANSITIONS[verb].sources]


# --------------------------------------------------------------------------------------------------------------
# Producers
# --------------------------------------------------------------------------------------------------------------

_KEY_TARGET = "ON CONFLICT (task, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING"


class Inserted(NamedTuple):
    """A row of this very statement. Moments are the database's."""

    id: int
    enqueued_at: datetime
    run_after: datetime


def enqueue(using: str, job: NewJob) -> Enqueued:
    """() -> queued, or scheduled while ``run_after`` is ahead. One that has passed becomes now: it jumps no queue.

    One INSERT in the caller's transaction; with an idempotency key that is taken, a second statement finds the
    job that has it. A concurrent transaction with the same key makes this one wait for its end: if it rolls
    back, this one creates the job. No error poisons the caller's transaction, but for what PostgreSQL imposes:
    two transactions that take two keys in opposite order deadlock (40P01), and above READ COMMITTED a key that
    was taken after the snapshot is a serialization failure (40001).
    """
    while True:
        if inserted := insert(using, job):
            return Enqueued(inserted.id, created=True)
        # A new statement, so a new snapshot: it sees the row that the INSERT met.
        with connections[using].cursor() as cursor:
            cursor.execute(
                "SELECT id FROM pgqueue_job WHERE task = %s AND idempotency_key = %s",
                [job.task, job.idempotency_key],
            )
            if row := cursor.fetchone():
                return Enqueued(row[0], created=False)
        # Pruned or deleted between the two statements: the key is free again.


def insert(using: str, job: NewJob) -> Inserted | None:
    """() -> queued or scheduled, as ``enqueue``. None: the key is taken."""
    keyed = job.idempotency_key is not None
    relative = isinstance(job.run_after, timedelta)
    moment = "statement_timestamp() + %s::interval" if relative else "%s::timestamptz"
    sql = f"""
        INSERT INTO pgqueue_job (task, queue_name, priority, args, kwargs, max_attempts, backoff, idempotency_key,
                                 label, trace, enqueued_at, run_after, state)
        SELECT %s, %s, %s, %s::json, %s::json, %s, %s::jsonb, %s, %s, %s::jsonb, statement_timestamp(), moment,
               CASE WHEN moment > statement_timestamp() THEN 'scheduled' ELSE 'queued' END
        FROM (SELECT GREATEST({moment}, statement_timestamp())) AS given(moment)
        {_KEY_TARGET if keyed else ""}
        RETURNING id, enqueued_at, run_after
    """
    params: list[Any] = [job.task, job.queue_name, job.priority, job.args, job.kwargs, job.max_attempts, job.backoff]
    with tracing.sending((job,)) as sent, connections[using].cursor() as cursor:
        params += [job.idempotency_key, job.label, sent.trace, job.run_after]
        cursor.execute(sql, params)
        row = cursor.fetchone()
        if row is None:
            return None
        inserted = Inserted(*row)
        sent.made(inserted.id)
    _wake_for_new(using, job.queue_name, (inserted.run_after - inserted.enqueued_at).total_seconds())
    return inserted


def copy(using: str, job: NewJob, of: int) -> Enqueued:
    """() -> queued or scheduled, as ``enqueue``; a new job's row says which job it is a copy of. By a person."""
    with transaction.atomic(using=using):
        enqueued = enqueue(using, job)
        if enqueued.created:
            # A statement more here is none in every other INSERT. Nobody else sees the row yet.
            with connections[using].cursor() as cursor:
                cursor.execute("UPDATE pgqueue_job SET copy_of = %s WHERE id = %s", [of, enqueued.id])
    return enqueued


def _wake_for_new(using: str, queue_name: str, wait_seconds: float) -> None:
    if wait_seconds <= 0:
        wakeups.send_after_commit(using, queue_name)
    elif wait_seconds < conf.current().CHORE_INTERVAL:
        wakeups.send_after_commit(using, wakeups.DUE)


def enqueue_many(using: str, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """() -> queued or scheduled, for each. All or none; answers in the order of ``jobs``.

    In the caller's transaction or one of its own; a statement for each ``BATCH`` rows (or 4 MiB of arguments).
    Jobs without a key go by COPY when they are many. The others are INSERTs, which can pass over a taken key, in
    sorted order of the keys: two bulks with the same ones do not deadlock. ``Enqueued`` as in ``enqueue``; a key
    that stands twice in ``jobs`` makes one job.
    """
    places = range(len(jobs))
    keyless = [place for place in places if jobs[place].idempotency_key is None]
    # One statement after another: only sorting across all of them keeps one order of keys.
    keyed = sorted(
        (place for place in places if jobs[place].idempotency_key is not None),
        key=lambda place: (jobs[place].idempotency_key or "", jobs[place].task),
    )
    copies = list(_chunks(jobs, keyless)) if len(keyless) >= _COPY_FROM else []
    inserts = list(_chunks(jobs, keyed if copies else keyless + keyed))
    with tracing.sending(jobs) as sent, transaction.atomic(using=using, savepoint=False):
        bulk = _Bulk(jobs, sent.trace)
        # Whatever the order of the statements, ids are in that of the list, and there is one moment.
        drawn = _draw(using, len(jobs)) if copies or len(inserts) > 1 else None
        for chunk in copies:
            if drawn and drawn.may_copy:
                _copy_many(using, bulk, chunk, drawn)
            else:
                _insert_many(using, bulk, chunk, drawn)
        for chunk in inserts:
            _insert_many(using, bulk, sorted(chunk), drawn)
    for queue_name, wait_seconds in bulk.waits.items():
        _wake_for_new(using, queue_name, wait_seconds)
    return [bulk.answers[place] for place in places]


@dataclass(slots=True)
class _Bulk:
    """The jobs of one ``enqueue_many`` and what has become of them so far; a place is an index of ``jobs``."""

    jobs: Sequence[NewJob]
    trace: str | None  # JSON text: of who enqueues them
    answers: dict[int, Enqueued] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)  # the shortest of each queue, in seconds

    def made(self, place: int, id: int, wait_seconds: float) -> None:
        self.answers[place] = Enqueued(id, created=True)
        name = self.jobs[place].queue_name
        if wait_seconds < self.waits.get(name, math.inf):
            self.waits[name] = wait_seconds


def _chunks(jobs: Sequence[NewJob], places: Sequence[int]) -> Iterable[list[int]]:
    chunk: list[int] = []
    size = 0
    for place in places:
        chunk.append(place)
        size += len(jobs[place].args) + len(jobs[place].kwargs)
        if len(chunk) == BATCH or size >= _BULK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


# A subquery: otherwise the sequence is looked up for each row (5 us against 0.7).
_SEQUENCE = "(SELECT pg_get_serial_sequence('pgqueue_job', 'id')::regclass)"


@dataclass(frozen=True, slots=True)
class _Drawn:
    now: datetime  # by the database's clock
    ids: Sequence[int]  # ascending
    may_copy: bool  # PostgreSQL refuses COPY where row-level security holds for the role


def _draw(using: str, count: int) -> _Drawn:
    with connections[using].cursor() as cursor:
        # In UTC: whether Django reads a moment with its zone is a matter of the project's USE_TZ.
        cursor.execute(
            f"SELECT statement_timestamp() AT TIME ZONE 'UTC', array_agg(nextval({_SEQUENCE})), "
            "NOT row_security_active('pgqueue_job') FROM generate_series(1, %s)",
            [count],
        )
        moment, ids, may_copy = cursor.fetchone()
        return _Drawn(moment.replace(tzinfo=UTC), sorted(ids), may_copy)


_COPY_MANY = """
    COPY pgqueue_job (id, task, queue_name, priority, args, kwargs, max_attempts, backoff, label, trace,
                      enqueued_at, run_after, state) FROM STDIN
"""


def _copy_many(using: str, bulk: _Bulk, places: Sequence[int], drawn: _Drawn) -> None:
    """Makes jobs without keys.

    By write_row: while psycopg writes a row the server works on those before. A row of 2 KiB so takes 50 us, with
    all rows in one text 58, in binary 49; by ``_INSERT_MANY`` 61.
    """
    connection = connections[using]
    now = str(drawn.now)  # once: psycopg writes a datetime in 1 us
    # Django's cursor hands COPY through, but not its errors.
    with connection.wrap_database_errors, connection.cursor() as cursor, cursor.copy(_COPY_MANY) as copy:
        for place in places:
            job, id = bulk.jobs[place], drawn.ids[place]
            state, run_after, wait_seconds = "queued", now, 0.0
            if job.run_after is not None and (wait := _wait(job.run_after, drawn.now)):
                state, run_after, wait_seconds = "scheduled", str(drawn.now + wait), wait.total_seconds()
            copy.write_row(
                (
                    *(id, job.task, job.queue_name, job.priority, job.args, job.kwargs, job.max_attempts),
                    *(job.backoff, job.label, bulk.trace, now, run_after, state),
                )
            )
            bulk.made(place, id, wait_seconds)


def _wait(run_after: datetime | timedelta, now: datetime) -> timedelta:
    return max(timedelta(), run_after - now if isinstance(run_after, datetime) else run_after)


# Ids are drawn in the order of the caller's list, so that first in is first out; rows go in by key, so that
# two bulks with the same keys wait for each other instead of deadlocking.
_INSERT_MANY = f"""
    WITH told AS MATERIALIZED (
        SELECT COALESCE(given.drawn, nextval({_SEQUENCE})) AS id, given.*,
               GREATEST(bulk.moment, given.moment, bulk.moment + given.delay) AS run_after
        FROM (SELECT COALESCE(%b::timestamptz, statement_timestamp())) AS bulk(moment),
             unnest(%b::bigint[], %b::text[], %b::text[], %b::int[], %b::text[], %b::text[], %b::int[], %b::text[],
                    %b::text[], %b::text[], %b::timestamptz[], %b::interval[])
             WITH ORDINALITY AS given(drawn, task, queue_name, priority, args, kwargs, max_attempts, backoff,
                                      idempotency_key, label, moment, delay, place)
    ), made AS (
        INSERT INTO pgqueue_job (id, task, queue_name, priority, args, kwargs, max_attempts, backoff,
                                 idempotency_key, label, trace, enqueued_at, run_after, state)
        SELECT id, task, queue_name, priority, args::json, kwargs::json, max_attempts, backoff::jsonb,
               idempotency_key, label, %b::text::jsonb, statement_timestamp(), run_after,
               CASE WHEN run_after > statement_timestamp() THEN 'scheduled' ELSE 'queued' END
        FROM told ORDER BY idempotency_key COLLATE "C", task COLLATE "C", id
        {_KEY_TARGET}
        RETURNING id
    )
    SELECT told.place, told.id, made.id IS NOT NULL,
           EXTRACT(EPOCH FROM told.run_after - statement_timestamp())::float8
    FROM told LEFT JOIN made USING (id) ORDER BY told.place
"""


def _insert_many(using: str, bulk: _Bulk, places: Sequence[int], drawn: _Drawn | None) -> None:
    """Makes jobs with and without keys. ``drawn`` None: ids and moment are the statement's own."""
    jobs = bulk.jobs
    with _binding_cursor(using) as cursor:
        while places:
            rows = [jobs[place] for place in places]
            cursor.execute(
                _INSERT_MANY,
                [
                    drawn.now if drawn else None,
                    [drawn.ids[place] if drawn else None for place in places],
                    [row.task for row in rows],
                    [row.queue_name for row in rows],
                    [row.priority for row in rows],
                    [row.args for row in rows],
                    [row.kwargs for row in rows],
                    [row.max_attempts for row in rows],
                    [row.backoff for row in rows],
                    [row.idempotency_key for row in rows],
                    [row.label for row in rows],
                    [row.run_after if isinstance(row.run_after, datetime) else None for row in rows],
                    [row.run_after if isinstance(row.run_after, timedelta) else None for row in rows],
                    bulk.trace,
                ],
            )
            taken = []
            for place, (_, id, created, wait_seconds) in zip(places, cursor.fetchall(), strict=True):
                if created:
                    bulk.made(place, id, wait_seconds)
                else:
                    taken.append(place)
            if not taken:
                return
            cursor.execute(
                """
                SELECT told.place, job.id
                FROM unnest(%b::text[], %b::text[], %b::int[]) AS told(task, key, place)
                JOIN pgqueue_job job ON job.task = told.task AND job.idempotency_key = told.key
                """,
                [[jobs[place].task for place in taken], [jobs[place].idempotency_key for place in taken], taken],
            )
            for place, id in cursor.fetchall():
                bulk.answers[place] = Enqueued(id, created=False)
            # As in enqueue: whose winner vanished between the two statements is tried again.
            places = [place for place in taken if place not in bulk.answers]


def _binding_cursor(using: str) -> CursorWrapper:
    """A cursor whose parameters travel beside the statement, arrays in binary (``%b``).

    Django's own writes them into its text: of 1,000 jobs of 2 KiB each took 178 us, 90 of them Python's; this
    way 60, and 6. (All in one text for jsonb_to_recordset: 90, and 12.) For use inside a transaction.
    """
    connection = connections[using]
    wrap = connection.make_debug_cursor if connection.queries_logged else connection.make_cursor
    # Not connection.connection: some backends choose a tenant or a role as they hand out a cursor.
    return wrap(psycopg.Cursor(connection.cursor().connection))  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------------
# Workers
# --------------------------------------------------------------------------------------------------------------

# The walk locks first; the UPDATE then reaches exactly those rows by primary key. Never
# ``filter(pk__in=walk).update()``: a nested loop runs the walk again for each row and claims more than its limit.
# Nor a join with the walk beside the array of ids: with stale statistics it reads the whole array for each row.
# The cut is looked for once: as ``place < ALL (...)`` it was for each row, 18 us a job in claims of 450.
_CLAIM = """
    WITH walk (id, attempts, max_attempts, priority, run_after) AS MATERIALIZED ({walk} LIMIT %s),
    placed AS (
        SELECT id, attempts + 1 >= max_attempts AS last,
               row_number() OVER (ORDER BY priority DESC, run_after, id) AS place
        FROM walk
    ), taken AS MATERIALIZED (
        SELECT id FROM placed
        WHERE place < COALESCE((SELECT min(place) FROM placed WHERE last AND place > %s), %s)
    )
    UPDATE pgqueue_job job
    SET state = 'running', started_at = statement_timestamp(), worker_id = %s,
        lease_expires_at = statement_timestamp() + make_interval(secs => %s),
        fencing_token = job.fencing_token + 1, attempts = job.attempts + 1
    WHERE job.id = ANY(ARRAY(SELECT id FROM taken))
    RETURNING job.id, job.fencing_token, job.task, job.queue_name, job.args::text, job.kwargs::text, job.attempts,
        job.max_attempts, job.backoff,
        GREATEST(0, EXTRACT(EPOCH FROM statement_timestamp() - GREATEST(job.run_after, job.enqueued_at)))::float8,
        job.priority, EXTRACT(EPOCH FROM job.run_after)::float8, job.trace
"""


def claim(
    using: str,
    *,
    queue_name: str,
    slots: int,
    prefetch: int = 0,
    worker_id: str,
    lease_seconds: float,
    after: tuple[int, float, int] | None = None,
) -> list[Claimed]:
    """queued -> running: a lease, fencing token + 1, attempt charged. At most ``slots + prefetch`` jobs.

    In the order priority DESC, run_after, id; rows that another claim has locked are passed over. A job on its
    last attempt is taken for a free slot only, never beyond ``slots``: if this process were killed before it
    began, the attempt would be spent. The walk is cut at the first such job, not filtered: a filter would walk
    over all of them (23 ms against 0.14 with 200,000 ahead).

    ``after``: only jobs behind this place, and of its priority. Where somebody's old snapshot keeps the dead
    entries of claimed jobs in the index, a walk from its head reads all of them.
    """
    limit = min(slots + prefetch, BATCH)
    if limit < 1:
        return []
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        walk, params = _head_walk(using, queue_name) if after is None else _resumed_walk(using, queue_name, after)
        cursor.execute(_CLAIM.format(walk=walk), [*params, limit, slots, limit + 1, worker_id, lease_seconds])
        claimed = [Claimed._make(row) for row in cursor.fetchall()]
    claimed.sort(key=lambda job: (-job.priority, job.run_after, job.id))
    return claimed


# Making and compiling the queryset takes 0.5 ms, a third of the claim of one job.
@lru_cache(maxsize=256)
def _head_walk(using: str, queue_name: str) -> tuple[str, tuple[Any, ...]]:
    return _locking(using, Job.objects.using(using).ready(queue_name))


def _resumed_walk(using: str, queue_name: str, after: tuple[int, float, int]) -> tuple[str, tuple[Any, ...]]:
    return _locking(using, Job.objects.using(using).ready_after(queue_name, after))


def _locking(using: str, jobs: JobQuerySet) -> tuple[str, tuple[Any, ...]]:
    """The walk of a claim, without its limit, as SQL with its parameters."""
    locking = jobs.select_for_update(skip_locked=True, no_key=True)
    walk = locking.values_list("id", "attempts", "max_attempts", "priority", "run_after")
    # Not sql_with_params(): that one compiles for the alias "default". In a transaction, which Django asks for here.
    sql, params = walk.query.get_compiler(using).as_sql()
    return sql, tuple(params)


# One probe of the index per queue that has ready jobs, whatever their number.
_READY_QUEUES = """
    WITH RECURSIVE name(queue_name) AS (
        (SELECT queue_name FROM pgqueue_job WHERE state = 'queued' ORDER BY queue_name LIMIT 1)
        UNION ALL
        SELECT (SELECT job.queue_name FROM pgqueue_job job
                WHERE job.state = 'queued' AND job.queue_name > name.queue_name
                ORDER BY job.queue_name LIMIT 1)
        FROM name WHERE name.queue_name IS NOT NULL
    )
    SELECT queue_name FROM name WHERE queue_name IS NOT NULL LIMIT %s
"""


def ready_queues(using: str) -> list[str]:
    """Names of the queues that have ready jobs now, in alphabetical order; a reading, no verb."""
    with connections[using].cursor() as cursor:
        cursor.execute(_READY_QUEUES, [BATCH])
        return [name for (name,) in cursor.fetchall()]


_HEARTBEAT = f"""
    WITH told AS MATERIALIZED (
        {_held(id="bigint", token="bigint", progress="text")}
    )
    UPDATE pgqueue_job job
    SET lease_expires_at = statement_timestamp() + make_interval(secs => %s),
        progress = COALESCE(told.progress::jsonb, job.progress)
    FROM told WHERE job.id = told.id AND job.id = ANY(%s::bigint[])
    RETURNING job.id
"""


def heartbeat(
    using: str,
    pairs: Sequence[tuple[int, int]],
    *,
    lease_seconds: float,
    progress: Mapping[int, str] | None = None,
) -> Fenced:
    """running -> running: the lease is extended from now; new progress (JSON text by id) goes with it.

    A row that someone holds is *busy*, not waited for and not lost: one open session on one job must not cost
    the leases of all the others. A lease that has expired but was not reaped is extended.
    """
    told = dict(sorted(pairs))  # of two attempts of one job, the newer is the one that may still hold it
    ids = sorted(told)
    notes = progress or {}
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(
            _HEARTBEAT,
            [ids, [told[id] for id in ids], [notes.get(id) for id in ids], lease_seconds, ids],
        )
        return _fence_answer(cursor, told, (id for (id,) in cursor.fetchall()))


_SETTLE = f"""
    WITH told AS MATERIALIZED (
        {_held(id="bigint", token="bigint", state="text", delay="float8", keep="float8", result="text", failure="text")}
    )
    UPDATE pgqueue_job job
    SET state = told.state, lease_expires_at = NULL, parked_at = NULL,
        run_after = CASE WHEN told.delay IS NULL THEN job.run_after
                         ELSE statement_timestamp() + make_interval(secs => told.delay) END,
        finished_at = CASE WHEN told.state <> 'retrying' THEN statement_timestamp() END,
        prune_after = {_PRUNE_AFTER},
        result = CASE WHEN told.state = 'succeeded' THEN COALESCE(told.result, 'null')::json END,
        history = CASE WHEN told.failure IS NULL THEN job.history ELSE {_HISTORY} END,
        {_ERROR},
        {_PAST.format(ends="told.failure IS NOT NULL")}
    FROM told WHERE job.id = told.id AND job.id = ANY(%s::bigint[])
    RETURNING job.id
"""


def settle(
    using: str,
    settlements: Sequence[Settlement],
    *,
    worker_id: str,
    already: Sequence[stats.Sample] = (),
    receipt: Callable[[str], None] | None = None,
) -> Fenced:
    """running -> succeeded, retrying, failed or dead, as each outcome says. One statement for all of them.

    Busy rows are to be tried again; gone ones belong to somebody else and their outcomes are void. The
    counters of the attempts that moved are written in the same transaction, and ``already``, samples of
    attempts that were settled without them (see ``settle_inside``). Outcomes are fenced and may be sent again when
    a reply was lost; samples are not: ``receipt`` hears, before the COMMIT, what to ask ``has_committed`` then.
    """
    told = newest_of_each(settlements)
    tokens = {id: item.job.fencing_token for id, item in told.items()}
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        fenced = _settle(cursor, told, tokens) if told else Fenced(frozenset(), frozenset())
        samples = [told[id].sample() for id in sorted(fenced.moved)]
        transaction_id = stats.add(cursor, worker_id, [*samples, *already])
        if receipt is not None and transaction_id is not None:
            receipt(transaction_id)
    delays = [told[id].outcome.delay for id in fenced.moved if isinstance(told[id].outcome, Retried)]  # type: ignore[union-attr]
    if delays and min(delays) < conf.current().CHORE_INTERVAL:
        wakeups.send_after_commit(using, wakeups.DUE)
    return fenced


def newest_of_each(settlements: Sequence[Settlement]) -> dict[int, Settlement]:
    """By id, in its order: of two attempts of one job, the newer is the one that may still hold it."""
    told: dict[int, Settlement] = {}
    for item in settlements:
        job = item.job
        if (other := told.get(job.id)) is None or other.job.fencing_token < job.fencing_token:
            told[job.id] = item
    return {id: told[id] for id in sorted(told)}


def has_committed(using: str, transaction_id: str) -> bool | None:
    """Whether that transaction, of a moment ago, has committed; None while it is in progress.

    One that this server does not know has not: it was lost in a failover.
    """
    with connections[using].cursor() as cursor:
        try:
            cursor.execute("SELECT pg_xact_status(%s::xid8)", [transaction_id])
        except DataError:  # an id of the future
            return False
        (status,) = cursor.fetchone()
    return None if status == "in progress" else status == "committed"


def settle_inside(using: str, settlement: Settlement) -> Fenced:
    """running -> succeeded, inside the handler's own transaction: both commit, or neither does.

    Counters are left to the worker's next ``settle``. A busy row is the caller's to try again.
    """
    job = settlement.job
    with connections[using].cursor() as cursor:
        return _settle(cursor, {job.id: settlement}, dict([job.pair]))


def _failure(failure: Failure) -> str:
    """What ``_HISTORY`` and ``_ERROR`` read."""
    return json.dumps({**failure.entry(), "fingerprint": failure.fingerprint})


def _settle(cursor: CursorWrapper, told: Mapping[int, Settlement], tokens: Mapping[int, int]) -> Fenced:
    """``told`` and ``tokens`` by id, in the order of the ids."""
    limits = conf.current()
    keep = {state: _element(age) for state, age in limits.retention.items()}
    states, delays, keeps = list[str](), list[str](), list[str]()
    results, failures = list[str | None](), list[str | None]()
    for item in told.values():
        outcome = item.outcome
        state = outcome.state
        states.append(state)
        keeps.append(keep.get(state, "NULL"))
        if isinstance(outcome, Succeeded):
            delays.append("NULL")
            results.append(None if outcome.result == "null" else outcome.result)
            failures.append(None)
        else:
            delays.append(_element(outcome.delay if isinstance(outcome, Retried) else None))
            results.append(None)
            failures.append(_failure(outcome.failure))
    ids = _array(map(str, told))
    cursor.execute(
        _SETTLE,
        [
            *(ids, _array(map(str, tokens.values())), _array(states), _array(delays), _array(keeps), results, failures),
            *(limits.IDEMPOTENCY_RETENTION, limits.MAX_HISTORY, ids),
        ],
    )
    return _fence_answer(cursor, tokens, (id for (id,) in cursor.fetchall()))


def _array(elements: Iterable[str]) -> str:
    """Numbers, NULLs and our own words as PostgreSQL writes an array: 0.08 us an element, 0.6 as a list of psycopg's.

    Not for texts of others: nothing is quoted.
    """
    return "{" + ",".join(elements) + "}"


def _element(number: float | None) -> str:
    return "NULL" if number is None else repr(float(number))


# A task that nobody here knows comes back after half an hour, then after as long as it has been waiting, up to two:
# with 100,000 of them the others must not notice. At full seconds, or promote would be busy with them all the time
# (it looks when the earliest is due). A worker that knows the task adopts it at once.
_RELEASE = f"""
    WITH told AS MATERIALIZED (
        {_held(id="bigint", token="bigint", unknown="boolean")}
    )
    UPDATE pgqueue_job job
    SET state = CASE WHEN told.unknown THEN 'scheduled' ELSE 'queued' END,
        lease_expires_at = NULL, worker_id = NULL, started_at = NULL, attempts = job.attempts - 1,
        parked_at = CASE WHEN told.unknown THEN COALESCE(job.parked_at, statement_timestamp()) ELSE job.parked_at END,
        run_after = CASE WHEN told.unknown THEN
            date_trunc('second', statement_timestamp() + (0.75 + random() / 2) * LEAST(interval '2 hours', GREATEST(
                interval '30 minutes', statement_timestamp() - COALESCE(job.parked_at, statement_timestamp()))))
            ELSE job.run_after END
    FROM told WHERE job.id = told.id AND job.id = ANY(%s::bigint[])
    RETURNING job.id, job.queue_name, told.unknown
"""


def release(using: str, pairs: Sequence[tuple[int, int]], *, unknown: Collection[int] = ()) -> Fenced:
    """running -> queued, or scheduled (unknown task): given back, the attempt refunded; keeps its place.

    Ids in ``unknown`` have a task that this worker does not know: they go to scheduled, with a growing delay,
    and to whichever worker knows the task (see ``adopt``).
    """
    told = dict(sorted(pairs))  # of two attempts of one job, the newer is the one that may still hold it
    ids = sorted(told)
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(_RELEASE, [ids, [told[id] for id in ids], [id in unknown for id in ids], ids])
        rows = cursor.fetchall()
        fenced = _fence_answer(cursor, told, (id for id, _, _ in rows))
    for queue_name in {queue_name for _, queue_name, was_unknown in rows if not was_unknown}:
        wakeups.send_after_commit(using, queue_name)
    return fenced


@dataclass(frozen=True, slots=True)
class _Lost:
    """A running job whose worker is not heard of any more, locked by this transaction."""

    id: int
    fencing_token: int
    task: str
    queue_name: str
    attempts: int
    max_attempts: int
    backoff: str  # JSON text
    run_seconds: float


# In no order: rows that nobody can write must not fill every round. Nothing waits here, so nothing can deadlock.
_LOST = """
    SELECT job.id, job.fencing_token, job.task, job.queue_name, job.attempts, job.max_attempts, job.backoff,
           EXTRACT(EPOCH FROM statement_timestamp() - job.started_at)::float8
    FROM pgqueue_job job WHERE {where}
    ORDER BY random() LIMIT %s FOR NO KEY UPDATE SKIP LOCKED
"""

_GIVE_UP = f"""
    WITH told AS MATERIALIZED (
        {_held(id="bigint", token="bigint", state="text", delay="float8", keep="float8", failure="text")}
    )
    UPDATE pgqueue_job job
    SET state = told.state, lease_expires_at = NULL, parked_at = NULL,
        run_after = CASE WHEN told.delay IS NULL THEN job.run_after
                         ELSE statement_timestamp() + make_interval(secs => told.delay) END,
        finished_at = CASE WHEN told.state = 'dead' THEN statement_timestamp() END,
        prune_after = {_PRUNE_AFTER},
        history = {_HISTORY},
        {_ERROR},
        {_PAST.format(ends="true")}
    FROM told WHERE job.id = told.id AND job.id = ANY(%s::bigint[])
"""


def _give_up(using: str, cursor: CursorWrapper, lost: Sequence[_Lost], failure: Failure, by: str) -> int:
    """running -> retrying or dead for jobs that this transaction has locked; the attempt stays charged.

    One row that cannot be written (somebody's trigger) is left to the next round and logged; the others move.
    """

    expired = failure.kind == Kind.LEASE_EXPIRED

    def write(rows: Sequence[_Lost]) -> None:
        ids = [row.id for row in rows]
        dead = [row.attempts >= row.max_attempts for row in rows]
        states = [State.DEAD if is_dead else State.RETRYING for is_dead in dead]
        delays = [
            None if is_dead else Backoff.from_text(row.backoff).delay(row.attempts)
            for row, is_dead in zip(rows, dead, strict=True)
        ]
        keeps = [_keep_seconds(State.DEAD) if is_dead else None for is_dead in dead]
        limits = conf.current()
        # Savepoint: what fails must not take the locks of the others with it.
        with transaction.atomic(using=using):
            cursor.execute(
                _GIVE_UP,
                [
                    *(ids, [row.fencing_token for row in rows], [str(state) for state in states]),
                    *(delays, keeps, [_failure(failure)] * len(rows)),
                    *(limits.IDEMPOTENCY_RETENTION, limits.MAX_HISTORY, ids),
                ],
            )
            stats.add(
                cursor,
                by,
                [
                    stats.Sample(row.queue_name, row.task, state, None, row.run_seconds, expired)
                    for row, state in zip(rows, states, strict=True)
                ],
            )
            if min((delay for delay in delays if delay is not None), default=math.inf) < limits.CHORE_INTERVAL:
                wakeups.send_after_commit(using, wakeups.DUE)

    if not lost:
        return 0
    try:
        write(lost)
        return len(lost)
    except DatabaseError:
        # Not even the savepoint could be rolled back: the connection broke, and no row is to blame.
        if connections[using].needs_rollback:
            raise
        moved = 0
        # In one order, for the statistics' rows.
        for row in sorted(lost, key=lambda row: (row.queue_name, row.task)):
            try:
                write([row])
                moved += 1
            except DatabaseError as error:
                if connections[using].needs_rollback:
                    raise
                # Without the error's text: PostgreSQL shows the row in it, and so the payload.
                logger.error(
                    "%s #%d cannot be given up: %s; it stays running",
                    *(row.task, row.id, type(error).__name__),
                    extra=logs.event("job.refused", job_id=row.id, task=row.task),
                )
        return moved


def reap(using: str, *, by: str, limit: int = BATCH, overdue: Sequence[tuple[int, int]] = ()) -> int:
    """running -> retrying, or dead on the last attempt, for expired leases; the attempt stays charged.

    The handler may have run, and a job that kills its worker must come to an end. Needs no code of the task:
    max_attempts and the backoff's numbers are in the row. Returns how many moved.

    ``overdue``: these pairs instead (at most ``BATCH``), whose time is over and whose worker cannot say so.
    """
    failure = Failure(Kind.LEASE_EXPIRED, "LeaseExpired", "The lease expired: its worker stopped heart-beating.")
    where, params = "job.state = 'running' AND job.lease_expires_at < statement_timestamp()", list[Any]()
    if overdue:
        failure = Failure(Kind.TIMEOUT, "JobTimeout", "The attempt ran longer than its timeout, and its process hung.")
        where = """
            job.id = ANY(%s::bigint[]) AND job.lease_expires_at IS NOT NULL AND EXISTS (
                SELECT 1 FROM unnest(%s::bigint[], %s::bigint[]) AS told(id, token)
                WHERE told.id = job.id AND told.token = job.fencing_token)
        """
        ids = _bounded([id for id, _ in overdue])
        tokens = dict(overdue)
        params = [ids, ids, [tokens[id] for id in ids]]
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(_LOST.format(where=where), [*params, min(limit, BATCH)])
        return _give_up(using, cursor, [_Lost(*row) for row in cursor.fetchall()], failure, by)


def disown(
    using: str,
    worker_id: str,
    *,
    keep: Sequence[tuple[int, int]] = (),
    begun: Sequence[tuple[int, int]] = (),
    by: str,
) -> int:
    """running -> retrying or dead (begun), queued (not begun): rows of ``worker_id`` that it does not hold.

    For a process that is known to be dead, or for a worker itself after it lost its connection: a claim whose
    COMMIT got no reply has taken jobs that nobody will run. ``keep`` are the pairs that it does hold.
    Those in ``begun`` are given up at once, charged; the rest never started and is handed back, refunded.
    Returns how many moved; call again until 0.
    """
    failure = Failure(Kind.WORKER_LOST, "WorkerLost", "The worker process died while it ran this attempt.")
    kept, started = sorted(keep), set(begun)
    where = """
        job.state = 'running' AND job.worker_id = %s AND NOT EXISTS (
            SELECT 1 FROM unnest(%s::bigint[], %s::bigint[]) AS kept(id, token)
            WHERE kept.id = job.id AND kept.token = job.fencing_token)
    """
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(
            _LOST.format(where=where), [worker_id, [id for id, _ in kept], [token for _, token in kept], BATCH]
        )
        lost = [_Lost(*row) for row in cursor.fetchall()]
        charged = [row for row in lost if (row.id, row.fencing_token) in started]
        refunded = [(row.id, row.fencing_token) for row in lost if (row.id, row.fencing_token) not in started]
        moved = _give_up(using, cursor, charged, failure, by)
        if refunded:
            moved += len(release(using, refunded).moved)
    return moved


# state || '' in adopt, as in _BY_HAND: its index is the one of parked jobs, which has no state in it.
_PROMOTE = """
    WITH due AS MATERIALIZED (
        SELECT id FROM pgqueue_job WHERE {where} ORDER BY {order} LIMIT %s FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE pgqueue_job job SET {assignments} WHERE job.id = ANY(ARRAY(SELECT id FROM due))
    RETURNING job.queue_name
"""


def promote(using: str, *, limit: int = BATCH) -> int:
    """scheduled, retrying -> queued, when ``run_after`` has come; the earliest first. Returns how many moved."""
    return _promote(
        using,
        _PROMOTE.format(
            where="state IN ('scheduled', 'retrying') AND run_after <= statement_timestamp()",
            order="run_after",
            assignments="state = 'queued'",
        ),
        [min(limit, BATCH)],
    )


def adopt(
    using: str,
    tasks: Collection[str],
    *,
    queues: Collection[str] = (),
    excluded: Collection[str] = (),
    limit: int = BATCH,
) -> int:
    """scheduled -> queued: jobs of ``tasks`` that a worker without their code has handed back.

    Only those in ``queues`` (none named: in all), and none in ``excluded``.

    Does not send a wake-up: the worker that adopts them claims them at once, and the ones that do not know
    the task need not come running. Returns how many moved.
    """
    return _promote(
        using,
        _PROMOTE.format(
            where="""parked_at IS NOT NULL AND state || '' = 'scheduled' AND task = ANY(%s::text[])
                AND (%s OR queue_name = ANY(%s::text[])) AND queue_name <> ALL(%s::text[])""",
            order="task, id",
            assignments="state = 'queued', parked_at = NULL, run_after = LEAST(job.run_after, statement_timestamp())",
        ),
        [sorted(tasks), not queues, sorted(queues), sorted(excluded), min(limit, BATCH)],
        wake=False,
    )


def _promote(using: str, sql: str, params: list[Any], *, wake: bool = True) -> int:
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        names = [name for (name,) in cursor.fetchall()]
    if wake:
        for name in sorted(set(names)):
            wakeups.send_after_commit(using, name)
    return len(names)


PARKED_TASKS = """
parked(task) AS (
    (SELECT task FROM pgqueue_job WHERE parked_at IS NOT NULL AND state || '' = 'scheduled' ORDER BY task LIMIT 1)
    UNION ALL
    SELECT (SELECT job.task FROM pgqueue_job job
            WHERE job.parked_at IS NOT NULL AND job.state || '' = 'scheduled' AND job.task > parked.task
            ORDER BY job.task LIMIT 1)
    FROM parked WHERE parked.task IS NOT NULL
)
"""
"""Behind WITH RECURSIVE: the tasks of parked jobs, one step along their index for each, and a NULL at the end."""


def parked_tasks(using: str) -> list[str]:
    """Tasks of the jobs that workers without their code handed back; a reading, no verb."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            f"WITH RECURSIVE {PARKED_TASKS} SELECT task FROM parked WHERE task IS NOT NULL LIMIT %s", [BATCH]
        )
        return [task for (task,) in cursor.fetchall()]


# --------------------------------------------------------------------------------------------------------------
# People
# --------------------------------------------------------------------------------------------------------------

# state || '': as with the fence, a state that the planner can read leads it into a partial index: with stale
# statistics run_now walked over everything that waits.
_BY_HAND = """
    WITH told AS MATERIALIZED (
        SELECT id, state FROM pgqueue_job WHERE id = ANY(%s::bigint[]) AND state || '' = ANY(%s::text[])
        ORDER BY id FOR UPDATE
    ), moved AS (
        UPDATE pgqueue_job job SET {assignments} WHERE job.id = ANY(ARRAY(SELECT id FROM told))
        RETURNING job.id, job.state, job.queue_name
    )
    SELECT id, told.state, moved.state, moved.queue_name FROM moved JOIN told USING (id)
"""


def _by_hand(
    using: str,
    verb: str,
    ids: Collection[int],
    assignments: str,
    params: Sequence[Any] = (),
    source: State | Collection[State] | None = None,
) -> list[tuple[int, str, str, str]]:
    told = _bounded(ids)
    only = (source,) if isinstance(source, State) else source
    sources = [state for state in _sources(verb) if only is None or state in only]
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(_BY_HAND.format(assignments=assignments), [told, sources, *params])
        return [tuple(row) for row in cursor.fetchall()]


def cancel(using: str, ids: Collection[int], source: State | None = None) -> set[int]:
    """scheduled, queued, retrying, running -> cancelled. Returns the ids that moved; at most ``BATCH`` ids.

    A running job loses its lease, its worker is told at once and its outcome will be void. Until the old lease
    would have ended its handler may still run: that moment is kept in ``run_after``, so that a requeue before
    it waits, and two handlers do not overlap because a person was quick. ``source``: only what still is in that state.
    """
    keep = _keep_seconds(State.CANCELLED)
    rows = _by_hand(
        using,
        "cancel",
        ids,
        f"""
        state = 'cancelled', finished_at = statement_timestamp(),
        run_after = GREATEST(job.run_after, job.lease_expires_at), lease_expires_at = NULL, parked_at = NULL,
        prune_after = {_PRUNE_AFTER.replace("told.keep", "%s::float8")},
        {_PAST.format(ends="job.lease_expires_at IS NOT NULL")}
        """,
        [keep, keep, conf.current().IDEMPOTENCY_RETENTION],
        source,
    )
    if any(before == State.RUNNING for _, before, _, _ in rows):
        wakeups.send_after_commit(using, wakeups.CANCELLED)
    return {row[0] for row in rows}


def requeue(using: str, ids: Collection[int], source: State | Collection[State] | None = None) -> set[int]:
    """failed, dead, cancelled, succeeded -> queued, or scheduled while ``run_after`` is ahead. By a person.

    Attempts start from 0; history and fencing token stay. Returns the ids that moved; at most ``BATCH`` ids.
    ``source``: only what still is in that state, or in one of these.
    """
    rows = _by_hand(
        using,
        "requeue",
        ids,
        f"""
        state = CASE WHEN job.run_after > statement_timestamp() THEN 'scheduled' ELSE 'queued' END,
        run_after = GREATEST(job.run_after, statement_timestamp()),
        attempts = 0, finished_at = NULL, prune_after = NULL, result = NULL, progress = NULL,
        {_PAST.format(ends="job.state = 'succeeded'")}
        """,
        source=source,
    )
    _wake_queues(using, rows)
    return {row[0] for row in rows}


def run_now(using: str, ids: Collection[int]) -> set[int]:
    """scheduled, retrying -> queued, without waiting for ``run_after``. By a person.

    Returns the ids that moved; at most ``BATCH`` ids.
    """
    rows = _by_hand(
        using,
        "run_now",
        ids,
        "state = 'queued', run_after = LEAST(job.run_after, statement_timestamp())",
    )
    _wake_queues(using, rows)
    return {row[0] for row in rows}


def _wake_queues(using: str, rows: Iterable[tuple[int, str, str, str]]) -> None:
    for name in sorted({name for _, _, after, name in rows if after == State.QUEUED}):
        wakeups.send_after_commit(using, name)


def delete(using: str, ids: Collection[int]) -> set[int]:
    """succeeded, failed, dead, cancelled -> gone. By a person. Returns the ids; at most ``BATCH`` ids."""
    told = _bounded(ids)
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(
            """
            WITH told AS MATERIALIZED (
                SELECT id FROM pgqueue_job WHERE id = ANY(%s::bigint[]) AND state = ANY(%s::text[])
                ORDER BY id FOR UPDATE
            )
            DELETE FROM pgqueue_job WHERE id = ANY(ARRAY(SELECT id FROM told)) RETURNING id
            """,
            [told, _sources("delete")],
        )
        return {id for (id,) in cursor.fetchall()}


def prune(using: str, *, limit: int = BATCH) -> int:
    """succeeded, failed, dead, cancelled -> gone, once ``prune_after`` has come. Returns how many went."""
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(
            """
            WITH old AS MATERIALIZED (
                SELECT id FROM pgqueue_job WHERE prune_after <= statement_timestamp()
                ORDER BY prune_after LIMIT %s FOR UPDATE SKIP LOCKED
            )
            DELETE FROM pgqueue_job WHERE id = ANY(ARRAY(SELECT id FROM old))
            """,
            [min(limit, BATCH)],
        )
        return int(cursor.rowcount)


def prune_beyond(using: str, keep: int, *, limit: int = BATCH) -> int:
    """succeeded, failed, dead, cancelled -> gone, those that would go first anyway, while there are more than ``keep``.

    Jobs that are kept for ever do not count, and those with an idempotency key stay for ``IDEMPOTENCY_RETENTION``.
    Walks over ``keep`` entries of an index. Returns how many went.
    """
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(
            """
            WITH edge AS MATERIALIZED (
                SELECT prune_after, id FROM pgqueue_job WHERE prune_after IS NOT NULL
                ORDER BY prune_after DESC, id DESC OFFSET %s LIMIT 1
            ), old AS MATERIALIZED (
                SELECT id FROM pgqueue_job WHERE prune_after <= (SELECT prune_after FROM edge)
                  AND (prune_after, id) <= (SELECT prune_after, id FROM edge)
                  AND (idempotency_key IS NULL OR finished_at < statement_timestamp() - make_interval(secs => %s))
                ORDER BY prune_after LIMIT %s FOR UPDATE SKIP LOCKED
            )
            DELETE FROM pgqueue_job WHERE id = ANY(ARRAY(SELECT id FROM old))
            """,
            [keep, conf.current().IDEMPOTENCY_RETENTION, min(limit, BATCH)],
        )
        return int(cursor.rowcount)


def prune_older(
    using: str, states: Collection[State], *, older_seconds: float, after: int, dry_run: bool = False
) -> tuple[int, int | None]:
    """succeeded, failed, dead, cancelled -> gone, those of ``states`` that ended so long ago; a person's doing.

    Looks at the next ``PRUNE_SPAN`` ids after ``after``, whatever ``prune_after`` says, and passes over rows that
    somebody holds. Jobs with an idempotency key stay for ``IDEMPOTENCY_RETENTION``. Returns how many went (with
    ``dry_run``: would have), and where to go on; None: there are no more.
    """
    wanted = [str(state) for state in FINISHED if state in states]
    chosen = """
        SELECT id FROM pgqueue_job
        WHERE id > %s AND id <= %s AND state = ANY(%s::text[])
          AND finished_at < statement_timestamp() - make_interval(secs => CASE
              WHEN idempotency_key IS NULL THEN %s::float8 ELSE GREATEST(%s::float8, %s::float8) END)
    """
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        # The first one there is: ids have gaps, and what was pruned before is a large one.
        cursor.execute("SELECT min(id), (SELECT max(id) FROM pgqueue_job) FROM pgqueue_job WHERE id > %s", [after])
        first, last = cursor.fetchone()
        if first is None:
            return 0, None
        until = first + PRUNE_SPAN - 1
        params = [after, until, wanted, older_seconds, older_seconds, conf.current().IDEMPOTENCY_RETENTION]
        if dry_run:
            cursor.execute(f"SELECT count(*) FROM ({chosen}) AS old", params)
            moved = int(cursor.fetchone()[0])
        else:
            cursor.execute(
                f"WITH old AS MATERIALIZED ({chosen} ORDER BY id FOR UPDATE SKIP LOCKED) "
                "DELETE FROM pgqueue_job WHERE id = ANY(ARRAY(SELECT id FROM old))",
                params,
            )
            moved = int(cursor.rowcount)
    return moved, until if until < last else None

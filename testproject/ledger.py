"""What really happened, written down outside the queue's tables, and the rules that judge it.

For the chaos tests and for the benchmarks that kill. Three ledgers: producers keep each acknowledged job; handlers
write each delivery to ``chaos_delivery`` over an autocommit connection of their own; a trigger writes each change of
a job's state to ``chaos_move``, in the transaction that made it. ``check`` compares them with the job table, the
counters and the kills, and returns what does not fit; ``duplicates`` says what made each delivery beyond a job's
first. Both know nothing of the code under test but the table of arrows in ``states.py``.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg

from pgqueue_django.states import FINISHED, TRANSITIONS, State

SCHEMA = """
    CREATE TABLE chaos_delivery (
        id uuid PRIMARY KEY, job_id bigint NOT NULL, attempt int NOT NULL, pid int NOT NULL,
        began_at timestamptz NOT NULL DEFAULT statement_timestamp(), ended_at timestamptz
    );
    CREATE TABLE chaos_effect (job_id bigint NOT NULL);
    CREATE TABLE chaos_move (
        id bigserial PRIMARY KEY, job_id bigint NOT NULL, source text, target text, token bigint NOT NULL,
        attempts int NOT NULL, worker text, kind text, run_after timestamptz NOT NULL, lease_end timestamptz,
        at timestamptz NOT NULL DEFAULT clock_timestamp()
    );
    CREATE FUNCTION chaos_note() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'DELETE' THEN
            INSERT INTO chaos_move (job_id, source, token, attempts, run_after)
            VALUES (OLD.id, OLD.state, OLD.fencing_token, OLD.attempts, OLD.run_after);
        ELSIF TG_OP = 'INSERT' THEN
            INSERT INTO chaos_move (job_id, target, token, attempts, run_after)
            VALUES (NEW.id, NEW.state, NEW.fencing_token, NEW.attempts, NEW.run_after);
        ELSIF (OLD.state, OLD.fencing_token) IS DISTINCT FROM (NEW.state, NEW.fencing_token) THEN
            INSERT INTO chaos_move (job_id, source, target, token, attempts, worker, kind, run_after, lease_end)
            VALUES (NEW.id, OLD.state, NEW.state, NEW.fencing_token, NEW.attempts,
                    COALESCE(NEW.worker_id, OLD.worker_id),
                    CASE WHEN NEW.history IS DISTINCT FROM OLD.history THEN NEW.history->-1->>'kind' END,
                    CASE WHEN NEW.state = 'running' THEN OLD.run_after ELSE NEW.run_after END, OLD.lease_expires_at);
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER chaos_note AFTER INSERT OR UPDATE OR DELETE ON pgqueue_job
        FOR EACH ROW EXECUTE FUNCTION chaos_note();
"""

TABLES = ("chaos_delivery", "chaos_effect", "chaos_move")

# --------------------------------------------------------------------------------------------------------------
# The handlers' ledger, written from inside the worker processes
# --------------------------------------------------------------------------------------------------------------

_INSIST_SECONDS = 60.0
_mine = threading.local()


def begin(job_id: int, attempt: int) -> uuid.UUID:
    """A handler has begun. Returns when the ledger has it."""
    id = uuid.uuid4()
    # A try whose reply was lost makes no second delivery.
    _insist(
        "INSERT INTO chaos_delivery (id, job_id, attempt, pid) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
        [id, job_id, attempt, os.getpid()],
    )
    return id


def end(id: uuid.UUID) -> None:
    """It is about to return."""
    _insist("UPDATE chaos_delivery SET ended_at = COALESCE(ended_at, statement_timestamp()) WHERE id = %s", [id])


@contextmanager
def delivery(job_id: int, attempt: int) -> Iterator[None]:
    id = begin(job_id, attempt)
    yield
    end(id)


def _insist(sql: str, params: Sequence[Any]) -> None:
    deadline = time.monotonic() + _INSIST_SECONDS
    while True:
        try:
            if getattr(_mine, "connection", None) is None:
                _mine.connection = connect(os.environ["LEDGER_URL"])
            _mine.connection.execute(sql, params)
            return
        except psycopg.Error:
            if time.monotonic() > deadline:
                raise
            _mine.connection = None
            time.sleep(0.05)


def connect(url: str) -> psycopg.Connection[Any]:
    """A session of the observer's: autocommit, and it may write when the server is read-only for the others."""
    return psycopg.connect(
        url, autocommit=True, application_name="chaos", options="-c default_transaction_read_only=off"
    )


# --------------------------------------------------------------------------------------------------------------
# What was written down
# --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ack:
    """A job that a producer was told of after its COMMIT."""

    id: int
    created: bool
    key: str
    tries: int = 1


@dataclass(frozen=True)
class Job:
    """The row as it is at the end."""

    id: int
    task: str
    state: str
    attempts: int
    max_attempts: int
    failed_attempts: tuple[int, ...] = ()  # as its history numbers them


@dataclass(frozen=True)
class Delivery:
    """One begin of a handler."""

    job_id: int
    attempt: int
    pid: int
    began_at: datetime
    ended_at: datetime | None  # None: it never came to its end


@dataclass(frozen=True)
class Move:
    """One change of a row, as the trigger saw it. ``source`` None: made; ``target`` None: deleted."""

    job_id: int
    source: str | None
    target: str | None
    token: int
    attempts: int
    worker: str | None
    kind: str | None  # of the entry that this move added to the history
    run_after: datetime  # of a claim: what stood in the row before it
    lease_end: datetime | None  # before the move
    at: datetime


@dataclass(frozen=True)
class Kill:
    """A SIGKILL (or SIGSTOP) of ours, by the clock of this machine, which is the server's, too."""

    worker: str  # --name, or the whole id where processes of one name follow each other
    pid: int
    at: datetime


@dataclass
class History:
    acks: list[Ack] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    effects: Counter[int] = field(default_factory=Counter)  # committed rows of leave_effect, by job
    counted: dict[str, int] = field(default_factory=dict)  # attempts by state, as Stat has them


def read_acks(file: Path) -> list[Ack]:
    """The producers' ledger. A last line that a killed producer did not finish was no acknowledgement."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [Ack(**json.loads(line)) for line in lines]


def read(url: str, acks: Iterable[Ack], kills: Iterable[Kill] = ()) -> History:
    """Everything, in one snapshot of the database."""
    with psycopg.connect(url, application_name="chaos") as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        rows = connection.execute(
            "SELECT id, task, state, attempts, max_attempts, "
            "ARRAY(SELECT (entry->>'attempt')::int FROM jsonb_array_elements(history) AS entry) FROM pgqueue_job"
        ).fetchall()
        deliveries = connection.execute(
            "SELECT job_id, attempt, pid, began_at, ended_at FROM chaos_delivery ORDER BY began_at"
        ).fetchall()
        moves = connection.execute(
            "SELECT job_id, source, target, token, attempts, worker, kind, run_after, lease_end, at "
            "FROM chaos_move ORDER BY id"
        ).fetchall()
        effects = connection.execute("SELECT job_id FROM chaos_effect").fetchall()
        sums = connection.execute("SELECT sum(succeeded), sum(retried), sum(failed), sum(dead) FROM pgqueue_stat")
        counted = [int(number or 0) for number in sums.fetchone() or (0, 0, 0, 0)]
    states = (State.SUCCEEDED, State.RETRYING, State.FAILED, State.DEAD)
    return History(
        acks=list(acks),
        jobs=[Job(*columns, tuple(failed)) for (*columns, failed) in rows],  # type: ignore[call-arg]
        deliveries=[Delivery(*row) for row in deliveries],
        moves=[Move(*row) for row in moves],
        kills=list(kills),
        effects=Counter(id for (id,) in effects),
        counted=dict(zip(map(str, states), counted, strict=True)),
    )


# --------------------------------------------------------------------------------------------------------------
# The rules
# --------------------------------------------------------------------------------------------------------------

ATOMIC = ".leave_effect"
LOST_KINDS = ("lease_expired", "worker_lost")
_ARROWS: set[tuple[str | None, str | None]] = {
    (source, target)
    for arrow in TRANSITIONS.values()
    for source in (arrow.sources or (None,))
    for target in (arrow.targets or (None,))
}
# A claim that a worker sent just before its kill may reach the server just after it.
_SLACK = timedelta(seconds=1)


@dataclass(frozen=True)
class Violation:
    rule: str
    job_id: int | None
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {f'job {self.job_id}: ' if self.job_id is not None else ''}{self.text}"


@dataclass
class Hold:
    """One claim, from the move to running until the move away from it."""

    job_id: int
    attempt: int
    worker: str
    claimed_at: datetime
    end: Move | None = None  # None: still running
    deliveries: list[Delivery] = field(default_factory=list)

    @property
    def was_lost(self) -> bool:
        return self.end is not None and self.end.kind in LOST_KINDS

    @property
    def was_released(self) -> bool:
        return self.end is not None and self.end.target in (State.QUEUED, State.SCHEDULED)


def holds_of(history: History) -> dict[int, list[Hold]]:
    """The claims of each job in their order, with the deliveries that belong to them."""
    holds: dict[int, list[Hold]] = defaultdict(list)
    for move in history.moves:
        if move.target == State.RUNNING:
            holds[move.job_id].append(Hold(move.job_id, move.attempts, move.worker or "", move.at))
        elif move.source == State.RUNNING and holds[move.job_id]:
            holds[move.job_id][-1].end = move
    for found in history.deliveries:
        mine = [h for h in holds[found.job_id] if h.claimed_at <= found.began_at and h.attempt == found.attempt]
        if mine:
            mine[-1].deliveries.append(found)
    return holds


def lost_holds(history: History) -> list[Hold]:
    """The claims that were given up because nobody heard of them."""
    return [hold for holds in holds_of(history).values() for hold in holds if hold.was_lost]


def kill_of(hold: Hold, kills: Iterable[Kill]) -> Kill | None:
    """The kill that explains why this claim was given up."""
    for kill in kills:
        in_time = hold.claimed_at <= kill.at + _SLACK and (hold.end is None or kill.at <= hold.end.at)
        if kill.worker in (hold.worker, hold.worker.rpartition(":")[0]) and in_time:
            return kill
    return None


@dataclass(frozen=True)
class Duplicate:
    """A delivery of a job that had been delivered before."""

    delivery: Delivery
    cause: str | None  # of the one before it: "kill", or "lease" that expired with no kill; None: nothing explains it


def duplicates(history: History) -> list[Duplicate]:
    """Each delivery beyond the first one of its job; its cause must have ended the claim before it began."""
    found = []
    deliveries: dict[int, list[Delivery]] = defaultdict(list)
    for delivery in history.deliveries:
        deliveries[delivery.job_id].append(delivery)
    holds = holds_of(history)
    for id, of_job in deliveries.items():
        for before, again in pairwise(of_job):
            ended = (hold for hold in holds[id] if before in hold.deliveries and again not in hold.deliveries)
            hold = next((one for one in ended if one.end is not None and one.end.at <= again.began_at), None)
            cause = None
            if hold is not None and hold.was_lost and kill_of(hold, history.kills):
                cause = "kill"
            elif hold is not None and hold.end is not None and hold.end.kind == "lease_expired":
                cause = "lease"
            found.append(Duplicate(again, cause))
    return found


def check(history: History) -> list[Violation]:
    """What is wrong once everything has come to its end; nothing, if every promise was kept."""
    found: list[Violation] = []

    def wrong(rule: str, job_id: int | None, text: str) -> None:
        found.append(Violation(rule, job_id, text))

    jobs = {job.id: job for job in history.jobs}
    holds = holds_of(history)
    _check_acks(history, jobs, wrong)
    _check_moves(history, wrong)
    for job in history.jobs:
        _check_job(job, holds[job.id], history, wrong)
    _check_deliveries(history, holds, wrong)
    _check_counts(history, holds, wrong)
    return found


def _check_acks(history: History, jobs: dict[int, Job], wrong: Any) -> None:
    by_key: dict[str, set[int]] = defaultdict(set)
    for ack in history.acks:
        by_key[ack.key].add(ack.id)
        if ack.id not in jobs:
            wrong("lost", ack.id, "acknowledged, and there is no such row")
    for key, ids in by_key.items():
        if len(ids) > 1:
            wrong("key", None, f"{key} stands for the jobs {sorted(ids)}")


def _check_moves(history: History, wrong: Any) -> None:
    last: dict[int, Move] = {}
    for move in history.moves:
        before = last.get(move.job_id)
        last[move.job_id] = move
        if (move.source, move.target) not in _ARROWS:
            wrong("arrow", move.job_id, f"{move.source} -> {move.target} is no arrow")
        if move.source != (before.target if before else None):
            wrong("arrow", move.job_id, f"left {move.source}, was {before.target if before else 'not there'}")
        if before is None:
            continue
        claimed = move.target == State.RUNNING
        if move.token != before.token + claimed:
            wrong("token", move.job_id, f"{before.token} -> {move.token} by {move.source} -> {move.target}")
        refunded = move.source == State.RUNNING and move.target in (State.QUEUED, State.SCHEDULED)
        if move.target is not None and move.attempts != before.attempts + claimed - refunded:
            wrong("charge", move.job_id, f"{before.attempts} -> {move.attempts} by {move.source} -> {move.target}")
        if claimed and move.at < move.run_after:
            wrong("early", move.job_id, f"claimed at {move.at}, not to run before {move.run_after}")
        if move.kind == "lease_expired" and (move.lease_end is None or move.at <= move.lease_end):
            wrong("reaped early", move.job_id, f"at {move.at}, leased until {move.lease_end}")


def _check_job(job: Job, holds: Sequence[Hold], history: History, wrong: Any) -> None:
    if job.state not in FINISHED:
        wrong("not final", job.id, f"is {job.state}")
    if job.attempts > job.max_attempts:
        wrong("attempts", job.id, f"{job.attempts} of {job.max_attempts}")
    finishes = [hold for hold in holds if hold.end is not None and hold.end.target in FINISHED]
    if len(finishes) > 1:
        wrong("finished twice", job.id, ", ".join(f"{h.end.target} by {h.worker}" for h in finishes if h.end))
    charged = [hold for hold in holds if not hold.was_released]
    if len(charged) != job.attempts:
        wrong("attempts", job.id, f"{job.attempts} charged, {len(charged)} claims were not refunded")
    failed = [hold.attempt for hold in charged if hold.end is not None and hold.end.target != State.SUCCEEDED]
    if tuple(failed) != job.failed_attempts:
        wrong("history", job.id, f"has {job.failed_attempts}, the failed attempts were {failed}")
    for hold in holds:
        if hold.was_lost and kill_of(hold, history.kills) is None:
            # The first can happen to a worker that the machine starves, the second to nobody.
            rule = "lease" if hold.end and hold.end.kind == "lease_expired" else "worker lost"
            wrong(rule, job.id, f"{hold.worker} was given up ({hold.end.kind if hold.end else ''}), not killed")
    if job.task.endswith(ATOMIC) and history.effects[job.id] != (job.state == State.SUCCEEDED):
        wrong("effect", job.id, f"{history.effects[job.id]} effects of a job that {job.state}")


def _check_deliveries(history: History, holds: dict[int, list[Hold]], wrong: Any) -> None:
    atomic = _atomic_jobs(history)
    claimed = sum(len(hold.deliveries) for of_job in holds.values() for hold in of_job)
    if claimed != len(history.deliveries):
        wrong("delivery", None, f"{len(history.deliveries) - claimed} handlers began without a claim")
    for of_job in holds.values():
        for hold in of_job:
            begun = len(hold.deliveries)
            if begun > 1:
                wrong("delivery", hold.job_id, f"attempt {hold.attempt} of {hold.worker} began {begun} times")
            if hold.was_released and begun:
                wrong("delivery", hold.job_id, f"attempt {hold.attempt} had begun and was refunded")
            if hold.end is None or hold.was_lost or hold.was_released:
                continue
            succeeded = hold.end.target == State.SUCCEEDED
            if not begun:
                # An atomic job's transaction may be what failed, before the handler could begin.
                if succeeded or hold.job_id not in atomic:
                    wrong("delivery", hold.job_id, f"attempt {hold.attempt} {hold.end.target} and did not run")
            elif succeeded and ((ended_at := hold.deliveries[0].ended_at) is None or ended_at > hold.end.at):
                wrong("delivery", hold.job_id, f"attempt {hold.attempt} succeeded before it came to its end")
            elif hold.deliveries[0].began_at > hold.end.at:
                wrong("delivery", hold.job_id, f"attempt {hold.attempt} began after it had ended")


def _check_counts(history: History, holds: dict[int, list[Hold]], wrong: Any) -> None:
    atomic = _atomic_jobs(history)
    ended = [hold for of_job in holds.values() for hold in of_job if hold.end and not hold.was_released]
    for state in (State.SUCCEEDED, State.RETRYING, State.FAILED, State.DEAD):
        of_state = [hold for hold in ended if hold.end and hold.end.target == state]
        # The counters of an atomic success ride in the flush after it: a kill may come between the two.
        uncounted = sum(1 for hold in of_state if hold.job_id in atomic and _was_killed_after(hold, history.kills))
        counted = history.counted.get(state, 0)
        if not len(of_state) - uncounted <= counted <= len(of_state):
            wrong("counters", None, f"{counted} {state}, were {len(of_state)} (or up to {uncounted} fewer)")


def _atomic_jobs(history: History) -> set[int]:
    return {job.id for job in history.jobs if job.task.endswith(ATOMIC)}


def _was_killed_after(hold: Hold, kills: Iterable[Kill]) -> bool:
    name = hold.worker.rpartition(":")[0]
    return any(kill.worker == name and hold.end and abs(kill.at - hold.end.at) < _SLACK for kill in kills)

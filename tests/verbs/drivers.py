"""How the generated tests call each verb. A verb of ``states.TRANSITIONS`` that is missing here fails collection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pgqueue_django import transitions
from pgqueue_django.models import Job
from pgqueue_django.states import FINISHED, TRANSITIONS, State

from . import rows
from .rows import DB, LEASE, WORKER

# A row of each state to which every verb that may move that state would do so now.
RIPE: Mapping[State, Mapping[str, Any]] = {
    State.SCHEDULED: {"parked": True, "due": True},
    State.QUEUED: {},
    State.RUNNING: {"expired": True},
    State.RETRYING: {"due": True},
    **{state: {"prunable": True} for state in FINISHED},
}

# The verbs of people wait for a row that someone holds; those of workers never do.
WAITING_VERBS = {"cancel", "requeue", "run_now", "delete"}
SKIPPING_VERBS = {"promote", "adopt", "claim", "heartbeat", "settle", "release", "reap", "disown", "prune"}
MAKING_VERBS = {"enqueue", "enqueue_many"}
assert set(TRANSITIONS) == WAITING_VERBS | SKIPPING_VERBS | MAKING_VERBS
assert {verb for verb in TRANSITIONS if not TRANSITIONS[verb].sources} == MAKING_VERBS


@dataclass(frozen=True)
class Driver:
    """One way to call a verb on one job; ``run`` returns whether the verb says that it moved it."""

    run: Callable[[Job], bool]
    target: State | None
    columns: Mapping[str, Any] = field(default_factory=dict)
    run_after_ahead: bool = False


def _settle(state: State) -> Driver:
    return Driver(lambda job: job.pk in rows.settle(rows.held_by(job), rows.ending(state)).moved, state)


def _release(job: Job, *, unknown: bool) -> bool:
    pair = (job.pk, job.fencing_token)
    return job.pk in transitions.release(DB, [pair], unknown=[job.pk] if unknown else []).moved


def _disown(job: Job, *, begun: bool) -> bool:
    pair = (job.pk, job.fencing_token)
    return transitions.disown(DB, WORKER, begun=[pair] if begun else [], by="worker-2") == 1


def _reap(job: Job) -> bool:
    return transitions.reap(DB, by="worker-2") == 1


def _requeue(job: Job) -> bool:
    return transitions.requeue(DB, [job.pk]) == {job.pk}


def _prune_older(job: Job) -> bool:
    if job.state in FINISHED:
        rows.move_clock(job.pk, "finished_at", -2 * 86_400)  # longer ago than keys are kept
    return transitions.prune_older(DB, FINISHED, older_seconds=0, after=job.pk - 1)[0] == 1


LAST = {"max_attempts": 1}

# The first driver of each verb is the one that races.
DRIVERS: Mapping[str, Mapping[str, Driver]] = {
    "promote": {"due": Driver(lambda job: transitions.promote(DB) == 1, State.QUEUED)},
    "adopt": {"known": Driver(lambda job: transitions.adopt(DB, [job.task]) == 1, State.QUEUED)},
    "claim": {
        "free slot": Driver(lambda job: [held.id for held in rows.claim()] == [job.pk], State.RUNNING),
    },
    "heartbeat": {
        "extend": Driver(
            lambda job: job.pk in transitions.heartbeat(DB, [(job.pk, job.fencing_token)], lease_seconds=LEASE).moved,
            State.RUNNING,
        )
    },
    "settle": {str(state): _settle(state) for state in (State.SUCCEEDED, State.RETRYING, State.FAILED, State.DEAD)},
    "release": {
        "not begun": Driver(lambda job: _release(job, unknown=False), State.QUEUED),
        "unknown task": Driver(lambda job: _release(job, unknown=True), State.SCHEDULED),
    },
    "reap": {
        "attempts left": Driver(_reap, State.RETRYING),
        "last attempt": Driver(_reap, State.DEAD, LAST),
        "overdue": Driver(
            lambda job: transitions.reap(DB, overdue=[(job.pk, job.fencing_token)], by="supervisor") == 1,
            State.RETRYING,
        ),
    },
    "disown": {
        "begun": Driver(lambda job: _disown(job, begun=True), State.RETRYING),
        "begun, last attempt": Driver(lambda job: _disown(job, begun=True), State.DEAD, LAST),
        "not begun": Driver(lambda job: _disown(job, begun=False), State.QUEUED),
    },
    "cancel": {
        "by hand": Driver(lambda job: transitions.cancel(DB, [job.pk]) == {job.pk}, State.CANCELLED),
    },
    "requeue": {
        "now": Driver(_requeue, State.QUEUED),
        "run_after ahead": Driver(_requeue, State.SCHEDULED, run_after_ahead=True),
    },
    "run_now": {
        "by hand": Driver(lambda job: transitions.run_now(DB, [job.pk]) == {job.pk}, State.QUEUED),
    },
    "prune": {
        "old": Driver(lambda job: transitions.prune(DB) == 1, None),
        "older than": Driver(_prune_older, None),
    },
    "delete": {"by hand": Driver(lambda job: transitions.delete(DB, [job.pk]) == {job.pk}, None)},
    # On a row that exists, enqueueing is asking for its key once more.
    "enqueue": {
        "taken key": Driver(lambda job: transitions.enqueue(DB, same_key(job)) != _as_it_is(job), None),
    },
    "enqueue_many": {
        "taken key": Driver(lambda job: transitions.enqueue_many(DB, [same_key(job)]) != [_as_it_is(job)], None),
    },
}


def same_key(job: Job) -> transitions.NewJob:
    return rows.new(job.task, idempotency_key=job.idempotency_key, priority=7, args=["other"])


def _as_it_is(job: Job) -> transitions.Enqueued:
    return transitions.Enqueued(job.pk, created=False)


def driver(verb: str) -> Driver:
    """The one that races."""
    return next(iter(DRIVERS[verb].values()))


def make_ripe(state: State, **columns: Any) -> Job:
    return rows.make_job(state, **{**RIPE[state], **columns})


def rivals() -> Iterator[tuple[State, str, str]]:
    """Every ordered pair of verbs that may move the same state."""
    for state in State:
        verbs = [verb for verb, transition in TRANSITIONS.items() if state in transition.sources]
        for first in verbs:
            for second in verbs:
                driver(first), driver(second)
                yield state, first, second


def assert_lawful(row: dict[str, Any] | None) -> None:
    """What holds for a row whatever happened to it."""
    if row is None:
        return
    state = State(row["state"])
    assert (state == State.RUNNING) == (row["lease_expires_at"] is not None)
    assert (state in FINISHED) == (row["finished_at"] is not None)
    assert state in FINISHED or row["prune_after"] is None
    assert state == State.SUCCEEDED or row["result"] is None
    assert state != State.SCHEDULED or row["run_after"] is not None
    assert 0 <= row["attempts"] <= row["max_attempts"]
    assert row["attempts"] <= row["fencing_token"]
    assert len(row["history"]) <= row["fencing_token"]

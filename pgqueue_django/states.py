"""The states of a job and the whole table of arrows between them.

This table is the law: ``transitions.py`` has one function per verb and guards its UPDATE with the sources
named here; the tests build their verb x state matrix and their races from it. Values are stored as text, so
that a person with psql can read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    SCHEDULED = "scheduled"  # run_after is ahead; or handed back by workers that do not know the task
    QUEUED = "queued"  # ready: any worker may claim it
    RUNNING = "running"  # leased to one worker
    RETRYING = "retrying"  # an attempt failed; run_after says when the next one is due
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the handler said that no attempt can succeed, or the payload does not fit
    DEAD = "dead"  # no attempts left: the dead letters
    CANCELLED = "cancelled"


WAITING = (State.SCHEDULED, State.RETRYING)
FINISHED = (State.SUCCEEDED, State.FAILED, State.DEAD, State.CANCELLED)


@dataclass(frozen=True)
class Transition:
    """From any of ``sources`` to one of ``targets``. No sources: the job is made. No targets: it is gone."""

    sources: tuple[State, ...]
    targets: tuple[State, ...]


TRANSITIONS = {
    "enqueue": Transition((), (State.QUEUED, State.SCHEDULED)),
    "enqueue_many": Transition((), (State.QUEUED, State.SCHEDULED)),
    "promote": Transition(WAITING, (State.QUEUED,)),
    "adopt": Transition((State.SCHEDULED,), (State.QUEUED,)),
    "claim": Transition((State.QUEUED,), (State.RUNNING,)),
    "heartbeat": Transition((State.RUNNING,), (State.RUNNING,)),
    "settle": Transition((State.RUNNING,), (State.SUCCEEDED, State.RETRYING, State.FAILED, State.DEAD)),
    "release": Transition((State.RUNNING,), (State.QUEUED, State.SCHEDULED)),
    "reap": Transition((State.RUNNING,), (State.RETRYING, State.DEAD)),
    "disown": Transition((State.RUNNING,), (State.QUEUED, State.RETRYING, State.DEAD)),
    "cancel": Transition((State.SCHEDULED, State.QUEUED, State.RETRYING, State.RUNNING), (State.CANCELLED,)),
    "requeue": Transition(FINISHED, (State.QUEUED, State.SCHEDULED)),
    "run_now": Transition(WAITING, (State.QUEUED,)),
    "prune": Transition(FINISHED, ()),
    "delete": Transition(FINISHED, ()),
}

"""What an attempt ended in, as data.

The executor makes one of these and never touches the table; ``transitions.settle`` and ``transitions.release``
carry it there. A lost lease is no outcome: it is what the fence answers when an outcome comes too late.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .states import State


class Kind(StrEnum):
    """Why an attempt failed, as it stands in the job's history."""

    ERROR = "error"  # the handler raised
    RETRY = "retry"  # the handler raised Retry
    PERMANENT = "permanent"  # the handler raised PermanentError
    PAYLOAD = "payload"  # the arguments no longer fit the task
    RESULT = "result"  # the result cannot be stored
    TIMEOUT = "timeout"
    TRANSACTION = "transaction"  # the handler left a transaction open
    LEASE_EXPIRED = "lease_expired"  # nobody heard of the attempt until its lease ended
    WORKER_LOST = "worker_lost"  # the worker process is known to be dead


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt: what the history keeps of it. All texts are storable (see payload.storable_text)."""

    kind: Kind
    error_type: str
    message: str
    traceback: str = ""

    def entry(self) -> dict[str, Any]:
        return {
            "kind": str(self.kind),
            "error_type": self.error_type,
            "message": self.message,
            "traceback": self.traceback,
        }


@dataclass(frozen=True, slots=True)
class Succeeded:
    result: str  # JSON text

    state = State.SUCCEEDED


@dataclass(frozen=True, slots=True)
class Retried:
    failure: Failure
    delay: float  # seconds from now, on the database's clock

    state = State.RETRYING


@dataclass(frozen=True, slots=True)
class Failed:
    failure: Failure

    state = State.FAILED


@dataclass(frozen=True, slots=True)
class DeadLettered:
    failure: Failure

    state = State.DEAD


@dataclass(frozen=True, slots=True)
class Released:
    """Given back, attempt refunded: not begun, or interrupted by a stop. ``unknown``: no such task here."""

    unknown: bool = False


Settled = Succeeded | Retried | Failed | DeadLettered
Outcome = Settled | Released

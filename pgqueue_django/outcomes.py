"""What an attempt ended in, as data.

The executor makes one of these and never touches the table; ``transitions.settle`` and ``transitions.release``
carry it there. A lost lease is no outcome: it is what the fence answers when an outcome comes too late.
"""

from __future__ import annotations

import hashlib
import re
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


_FRAME = re.compile(r'^  File "([^"]*)", line \d+, in (.*)$', re.M)
# Where packages are installed, the standard library (also as frozen modules), and our own modules.
_LIBRARY = re.compile(
    r"[/\\](?:site-packages|dist-packages)[/\\]"
    r"|[/\\]lib(?:64)?[/\\]python3(?:\.\d+t?)?[/\\]|[/\\]python3\d+[/\\]lib[/\\]|^<frozen "
    r"|[/\\]pgqueue_django[/\\](?:(?:admin|api|dashboard|management|testing|worker)[/\\].*|\w+\.py)$",
    re.I,
)
# What differs from one occurrence of an error to the next: UUIDs, addresses, other hex numbers, numbers.
_VARIABLE = re.compile(
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|0x[0-9a-f]+|\b(?=\w*\d)[0-9a-f]{8,}\b|\d+", re.I
)
_COMPARED = 300  # characters of a message


def is_library(path: str) -> bool:
    """Whether the file of a frame is none of the project's own, as far as its path tells: it may be of another host."""
    return _LIBRARY.search(path) is not None


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt: what the history keeps of it. All texts are storable (see payload.storable_text)."""

    kind: Kind
    error_type: str
    message: str
    traceback: str = ""

    @property
    def fingerprint(self) -> str:
        """The same for failures that look like one error: their type, where it was raised, and what the message says.

        Where: the innermost frame that is not of a library, without its line, which another version may have moved.
        Without numbers and ids in the message. 16 hex digits.
        """
        frames = _FRAME.findall(self.traceback)
        own = [frame for frame in frames if not is_library(frame[0])]
        place = "/".join((own or frames)[-1]) if frames else ""
        message = _VARIABLE.sub("#", self.message.partition("\n")[0][:_COMPARED])
        return hashlib.sha256("\0".join((self.error_type, place, message)).encode()).hexdigest()[:16]

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

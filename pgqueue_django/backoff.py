"""How long a job waits before its next attempt."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from .exceptions import MAX_DELAY, InvalidOption


@dataclass(frozen=True)
class Backoff:
    """Exponential: ``base * factor ** (attempt - 1)`` seconds, at most ``cap``; half of it fixed, half random.

    The random half spreads jobs that failed together; the fixed half keeps a retry from coming at once.
    Raises InvalidOption unless 0 < base <= cap <= 366 days and 1 <= factor <= 1000.
    """

    base: float = 2
    factor: float = 2
    cap: float = 3600

    def __post_init__(self) -> None:
        numbers = (self.base, self.factor, self.cap)
        if not all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers):
            raise InvalidOption(f"{self!r}: base, factor and cap are numbers.")
        if not (0 < self.base <= self.cap <= MAX_DELAY and 1 <= self.factor <= 1000):
            raise InvalidOption(f"{self!r}: needs 0 < base <= cap <= {MAX_DELAY} s and 1 <= factor <= 1000.")

    def delay(self, attempt: int) -> float:
        """Seconds to wait after failed attempt ``attempt`` (the first is 1)."""
        full = self.base
        if self.factor > 1:
            # The exponent is capped, not the power: 2.0 ** 1100 raises OverflowError, and a retry that
            # cannot compute its delay is a lost job (procrastinate #1462).
            to_cap = math.log(self.cap / self.base) / math.log(self.factor)
            full = min(self.cap, self.base * self.factor ** min(max(attempt, 1) - 1, to_cap))
        return full / 2 + random.random() * full / 2  # noqa: S311 (spreads load, guards nothing)

    def numbers(self) -> dict[str, float]:
        """What is kept in the row, so that reaping a job needs no code of its task."""
        return {"base": self.base, "factor": self.factor, "cap": self.cap}

    @cached_property
    def text(self) -> str:
        """The numbers as JSON. Kept: writing them anew took 2.3 of the 29 us in which a call becomes a NewJob."""
        return json.dumps(self.numbers())

    @classmethod
    def from_numbers(cls, numbers: object) -> Backoff:
        """The way back. Numbers that somebody broke in the row give the default: reaping must go on."""
        try:
            return cls(**numbers) if isinstance(numbers, Mapping) else cls()
        except (TypeError, InvalidOption):
            return cls()

    @classmethod
    def from_text(cls, text: str) -> Backoff:
        """From JSON text. What PostgreSQL takes and Python does not (1e5000, 10,000 brackets) gives the default."""
        try:
            return cls.from_numbers(json.loads(text))
        except (ValueError, RecursionError):
            return cls()

"""What to claim: from which queues, in which order, how much at once, and when to look again.

Owns what the loop knows of the jobs that it does not hold. Values in, values out: nothing here knows the database, or
waits.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from django.db.models import QuerySet

from pgqueue_django import transitions
from pgqueue_django.models import Job
from pgqueue_django.worker.executor import Attempt

_PREFETCH_SECONDS = 0.05  # how far ahead of its slots a worker claims
_PREFETCH_MOST = 960
_FIRST_POLL = 0.005  # after running dry; doubled up to the poll interval
_FEW_WORKERS = 4  # so many may all come for one job
_CROWD_SECONDS = 0.003  # of waiting for each of the others, where there are more
_QUEUES_SECONDS = 1.0  # how long the list of ready queues is believed
_HEAD_SECONDS = 1.0  # how long claims then go on where the last one ended
_WOKEN_HEAD_SECONDS = 0.1  # and after a wake-up


class Supply:
    """Which queues to claim from, in which order, and when to look again."""

    def __init__(self, queues: Sequence[str], excluded: Collection[str], poll_interval: float) -> None:
        self._named = list(queues)
        self._excluded = frozenset(excluded)
        self._poll_interval = poll_interval
        self._ready: list[str] = list(queues)
        self._believed_until = 0.0
        self._doubtful = True
        self._pause = _FIRST_POLL
        self._told: set[str] = set()
        self._resume: dict[str, tuple[tuple[int, float, int], float]] = {}
        self._paused: frozenset[str] = frozenset()
        self._pauses_at = 0.0
        self.next_claim_at = 0.0
        self._woken = False  # since the last look
        self._in_vain = False  # the last look after a wake-up found nothing
        self.dry = False  # the last look found less than there was room for

    def takes(self, name: str) -> bool:
        return name not in self._excluded and (not self._named or name in self._named)

    def of_mine(self, jobs: QuerySet[Job]) -> QuerySet[Job]:
        if self._named:
            jobs = jobs.filter(queue_name__in=self._named)
        without = self._excluded | self._paused
        return jobs.exclude(queue_name__in=without) if without else jobs

    @property
    def pauses_are_stale(self) -> bool:
        return time.monotonic() >= self._pauses_at

    def take_pauses(self, names: frozenset[str]) -> None:
        """Nothing of these is claimed until the next look at them."""
        self._paused = names
        self._pauses_at = time.monotonic() + _QUEUES_SECONDS

    @property
    def stale(self) -> bool:
        return not self._named and (self._doubtful or time.monotonic() >= self._believed_until)

    def refresh(self, names: Sequence[str]) -> None:
        # In the order of their turns: by the alphabet, the second one would be the first after each refresh.
        ready = [name for name in names if self.takes(name)]
        known = [name for name in self._ready if name in set(ready)]
        self._ready = known + [name for name in ready if name not in set(known)]
        self._believed_until = time.monotonic() + _QUEUES_SECONDS
        self._doubtful = False

    def in_turn(self) -> list[str]:
        """The queues to look at: as they were named, or from a different first one each time."""
        if self._named:
            return [name for name in self._named if name not in self._excluded and name not in self._paused]
        if self._ready:
            self._ready.append(self._ready.pop(0))
        return [name for name in self._ready if name not in self._paused]

    def resume(self, name: str) -> tuple[int, float, int] | None:
        """The place in this queue to go on from; None: from its head."""
        place, until = self._resume.get(name, (None, 0.0))
        return place if time.monotonic() < until else None

    def walked(self, name: str, place: tuple[int, float, int] | None, *, resumed: bool, slow: bool) -> None:
        """A claim has found all that it asked for, the last one at ``place``; None: fewer.

        If a walk from the head was slow the next ones go on from there, for a second: an old snapshot (a report,
        a dump) keeps the dead entries of all that was claimed since at the head of the index. If such a one is
        slow, too, then that is not why.
        """
        _, until = self._resume.pop(name, (None, 0.0))
        now = time.monotonic()
        if place is None or (resumed and (slow or now >= until)):
            return
        if resumed:
            self._resume[name] = place, until
        elif slow:
            self._resume[name] = place, now + _HEAD_SECONDS

    def ran_dry(self, name: str) -> None:
        if not self._named and name in self._ready:
            self._ready.remove(name)

    def woken(self, hint: str | None, *, others: int = 0, busy: bool = False) -> None:
        """A notification came; ``hint``: for this queue, None: something may have been missed.

        It wakes all workers, and one of many gets the job. So who has work, or came in vain the last time, comes
        after a random moment that grows with their number, and makes one look of all notifications until then; the
        first of them is there after 3 ms, and who had the last job and is idle again comes at once.
        """
        window = _CROWD_SECONDS * max(0, others - _FEW_WORKERS) if hint is not None and (busy or self._in_vain) else 0.0
        wait = random.random() * window  # noqa: S311
        self.next_claim_at = min(self.next_claim_at, time.monotonic() + wait) if wait else 0.0
        self._pause = min(max(_FIRST_POLL, window), self._poll_interval)
        self._woken = True
        # Not at once, or each of many wake-ups would be one more walk over all dead entries.
        soon = time.monotonic() + _WOKEN_HEAD_SECONDS
        for name, (place, until) in list(self._resume.items()):
            if hint is None or hint == name:
                self._resume[name] = place, min(until, soon)
        # Who is told where the jobs are need not ask; what other queues have is asked every second all the same.
        self._doubtful = hint is None
        if hint is not None and hint not in self._ready and not self._named:
            self._ready.append(hint)

    def claimed(self, *, full: bool, some: bool) -> None:
        """After a look: at once again if there was more than room for, soon if there was some, else later and later."""
        self.dry = not full
        if some:
            self._pause = _FIRST_POLL
            self._in_vain = False
        elif self._woken:
            self._in_vain = True
        self._woken = False
        if full:
            self.next_claim_at = 0.0
        else:
            self.next_claim_at = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, self._poll_interval)
            self._doubtful = True

    def first_time(self, task: str) -> bool:
        if task in self._told or len(self._told) > 1000:
            return False
        self._told.add(task)
        return True


class Caps:
    """How many attempts of one queue this process has at a time, where a queue has a limit of its own.

    Counted from the claim until the handler has returned: one whose time is over still takes what the limit is for.
    """

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._limits = dict(limits)
        self._taken: Counter[str] = Counter()

    def room(self, name: str, room: int) -> int:
        """How many of ``room`` may be of this queue."""
        limit = self._limits.get(name)
        return room if limit is None else max(0, min(room, limit - self._taken[name]))

    def took(self, name: str) -> None:
        if name in self._limits:
            self._taken[name] += 1

    def gave(self, name: str) -> bool:
        """One has left; whether that makes room where there was none."""
        if name not in self._limits:
            return False
        self._taken[name] -= 1
        return self._taken[name] == self._limits[name] - 1


class Prefetch:
    """How many jobs to hold beyond the slots: what these finish in 50 ms, by the tasks' own mean run times.

    None while a task's mean is unknown or long: a job that takes seconds must not wait behind another one here
    while some other worker is idle.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._means: dict[str, float] = {}  # seconds, by task
        self._recent: set[str] = set()  # tasks of the last claims
        self._blocked = False
        self._short = False
        self._strangers = 0
        self._ended_at = 0.0

    def ahead(self, *, busy: bool) -> int:
        """``busy``: no slot is free."""
        if self._blocked or self._short:
            return 0
        if busy and time.monotonic() > self._ended_at + _PREFETCH_SECONDS:
            # Whatever the mean says, they end nothing now: what another worker has given back for that reason
            # would wait here for as long again.
            return 0
        if self._strangers:
            return self._strangers
        if not self._recent:
            return 0
        longest = max(self._means.get(task, float("inf")) for task in self._recent)
        return min(_PREFETCH_MOST, int(self._slots * _PREFETCH_SECONDS / max(longest, 1e-6)))

    def claimed(self, attempts: Sequence[Attempt], strangers: int) -> None:
        """``strangers``: how many more were claimed whose task is unknown here.

        While that is all there is, as after a deploy that this worker is not part of, claims double: a hundred
        thousand of them, claimed by the slot, keep the jobs behind them waiting for minutes.
        """
        if attempts:
            self._recent = {attempt.job.task for attempt in attempts}
            self._strangers = 0
        elif strangers:
            self._short = False
            self._strangers = min(max(0, transitions.BATCH - self._slots), 2 * max(self._strangers, self._slots))

    def overshot(self) -> None:
        """Jobs waited here for longer than they should: no more ahead until one has ended."""
        self._blocked = True

    def fell_short(self) -> None:
        """The last claim found less than there was room for: no more ahead until a slot is free."""
        self._short = True

    def ended(self, attempt: Attempt) -> None:
        self._short = False
        if attempt.begun_at is None:
            return
        self._blocked = False
        self._ended_at = time.monotonic()
        # Not until now: the loop may hear of it late, and of many at once.
        seconds = (attempt.ended_at or time.monotonic()) - attempt.begun_at
        mean = self._means.get(attempt.job.task)
        # A long run counts at once, short ones have to convince: holding too much is worse than too little.
        self._means[attempt.job.task] = seconds if mean is None or seconds > 4 * mean else 0.9 * mean + 0.1 * seconds

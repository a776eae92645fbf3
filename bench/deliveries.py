"""What happens to jobs while their workers or their database die: a backlog with a ledger, and the account of it.

The ledger is that of the chaos tests (``testproject/ledger.py``): handlers write to a table of their own over a
connection of their own, a trigger writes each change of a row. Shared by ``bench.crash`` and ``bench.restart``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bench import meter, record, workers
from bench.lab import Lab
from pgqueue_django.states import FINISHED, State
from testproject import ledger
from testproject.ledger import Ack, History

MILLISECONDS = (10, 50)  # that a handler takes, at least and at most
_LOST_RULES = {"lost", "not final"}


def prepare(lab: Lab) -> None:
    lab.run(ledger.SCHEMA)


class Stream:
    """So many jobs, enqueued as they are wanted; ``acks``: what ``enqueue_many`` said of them after its commit."""

    def __init__(self, lab: Lab, jobs: int, dice: random.Random) -> None:
        lab.empty()
        lab.run(f"TRUNCATE {', '.join(ledger.TABLES)}")
        lab.tidy()
        self._lab = lab
        self._left = jobs
        self._dice = dice
        self.acks: list[Ack] = []

    def enqueue(self, count: int) -> None:
        from bench import tasks
        from pgqueue_django import enqueue_many

        count = max(0, min(count, self._left))
        self._left -= count
        made = enqueue_many([tasks.deliver.call(self._dice.randint(*MILLISECONDS)) for _ in range(count)])
        self.acks += [Ack(one.id, one.created, str(one.id)) for one in made]

    def unfinished(self) -> int:
        """Jobs that have not ended, and jobs that are still to be enqueued."""
        states = [str(state) for state in FINISHED]
        return self._left + int(self._lab.ask("SELECT count(*) FROM pgqueue_job WHERE state <> ALL(%s)", [states]))

    def close(self) -> None:
        from django.db import connections

        connections["default"].close()


def environment(lab: Lab) -> dict[str, str]:
    url = lab.url
    return {"DJANGO_SETTINGS_MODULE": "bench.settings", "DATABASE_URL": url, "LEDGER_URL": url}


def command(*more: str, lease: float, slots: int) -> list[str]:
    return workers.command(slots=slots, more=["--lease", f"{lease:g}", *more])


def in_state(lab: Lab, state: State) -> int:
    return int(lab.ask("SELECT count(*) FROM pgqueue_job WHERE state = %s", [str(state)]))


def account(history: History, jobs: int) -> dict[str, Any]:
    """What the ledgers say of so many jobs: see ``is_clean`` for what must be 0 in it."""
    violations = ledger.check(history)
    rows = {job.id: job for job in history.jobs}
    states = Counter(job.state for job in history.jobs)
    completed = {found.job_id for found in history.deliveries if found.ended_at is not None}
    ended = {job.id for job in history.jobs if job.state in FINISHED}
    # Acknowledged, and there is no row, or it says succeeded and nobody did it.
    lost = [
        ack.id
        for ack in history.acks
        if ack.id not in rows or (rows[ack.id].state == State.SUCCEEDED and ack.id not in completed)
    ]
    gone = sum(ack.id not in rows for ack in history.acks)
    causes = Counter(found.cause for found in ledger.duplicates(history))
    deliveries = Counter(found.job_id for found in history.deliveries)
    kinds = Counter(hold.end.kind for hold in ledger.lost_holds(history) if hold.end)
    # A lease that expired with no kill is told apart and explains what it did; nothing else is forgiven.
    wrong = [str(one) for one in violations if one.rule != "lease" and one.rule not in _LOST_RULES]
    return {
        "jobs": jobs,
        "succeeded": states[State.SUCCEEDED],
        "dead": states[State.DEAD],
        "lost": len(lost),
        "unfinished": jobs - len(ended) - gone,
        "deliveries": len(history.deliveries),
        "duplicates": sum(causes.values()),
        "duplicates_percent": 100 * sum(causes.values()) / jobs,
        "duplicates_by_kill": causes["kill"],
        "duplicates_by_lease": causes["lease"],
        "unexplained": causes[None],
        "most_deliveries": max(deliveries.values(), default=0),
        "failed_attempts": sum(len(job.failed_attempts) for job in history.jobs),
        "expired": kinds["lease_expired"],
        "disowned": kinds["worker_lost"],
        "expired_unkilled": sum(one.rule == "lease" for one in violations),
        "violations": len(wrong),
        "wrong": wrong[:20],
    }


def seconds(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{name}_{part}_s": value for part, value in meter.percentiles(values).items() if part != "p99"}


def finish(bench: record.Bench, words: str, key: str, values: Sequence[str], rows: Sequence[tuple[str, str]]) -> int:
    """The table, the goals and the exit code of such a benchmark: 1 if a job was lost or a thing is unexplained."""
    print()
    heads, lines = record.columns(bench.document["cells"], key, values, rows)
    for line in [heads, *lines]:
        print(f"{line[0].replace('**', ''):<62}" + "".join(f"{text:>24}" for text in line[1:]))
    for goal, figure in (
        (f"{words}: jobs lost", "lost"),
        (f"{words}: jobs that had not ended in time", "unfinished"),
        (f"{words}: duplicate deliveries that nothing in the ledger explains", "unexplained"),
        (f"{words}: other broken promises in the ledger", "violations"),
    ):
        found = bench.values(figure)
        jobs = int(sum(bench.values("jobs")))
        bench.ratio(goal, sum(found) if found else None, most=0, why=f"{jobs:,} jobs in {len(found)} runs")
    for run in bench.runs:
        for line in run.get("wrong", ()):
            print(f"wrong: {record.words(run['cell'])}: {line}")
    return bench.finish() or int(not all(map(is_clean, bench.runs)))


def is_clean(run: Mapping[str, Any]) -> bool:
    return "error" not in run and not any(run[figure] for figure in ("lost", "unfinished", "unexplained", "violations"))

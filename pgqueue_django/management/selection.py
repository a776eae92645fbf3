"""Which jobs an operator means: some ids, or all of one state in one queue, of one task, or anywhere.

By state they are taken in bounded steps along an index. Only what is still in that state as it is moved: a dead job
that another operator has sent back may have succeeded meanwhile. Each at most once, and none that came later: what is
requeued may be dead again before the last step, and producers go on.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Collection, Sequence
from typing import Any

from django.core.management.base import CommandError
from django.db import connections, router, transaction

from pgqueue_django import audit, snapshot, transitions
from pgqueue_django.audit import Action
from pgqueue_django.management import trails
from pgqueue_django.management.arguments import did_you_mean
from pgqueue_django.models import Job, JobQuerySet
from pgqueue_django.options import QUEUE_NAME
from pgqueue_django.states import State


def add_arguments(parser: ArgumentParser, states: Sequence[State]) -> None:
    parser.add_argument("ids", nargs="*", type=int, metavar="ID", help="these jobs")
    parser.add_argument("--state", choices=[str(state) for state in states], help="or all that are in this state")
    parser.add_argument("--queue", help="of this queue")
    parser.add_argument("--task", help="of this task (import path)")
    parser.add_argument("--all", action="store_true", help="of all queues and tasks")
    parser.add_argument("--limit", type=int, help="at most so many")
    trails.add_reason(parser)
    add_database(parser)


def add_database(parser: ArgumentParser) -> None:
    parser.add_argument("--database", help="alias of the jobs' database (the router's for the Job model)")


def alias(given: dict[str, Any]) -> str:
    """The database that was asked for. Raises CommandError, exit code 2."""
    using: str = given["database"] or router.db_for_write(Job)
    if using not in connections:
        raise CommandError(
            f"--database {using}: not in DATABASES ({', '.join(connections)}).{did_you_mean(using, list(connections))}",
            returncode=2,
        )
    return using


def checked_queue(using: str, name: str) -> str:
    """A queue that has, or had, jobs. Raises CommandError, exit code 2."""
    if not QUEUE_NAME.fullmatch(name):
        raise CommandError(f"--queue {name}: give 1 to 63 characters A-Za-z0-9_.-", returncode=2)
    taken = snapshot.take(using)
    known = {depth.queue_name for depth in taken.depths} | {tally.queue_name for tally in taken.tallies}
    if name not in known and not Job.objects.using(using).ready(name).exists():
        raise CommandError(f"--queue {name}: no job was ever seen there.{did_you_mean(name, known)}", returncode=2)
    return name


def chosen(using: str, given: dict[str, Any]) -> JobQuerySet:
    """The jobs of the state, queue and task that were asked for, in the order of their index."""
    jobs = Job.objects.using(using).in_state(State(given["state"]))
    if given["queue"]:
        jobs = jobs.filter(queue_name=checked_queue(using, given["queue"]))
    if given["task"]:
        jobs = jobs.filter(task=given["task"])
    return jobs


def move(
    using: str, given: dict[str, Any], action: Action, verb: Callable[[str, Collection[int], State | None], set[int]]
) -> tuple[set[int], int]:
    """Apply ``verb`` to the jobs that were asked for; the ids that were named and did not move, and how many did.

    The audit log is told of it as ``action``.

    Raises CommandError, exit code 2, for a choice that is none or two.
    """
    if bool(given["ids"]) == bool(given["state"]):
        raise CommandError("Give either some ids, or --state with --queue, --task or --all.", returncode=2)
    if given["ids"]:
        ids = sorted(set(given["ids"]))
        if stray := [id for id in ids if not 0 < id < 2**63]:
            raise CommandError(f"{stray[0]} is no job's id.", returncode=2)
        trail = trails.trail(using, given, action, audit.told("job", ids))
        moved: set[int] = set()
        for start in range(0, len(ids), transitions.BATCH):
            step = ids[start : start + transitions.BATCH]
            with transaction.atomic(using=using):
                done = verb(using, step, None)
                trail.add(len(done), len(step) - len(done))
            moved |= done
        return set(ids) - moved, len(moved)
    if not (given["queue"] or given["task"] or given["all"]):
        raise CommandError("--state alone means all queues: say --all, or name a --queue or --task.", returncode=2)
    limit = given["limit"]
    if limit is not None and limit < 1:
        raise CommandError("--limit is at least 1.", returncode=2)
    state = State(given["state"])
    newest = Job.objects.using(using).order_by("-id").values_list("id", flat=True).first() or 0
    jobs = chosen(using, given).filter(pk__lte=newest)
    trail = trails.trail(using, given, action, _told(given))
    count = 0
    while limit is None or count < limit:
        most = transitions.BATCH if limit is None else min(transitions.BATCH, limit - count)
        ids = list(jobs.values_list("id", flat=True)[:most])
        with transaction.atomic(using=using):
            moved = verb(using, ids, state)
            trail.add(len(moved), len(ids) - len(moved))
        count += len(moved)
        if state in (State.FAILED, State.DEAD):
            if not ids:
                break
            jobs = jobs.filter(pk__lt=min(ids))  # its index is in the order of the ids
        elif not moved:
            break
    return set(), count


def _told(given: dict[str, Any]) -> str:
    words = {"queue": given["queue"], "task": given["task"], "limit": given["limit"]}
    return ", ".join([f"{given['state']} jobs", *(f"{name}={value}" for name, value in words.items() if value)])


def tell(using: str, done: str, count: int, left: Collection[int]) -> str:
    """``3 requeued, 1 not: #5 is running``"""
    if not left:
        return f"{count} {done}"
    states = dict(Job.objects.using(using).filter(pk__in=list(left)[:20]).values_list("id", "state"))
    why = ", ".join(f"#{id} is {states[id]}" if id in states else f"#{id} does not exist" for id in sorted(left)[:20])
    return f"{count} {done}, {len(left)} not: {why}{' …' if len(left) > 20 else ''}"

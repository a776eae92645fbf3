"""Rows as JSON: what each kind of actor sees of them, in the words of the columns.

Moments are RFC 3339 in UTC with microseconds, lengths are seconds, ids are integers. What a job was given, has returned
and has failed of is for those with ``view_job_payload``; for all others it is not there at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from pgqueue_django import problems, stats
from pgqueue_django.access import Actor
from pgqueue_django.models import Queue, Schedule, Worker
from pgqueue_django.snapshot import Snapshot
from pgqueue_django.tasks import Task

SUMMARY = (
    *("id", "task", "queue_name", "priority", "state", "run_after", "enqueued_at", "started_at", "finished_at"),
    *("attempts", "max_attempts", "worker_id", "label", "idempotency_key"),
)
"""Columns of a job in a list; all of them are in the row itself, and none is large."""
_DETAIL = (*SUMMARY, "first_started_at", "prune_after", "lease_expires_at", "parked_at", "progress")
_PAYLOAD = ("args", "kwargs", "result")
DETAIL = (*_DETAIL, "history", *_PAYLOAD)
"""Columns of one job."""

_OPEN_ATTEMPT = ("attempt", "worker", "started_at", "ended_at", "kind", "error_type")


def moment(value: datetime | None) -> str | None:
    """``2026-11-30T12:00:00.000000Z``"""
    if value is None:
        return None
    aware = timezone.make_aware(value, timezone.get_default_timezone()) if timezone.is_naive(value) else value
    return aware.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def url(request: HttpRequest, name: str, **arguments: object) -> str:
    """The path of another view of the API, wherever the project has put it."""
    match = request.resolver_match
    return reverse(f"{match.namespace}:{name}" if match and match.namespace else name, kwargs=arguments)


def summary(request: HttpRequest, actor: Actor, row: Mapping[str, Any]) -> dict[str, Any]:
    """A job in a list: of ``SUMMARY``."""
    return _columns(request, actor, row, SUMMARY)


def job(request: HttpRequest, actor: Actor, row: Mapping[str, Any]) -> dict[str, Any]:
    """One job: of ``DETAIL``."""
    may_read = actor.may("view_job_payload")
    found = _columns(request, actor, row, _DETAIL)
    if not may_read:
        found["progress"] = _fraction(row["progress"])
    found["history"] = [_attempt(one, may_read) for one in _list(row["history"])]
    if may_read:
        found |= {name: row[name] for name in _PAYLOAD}
    return found


def _columns(request: HttpRequest, actor: Actor, row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    values = {name: moment(row[name]) if isinstance(row[name], datetime) else row[name] for name in names}
    if not actor.may("view_job_payload"):
        del values["idempotency_key"]
    return {"id": values.pop("id"), "url": url(request, "api_job", id=row["id"]), **values}


def _fraction(progress: Any) -> dict[str, Any] | None:
    """Of the progress what anybody may see; plain SQL can have written anything."""
    fraction = progress.get("fraction") if isinstance(progress, dict) else None
    return {"fraction": fraction} if isinstance(fraction, int | float) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []  # plain SQL can write anything


def _attempt(entry: Any, may_read: bool) -> Any:
    if may_read:
        return entry
    return {name: entry.get(name) for name in _OPEN_ATTEMPT} if isinstance(entry, dict) else {}


def enqueued(request: HttpRequest, id: int, created: bool, state: str | None) -> dict[str, Any]:
    """What anybody who may enqueue learns of his job."""
    return {"id": id, "url": url(request, "api_job", id=id), "created": created, "state": state}


def queue(name: str, taken: Snapshot, paused: Queue | None) -> dict[str, Any]:
    depths = [depth for depth in taken.depths if depth.queue_name == name]
    return {
        "name": name,
        "jobs": {str(depth.state): depth.jobs for depth in depths},
        "capped": sorted(str(depth.state) for depth in depths if depth.capped),
        "oldest_due_seconds": taken.oldest_due.get(name),
        **pause(paused),
    }


def pause(row: Queue | None) -> dict[str, Any]:
    if row is None:
        return {"paused": False}
    return {
        "paused": True,
        "paused_at": moment(row.paused_at),
        "resume_at": moment(row.resume_at),
        "reason": row.reason,
        "actor": row.actor,
    }


def worker(row: Worker, alive: bool) -> dict[str, Any]:
    plain = ("id", "name", "host", "pid", "version", "queues", "concurrency", "running", "lease_seconds")
    return {
        **{name: getattr(row, name) for name in (*plain, "memory_bytes", "skew_seconds")},
        "started_at": moment(row.started_at),
        "heartbeat_at": moment(row.heartbeat_at),
        "alive": alive,
    }


def schedule(row: Schedule, actor: Actor) -> dict[str, Any]:
    may_read = actor.may("view_job_payload") or actor.may("change_schedule")
    plain = ("name", "task", "line", "zone", "missed", "overlap", "is_code", "is_enabled", "skip_next")
    moments = ("next_at", "last_tick", "last_fired_at", "retired_at")
    return {
        **{name: getattr(row, name) for name in plain},
        # What an error says may be an argument.
        "error": row.error if may_read or not row.error else "failing",
        **{name: moment(getattr(row, name)) for name in moments},
        "late_seconds": row.late_seconds,
        "last_job_id": row.last_job_id,
        **({"args": row.args, "kwargs": row.kwargs} if may_read else {}),
    }


def task(found: Task[Any, Any]) -> dict[str, Any]:
    return {
        "task": found.path,
        "queue_name": found.queue_name,
        "priority": found.priority,
        "max_attempts": found.max_attempts,
        "timeout": found.timeout,
        "api": found.api,
        "parameters": str(found.signature or ""),
    }


def snapshot(taken: Snapshot) -> dict[str, Any]:
    return {
        "taken_at": moment(taken.taken_at),
        "depths": [
            {"queue_name": one.queue_name, "state": str(one.state), "jobs": one.jobs, "capped": one.capped}
            for one in taken.depths
        ],
        "capped": sorted(map(str, taken.capped)),
        "count_age_seconds": {str(state): age for state, age in taken.count_ages.items()},
        "oldest_due_seconds": dict(taken.oldest_due),
        "workers": taken.workers,
        "slots": taken.slots,
        "busy_slots": taken.busy_slots,
        "late_workers_seconds": dict(taken.late_workers),
        "paused_seconds": dict(taken.paused),
        "unknown_tasks_seconds": dict(taken.unknown_tasks),
        "schedules_late_seconds": dict(taken.schedules),
        "problems": [
            {"rule": one.rule, "severity": one.severity, "text": one.text, "facts": dict(one.facts)}
            for one in problems.find(taken)
        ],
        "bounds_seconds": list(stats.BOUNDS),
        "attempts": [
            {
                "queue_name": one.queue_name,
                "task": one.task,
                "succeeded": one.succeeded,
                "retried": one.retried,
                "failed": one.failed,
                "dead": one.dead,
                "expired": one.expired,
                "pickup_counts": list(one.pickup_counts),
                "pickup_seconds": one.pickup_seconds,
                "run_counts": list(one.run_counts),
                "run_seconds": one.run_seconds,
            }
            for one in taken.tallies
        ],
    }

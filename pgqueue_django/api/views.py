"""The views of the JSON API: a request to a verb or a reading, and back. docs/http.md has them all."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from asgiref.sync import sync_to_async
from django.core.handlers.wsgi import WSGIRequest
from django.db import connections, router
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.utils.cache import get_conditional_response

from pgqueue_django import answers, audit, conf, queues, transitions, walks
from pgqueue_django.audit import Action, Trail
from pgqueue_django.deadline import patient
from pgqueue_django.models import MOMENTS, Job, Queue, Schedule, Worker
from pgqueue_django.options import QUEUE_NAME
from pgqueue_django.snapshot import index_walks
from pgqueue_django.states import FINISHED, State
from pgqueue_django.tasks import declared_tasks

from . import cursors, enqueueing, reading, shapes
from .endpoint import Asked, Need, answer, endpoint, needs, open_to_the_api, refusal, reply
from .errors import Problem, Wrong, invalid, pointer
from .waiting import MAX_SECONDS, waiting

logger = logging.getLogger("pgqueue_django")

MAX_LISTED = 1_000
"""Queues, workers, schedules in one answer."""
_LIMIT, _MAX_LIMIT = 50, 200
_MAX_ID = 2**63 - 1


def _database() -> str:
    using: str = router.db_for_write(Job)
    return using


# -- jobs ------------------------------------------------------------------------------------------------------


@needs("enqueue_job")
def enqueue(asked: Asked) -> HttpResponse:
    """201 and where the job is, after the COMMIT; 200 for a repeat with the same key and content."""
    reading.query(asked.request, ())
    wish = enqueueing.read(asked.body())
    (made,) = enqueueing.make([wish], shapes.DETAIL)
    _log_enqueued(asked, [made])
    shown: dict[str, Any] = _enqueued(asked, made)
    if made.row is not None and asked.actor.may("view_job"):
        shown |= shapes.job(asked.request, asked.actor, made.row)
    headers = {"Location": shown["url"]}
    if not made.enqueued.created:
        headers["Idempotency-Replayed"] = "true"
    return reply(shown, 201 if made.enqueued.created else 200, headers)


@needs("enqueue_job")
def enqueue_batch(asked: Asked) -> HttpResponse:
    """All of them or none. 201 if one was made, 200 if all were there already."""
    reading.query(asked.request, ())
    body = asked.body()
    errors = list(reading.unknown(body, ("jobs",)))
    jobs = body.get("jobs")
    if not isinstance(jobs, list) or not 1 <= len(jobs) <= enqueueing.MAX_BATCH:
        errors.append(Wrong("/jobs", "type", f"It is an array of 1 to {enqueueing.MAX_BATCH:,} jobs."))
    if errors or not isinstance(jobs, list):
        raise invalid(errors)
    wishes = []
    for place, given in enumerate(jobs):
        if len(errors) >= reading.MAX_ERRORS:
            break
        try:
            wishes.append(enqueueing.read(given, pointer("jobs", place)))
        except Problem as problem:
            errors += problem.errors
    if errors:
        raise invalid(errors[: reading.MAX_ERRORS])
    made = enqueueing.make(wishes, ("id", "state"))
    _log_enqueued(asked, made)
    created = any(one.enqueued.created for one in made)
    return reply({"jobs": [_enqueued(asked, one) for one in made]}, 201 if created else 200)


def _enqueued(asked: Asked, made: enqueueing.Made) -> dict[str, Any]:
    state = None if made.row is None else made.row["state"]
    return shapes.enqueued(asked.request, made.enqueued.id, made.enqueued.created, state)


@needs("view_job")
def list_jobs(asked: Asked) -> HttpResponse:
    """One page, the newest first, or in the order of the index that has the jobs of a state."""
    given = reading.query(asked.request, ("state", "queue_name", "task", "idempotency_key", "limit", "cursor"))
    filters: dict[str, str] = {name: given[name] for name in ("state", "queue_name", "task") if name in given}
    if filters.get("state", "queued") not in list(State):
        raise Problem(400, "parameter", f"state is one of {', '.join(State)}.")
    if not QUEUE_NAME.fullmatch(filters.get("queue_name", "default")):
        raise Problem(400, "parameter", "queue_name has 1 to 63 letters, digits, '_', '.' or '-'.")
    limit = _limit(given.get("limit", f"{_LIMIT}"))
    using = _database()
    if "idempotency_key" in given:
        if not asked.actor.may("view_job_payload"):
            raise Problem(403, "forbidden", "To look for a key needs the right view_job_payload.")
        if "task" not in filters:
            raise Problem(400, "parameter", "idempotency_key is of a task: name it, too.")
        rows = walks.by_key(using, filters["task"], given["idempotency_key"], shapes.SUMMARY)
        shown = [row for row in rows if all(row[name] == value for name, value in filters.items())]
        return _page(asked, shown, None)
    cut = cursors.read(given["cursor"], filters) if "cursor" in given else None
    with index_walks(using) as cursor:
        page = walks.page(cursor, *walks.chosen(filters), limit, cut, columns=shapes.SUMMARY)
    if page.ends is None:
        return _page(asked, page.rows, None)
    query = {**filters, "limit": limit, "cursor": cursors.written(page.ends, filters)}
    return _page(asked, page.rows, f"{shapes.url(asked.request, 'api_jobs')}?{urlencode(query)}")


def _limit(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= _MAX_LIMIT:
        return int(text)
    raise Problem(400, "parameter", f"limit is a whole number from 1 to {_MAX_LIMIT}.")


def _page(asked: Asked, rows: list[dict[str, Any]], following: str | None) -> HttpResponse:
    shown = [shapes.summary(asked.request, asked.actor, row) for row in rows]
    headers = {} if following is None else {"Link": f'<{following}>; rel="next"'}
    return reply({"jobs": shown, "next": following}, headers=headers)


@needs("view_job")
def show_job(asked: Asked, id: str) -> HttpResponse:
    """One job. Its ETag changes whenever something changes that this actor sees."""
    reading.query(asked.request, ("wait",))
    return _tagged(asked.request, reply(shapes.job(asked.request, asked.actor, _row(_id(id)))))


def _tagged(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """With an ETag; 304 for who has it already."""
    etag = f'"{hashlib.sha256(response.content).hexdigest()[:32]}"'
    response["ETag"], response["Cache-Control"] = etag, "private, no-cache"
    found: HttpResponse = get_conditional_response(request, etag=etag, response=response) or response
    if found.status_code == HTTPStatus.PRECONDITION_FAILED:
        raise Problem(412, "precondition", "It is not what If-Match names.")
    return found


def _id(text: str) -> int:
    if (number := int(text)) > _MAX_ID:
        raise _no_job()
    return number


def _no_job() -> Problem:
    return Problem(404, "not_found", "There is no such job, or it is gone: finished jobs are kept for a time.")


def _row(id: int) -> dict[str, Any]:
    row: dict[str, Any] | None = Job.objects.using(_database()).filter(pk=id).values(*shapes.DETAIL).first()
    if row is None:
        raise _no_job()
    return row


async def job(request: HttpRequest, id: str) -> HttpResponse:
    """GET jobs/{id}, with ``?wait=20``: not before it has finished, or that many seconds have passed."""
    seconds = 0.0

    @needs("view_job")
    def look(asked: Asked, id: str) -> HttpResponse:
        nonlocal seconds
        if "wait" in request.GET:
            wanted = _seconds(request)
            state = Job.objects.using(_database()).filter(pk=_id(id)).values_list("state", flat=True).first()
            if wanted and state is not None and state not in FINISHED:
                seconds = wanted
                return HttpResponse()  # nobody sees it
        return show_job.handler(asked, id)

    response = await sync_to_async(_answered)(request, look, id)
    if seconds:
        try:
            await waiting.until_finished(int(id), seconds)
            async with waiting.turn():
                response = await sync_to_async(_answered)(request, show_job, id, again=True)
        except answers.Unanswered as error:
            response = refusal(request, error)
    return response


def _answered(request: HttpRequest, get: Need, id: str, *, again: bool = False) -> HttpResponse:
    response = answer(request, {"GET": get}, {"id": id}, again=again)
    if not isinstance(request, WSGIRequest):
        # Django would keep them until the request ends: each who waits would hold one of the server's sessions.
        for connection in connections.all(initialized_only=True):
            if not connection.in_atomic_block:
                connection.close()
    return response


def _seconds(request: HttpRequest) -> float:
    text = reading.query(request, ("wait",))["wait"]
    if not (text.isascii() and text.isdecimal() and len(text) < 4 and int(text) <= MAX_SECONDS):
        raise Problem(400, "parameter", f"wait is a whole number of seconds, up to {MAX_SECONDS}.")
    if isinstance(request, WSGIRequest):
        raise Problem(501, "no_waiting", "Only under ASGI can a request wait: ask again without wait.")
    return float(text)


def _by_hand(verb: Callable[[str, list[int]], set[int]], action: Action, done: str) -> Callable[..., HttpResponse]:
    def move(asked: Asked, id: str) -> HttpResponse:
        """200 with the job as it is now; 409 where its state has no such arrow."""
        reading.query(asked.request, ())
        body = asked.body(optional=True)
        if errors := [*reading.unknown(body, ("reason",)), *_wrong_reason(body)]:
            raise invalid(errors)
        number = _id(id)
        trail = _trail(asked, body, action, audit.told("job", [number]))
        with patient(_database()):
            moved = verb(_database(), [number])
            row = _row(number)
            # None of a 409: programs that ask again and again would fill the log.
            trail.add(len(moved))
        if not moved:
            detail = f"The job is {row['state']}: it cannot be {done}."
            raise Problem(409, "wrong_state", detail, state=row["state"])
        _log(asked, done, number)
        return reply(shapes.job(asked.request, asked.actor, row))

    return move


def _wrong_reason(body: dict[str, Any]) -> Iterator[Wrong]:
    if not reading.is_text(body.get("reason", ""), audit.MAX_REASON):
        yield Wrong("/reason", "type", f"It is a text of at most {audit.MAX_REASON} characters.")


def _trail(asked: Asked, body: dict[str, Any], action: Action, target: str) -> Trail:
    reason = body.get("reason", "")
    return Trail(_database(), actor=asked.actor.name, action=action, target=target, reason=reason)


# -- queues ----------------------------------------------------------------------------------------------------


@needs("view_queue")
def list_queues(asked: Asked) -> HttpResponse:
    reading.query(asked.request, ())
    taken = answers.shared.reading()
    paused = _paused()
    names = {depth.queue_name for depth in taken.depths} | set(taken.oldest_due) | set(paused)
    shown = [shapes.queue(name, taken, paused.get(name)) for name in sorted(names)[:MAX_LISTED]]
    return reply({"taken_at": shapes.moment(taken.taken_at), "queues": shown})


def _paused(*names: str) -> dict[str, Queue]:
    rows = Queue.objects.using(_database()).filter(queues.IS_PAUSED)
    return {row.name: row for row in (rows.filter(name__in=names) if names else rows)[:MAX_LISTED]}


@needs("pause_queue")
def pause_queue(asked: Asked, name: str) -> HttpResponse:
    """Nothing of it is claimed any more; what runs goes on."""
    reading.query(asked.request, ())
    body = asked.body(optional=True)
    errors = list(reading.unknown(body, ("reason", "resume_at", "resume_after_seconds")))
    errors += _wrong_reason(body)
    reason, seconds = body.get("reason", ""), body.get("resume_after_seconds")
    until: Any = None
    if body.get("resume_at") is not None:
        until = reading.moment(body["resume_at"])
        if until is None or not datetime.now(UTC) < until < MOMENTS[1]:
            message = "Give a moment ahead, with its offset from UTC, such as 2027-01-31T12:00:00Z."
            errors.append(Wrong("/resume_at", "option", message))
        elif seconds is not None:
            errors.append(Wrong("/resume_after_seconds", "option", "Give it or resume_at, not both."))
    elif seconds is not None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.001 <= seconds <= 1e9:
            errors.append(Wrong("/resume_after_seconds", "option", "Give a number of seconds, of at least 0.001."))
        else:
            until = timedelta(seconds=seconds)
    if errors:
        raise invalid(errors)
    trail = _trail(asked, body, "pause", audit.told("queue", [name]))
    with patient(_database()):
        queues.pause(_database(), name, reason=reason, actor=asked.actor.name, until=until)
        trail.add(1)
    _log(asked, f"paused {name}")
    return _queue(name)


@needs("pause_queue")
def resume_queue(asked: Asked, name: str) -> HttpResponse:
    reading.query(asked.request, ())
    body = asked.body(optional=True)
    if errors := [*reading.unknown(body, ("reason",)), *_wrong_reason(body)]:
        raise invalid(errors)
    trail = _trail(asked, body, "resume", audit.told("queue", [name]))
    with patient(_database()):
        trail.add(int(queues.resume(_database(), name)))
    _log(asked, f"resumed {name}")
    return _queue(name)


def _queue(name: str) -> HttpResponse:
    return reply({"name": name, **shapes.pause(_paused(name).get(name))})


@needs("requeue_job")
def requeue_of_queue(asked: Asked, name: str) -> HttpResponse:
    """At most ``transitions.BATCH`` of its dead or failed jobs go back; ``more``: call again."""
    reading.query(asked.request, ())
    body = asked.body(optional=True)
    errors = [*reading.unknown(body, ("state", "reason")), *_wrong_reason(body)]
    state = body.get("state", "dead")
    if state not in ("dead", "failed"):
        errors.append(Wrong("/state", "option", "It is dead or failed."))
    if errors:
        raise invalid(errors)
    using = _database()
    with index_walks(using):
        found = Job.objects.using(using).in_state(State(state)).filter(queue_name=name)
        ids = list(found.values_list("id", flat=True)[: transitions.BATCH + 1])
    chosen = ids[: transitions.BATCH]
    trail = _trail(asked, body, "requeue", audit.told("job", chosen, f"state={state}, queue={name}"))
    with patient(using):
        moved = transitions.requeue(using, chosen, State(state))
        trail.add(len(moved), len(chosen) - len(moved))
    _log(asked, f"requeued {len(moved)} {state} jobs of {name}")
    return reply({"requeued": len(moved), "more": len(ids) > transitions.BATCH})


# -- everything else -------------------------------------------------------------------------------------------


@needs("view_dashboard")
def show_snapshot(asked: Asked) -> HttpResponse:
    """What the metrics are made of: one reading a second, whoever asks."""
    reading.query(asked.request, ())
    return reply(shapes.snapshot(answers.shared.reading()))


@needs("view_worker")
def list_workers(asked: Asked) -> HttpResponse:
    reading.query(asked.request, ())
    rows: Any = Worker.objects.using(_database()).annotate(read_at=Now()).order_by("-heartbeat_at")[:MAX_LISTED]
    shown = [shapes.worker(row, row.heartbeat_at + timedelta(seconds=row.lease_seconds) > row.read_at) for row in rows]
    return reply({"workers": shown})


@needs("view_schedule")
def list_schedules(asked: Asked) -> HttpResponse:
    reading.query(asked.request, ())
    rows = Schedule.objects.using(_database()).order_by("name")[:MAX_LISTED]
    return reply({"schedules": [shapes.schedule(row, asked.actor) for row in rows]})


@needs("view_job", "enqueue_job", one_of=True)
def list_tasks(asked: Asked) -> HttpResponse:
    """Those that the code declares; for who may only enqueue, those that he can."""
    reading.query(asked.request, ())
    enqueueing.discover()
    shown = []
    for path in declared_tasks():
        found = enqueueing.declared(path)
        if found is not None and (enqueueing.is_open(found) or asked.actor.may("view_job")):
            shown.append(shapes.task(found))
    return reply({"tasks": shown})


@needs()
def show_openapi(asked: Asked) -> HttpResponse:
    """openapi.json, kept by hand, with the path where the project has mounted the API. For everybody who is known."""
    reading.query(asked.request, ())
    document = {**_openapi(), "servers": [{"url": shapes.url(asked.request, "api")}]}
    if conf.is_read_only():
        document["paths"] = {
            path: {name: part for name, part in item.items() if name in ("get", "parameters")}
            for path, item in document["paths"].items()
            if "get" in item
        }
    return _tagged(asked.request, reply(document))


@cache
def _openapi() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("openapi.json").read_text("utf-8"))
    return found


def _log_enqueued(asked: Asked, made: Sequence[enqueueing.Made]) -> None:
    for done, created in (("enqueued", True), ("repeated the enqueueing of", False)):
        if ids := [one.enqueued.id for one in made if one.enqueued.created is created]:
            _log(asked, done, *ids)


def _log(asked: Asked, done: str, *ids: int) -> None:
    jobs = ", ".join(f"#{id}" for id in ids[:10]) + (", ..." if len(ids) > 10 else "")
    logger.info("api: %s %s %s", asked.actor.name, done, jobs)


jobs = endpoint(GET=list_jobs, POST=enqueue)
batch = endpoint(POST=enqueue_batch)
job = open_to_the_api(job)
cancel = endpoint(POST=needs("view_job", "cancel_job")(_by_hand(transitions.cancel, "cancel", "cancelled")))
requeue = endpoint(POST=needs("view_job", "requeue_job")(_by_hand(transitions.requeue, "requeue", "requeued")))
run_now = endpoint(POST=needs("view_job", "run_job_now")(_by_hand(transitions.run_now, "run_now", "run now")))
all_queues = endpoint(GET=list_queues)
pause = endpoint(POST=pause_queue)
resume = endpoint(POST=resume_queue)
requeue_queue = endpoint(POST=requeue_of_queue)
snapshot = endpoint(GET=show_snapshot)
workers = endpoint(GET=list_workers)
schedules = endpoint(GET=list_schedules)
tasks = endpoint(GET=list_tasks)
openapi = endpoint(GET=show_openapi)
nothing = endpoint()

"""What machines ask over HTTP: the metrics page, and the health of process, database and queues.

All answer within two seconds, whatever the database does: what they ask of it runs in a thread of its own, on a
connection of its own that is cut at the deadline. A request's own connection could wait for ever: a server
that is frozen, or that a firewall has cut off, still holds the socket. They answer GET and HEAD only, are
never cached, and never show a traceback.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from django.contrib.auth.decorators import login_not_required
from django.db import InterfaceError, connections, router
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.crypto import constant_time_compare
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from . import conf, problems, snapshot
from . import metrics as exposition
from .models import Job
from .problems import Severity
from .snapshot import Snapshot

logger = logging.getLogger("pgqueue_django")

# The page has to be on its way within 2 s, so the question ends a little before.
ANSWER_SECONDS = 1.9
SHARED_SECONDS = 1.0
"""How old a reading of the queue may be that one who asks gets from another."""
_CONNECT_SECONDS = 2  # libpq and psycopg take no less

MAX_THREADS = 8
"""Questions of one process that can be open at the same time; others wait for a place, up to their deadline."""
_places = threading.BoundedSemaphore(MAX_THREADS)

T = TypeVar("T")


class Unanswered(Exception):
    """The database did not answer in time, or not with what was asked for."""


class _Question(Generic[T]):
    """``ask(alias)`` on a thread and a connection of its own; ``cut`` ends both."""

    def __init__(self, ask: Callable[[str], T]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._wire: socket.socket | None = None
        self._cut = False
        self.answer: T
        self.failure: str | None = None

    def run(self) -> None:
        alias = router.db_for_write(Job)
        try:
            connection = connections.create_connection(alias)
            options = {**connection.settings_dict["OPTIONS"], "connect_timeout": _CONNECT_SECONDS}
            options.pop("pool", None)
            connection.settings_dict = {**connection.settings_dict, "OPTIONS": options, "AUTOCOMMIT": True}
            connections[alias] = connection
            try:
                connection.ensure_connection()
                # At the end of a transaction whose connection is gone Django makes a new one.
                connection.connect = _refuse  # type: ignore[method-assign]
                with self._lock:
                    if self._cut:
                        return
                    # A second handle of the same socket; its family does not matter for a shutdown.
                    self._wire = socket.fromfd(connection.connection.pgconn.socket, socket.AF_INET, socket.SOCK_STREAM)
                self.answer = self._ask(alias)
            finally:
                with self._lock:
                    wire, self._wire = self._wire, None
                if wire is not None:
                    wire.close()
                connection.close()
        except Exception as error:  # whatever it is, the thread that asked has to say it
            # Its text: the error would keep its frames, and they a socket, until the next garbage collection.
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            _places.release()

    def cut(self) -> None:
        """Shut the connection down under the thread that waits on it, so that it ends now."""
        with self._lock:
            self._cut = True
            if self._wire is not None:
                with contextlib.suppress(OSError):
                    self._wire.shutdown(socket.SHUT_RDWR)


def _refuse() -> None:
    raise InterfaceError("this connection was cut off")


def _until() -> float:
    """When a page that is asked for now has to be on its way, on ``time.monotonic()``."""
    return time.monotonic() + ANSWER_SECONDS


def _answer(ask: Callable[[str], T], until: float) -> T:
    """What ``ask(alias)`` returns. Raises Unanswered when that takes longer, or fails."""
    if not _places.acquire(timeout=max(0.0, until - time.monotonic())):
        raise Unanswered(f"{MAX_THREADS} earlier questions are still open")
    question = _Question(ask)
    thread = threading.Thread(target=question.run, name="pgqueue-question", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        _places.release()
        raise Unanswered(str(error)) from error
    thread.join(max(0.0, until - time.monotonic()))
    if thread.is_alive():
        question.cut()
        raise Unanswered("no answer in time")
    if question.failure is not None:
        raise Unanswered(question.failure)
    return question.answer


class _Shared:
    """One reading a second for all who ask in this process; who comes while it is being made waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: Snapshot | None = None
        self._asked_at = 0.0
        self._came_at = 0.0
        self._failed_at = 0.0

    def reading(self, until: float | None = None) -> Snapshot:
        """Raises Unanswered, to all who have waited for the same answer."""
        began = time.monotonic()
        until = began + ANSWER_SECONDS if until is None else until
        if not self._lock.acquire(timeout=max(0.0, until - began)):
            raise Unanswered("no answer in time")
        try:
            if self._failed_at > began:
                raise Unanswered("no answer to somebody who asked before")
            asked_at = time.monotonic()
            # One that came while this caller waited is his, however long it took.
            if self._taken is None or (self._came_at < began and asked_at > self._asked_at + SHARED_SECONDS):
                self._taken = None
                try:
                    self._taken = _answer(snapshot.take, until)
                except Unanswered:
                    self._failed_at = time.monotonic()
                    raise
                self._asked_at, self._came_at = asked_at, time.monotonic()
            return self._taken
        finally:
            self._lock.release()

    def forget(self) -> None:
        self._taken = None


_shared = _Shared()


def _ping(alias: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT 1")


@login_not_required
@never_cache
@require_safe
def livez(request: HttpRequest) -> HttpResponse:
    """200: this process answers. It asks nobody else. For everybody."""
    return JsonResponse({"status": "ok"})


@login_not_required
@never_cache
@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """200 when the database of the jobs answers a new connection within 2 s, else 503. For everybody."""
    began = time.monotonic()
    try:
        _answer(_ping, _until())
    except Unanswered as error:
        return _unavailable("healthz", error)
    return JsonResponse({"status": "ok", "db_ms": round((time.monotonic() - began) * 1000, 1)})


@login_not_required
@never_cache
@require_safe
def queues(request: HttpRequest) -> HttpResponse:
    """200 when no rule of ``problems`` finds an error, else 503. The names of the rules that do are for everybody.

    ``?max_lag=60``: an error is, among others, a job that has been due for longer, in seconds; 400 if it is no number.
    What they say in full is for those who may see the metrics.
    """
    until = _until()
    try:
        max_lag = _max_lag(request)
    except ValueError:
        return JsonResponse(
            {"status": "invalid", "detail": "max_lag: give a number of seconds, 0 or more."}, status=400
        )
    try:
        found = problems.find(_shared.reading(until), max_lag=max_lag)
        may_read = _opened(request) or not _refusal(request, until)
    except Unanswered as error:
        return _unavailable("healthz/queues", error)
    failing = any(problem.severity == Severity.ERROR for problem in found)
    answer: dict[str, Any] = {
        "status": "failing" if failing else "ok",
        "problems": list(dict.fromkeys(problem.rule for problem in found)),
    }
    if may_read:
        answer["details"] = [
            {"rule": problem.rule, "severity": problem.severity, "text": problem.text, **problem.facts}
            for problem in found
        ]
    return JsonResponse(answer, status=503 if failing else 200)


def _max_lag(request: HttpRequest) -> float | None:
    """Raises ValueError."""
    if (given := request.GET.get("max_lag")) is None:
        return None
    seconds = float(given)
    if not 0 <= seconds < math.inf:
        raise ValueError(given)
    return seconds


def _unavailable(page: str, error: Unanswered) -> HttpResponse:
    logger.warning("%s: %s", page, error)
    return JsonResponse({"status": "unavailable"}, status=503, headers={"Retry-After": "5"})


@login_not_required
@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """The queue in Prometheus' text format, from one snapshot.

    For users with ``pgqueue_django.view_dashboard``, for the bearer token ``METRICS_TOKEN``, for everybody with
    ``METRICS_PUBLIC``. 401 for who is not known, 403 for who may not. When the database does not answer the page says
    ``pgqueue_up 0``, with status 200: Prometheus reads no page of another one.
    """
    until = _until()
    taken = None
    try:
        if not _opened(request) and (refusal := _refusal(request, until)):
            return refusal
        taken = _shared.reading(until)
    except Unanswered as error:
        logger.warning("metrics: %s", error)
    body, content_type = exposition.render(taken, request.headers.get("Accept", ""))
    return HttpResponse(body, content_type=content_type, headers={"X-Content-Type-Options": "nosniff"})


def _opened(request: HttpRequest) -> bool:
    """Whether the page is open for everybody, or to the token that came in the header."""
    settings = conf.current()
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return settings.METRICS_PUBLIC or bool(
        settings.METRICS_TOKEN
        and scheme.lower() == "bearer"
        and constant_time_compare(token.strip(), settings.METRICS_TOKEN)
    )


def _refusal(request: HttpRequest, until: float) -> HttpResponse | None:
    if request.COOKIES:
        # Whose session it is stands in the database, and reading that has no deadline: not of one that is away.
        _answer(_ping, until)
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        text = gettext("Log in, or send a bearer token.")
        return _text(f"{text}\n", 401, {"WWW-Authenticate": 'Bearer realm="pgqueue"'})
    if not user.has_perm("pgqueue_django.view_dashboard"):
        return _text(gettext("You may not see the metrics of the queue.") + "\n", 403, {})
    return None


def _text(body: str, status: int, headers: dict[str, str]) -> HttpResponse:
    return HttpResponse(
        body,
        status=status,
        content_type="text/plain; charset=utf-8",
        headers={"X-Content-Type-Options": "nosniff", **headers},
    )

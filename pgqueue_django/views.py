"""What machines ask over HTTP: the metrics page, and the health of process, database and queues.

All answer within two seconds, whatever the database does (``answers``). They answer GET and HEAD only, are never
cached, and never show a traceback.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.crypto import constant_time_compare
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from . import access, answers, conf, problems
from . import metrics as exposition
from .problems import Severity

logger = logging.getLogger("pgqueue_django")


@answers.in_no_transaction
@login_not_required
@never_cache
@require_safe
def livez(request: HttpRequest) -> HttpResponse:
    """200: this process answers. It asks nobody else. For everybody."""
    return JsonResponse({"status": "ok"})


@answers.in_no_transaction
@login_not_required
@never_cache
@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """200 when the database of the jobs answers a new connection within 2 s, else 503. For everybody."""
    try:
        seconds = answers.pings.reading()
    except answers.Unanswered as error:
        return _unavailable("healthz", error)
    return JsonResponse({"status": "ok", "db_ms": round(seconds * 1000, 2)})


@answers.in_no_transaction
@login_not_required
@never_cache
@require_safe
def queues(request: HttpRequest) -> HttpResponse:
    """200 when no rule of ``problems`` finds an error, else 503. The names of the rules that do are for everybody.

    ``?max_lag=60``: an error is, among others, a job that has been due for longer, in seconds; 400 if it is no number.
    What they say in full is for those who may see the metrics.
    """
    until = answers.until()
    try:
        max_lag = _max_lag(request)
    except ValueError:
        return JsonResponse(
            {"status": "invalid", "detail": "max_lag: give a number of seconds, 0 or more."}, status=400
        )
    try:
        found = problems.find(answers.shared.reading(until), max_lag=max_lag)
        may_read = not metrics_refusal(request, until)
    except answers.Unanswered as error:
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


def _unavailable(page: str, error: answers.Unanswered) -> HttpResponse:
    logger.warning("%s: %s", page, error)
    return JsonResponse({"status": "unavailable"}, status=503, headers={"Retry-After": "5"})


@answers.in_no_transaction
@login_not_required
@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """The queue in Prometheus' text format, from one snapshot.

    For users with ``pgqueue_django.view_dashboard``, for the bearer token ``METRICS_TOKEN``, for everybody with
    ``METRICS_PUBLIC``. 401 for who is not known, 403 for who may not. When the database does not answer the page says
    ``pgqueue_up 0``, with status 200: Prometheus reads no page of another one.
    """
    until = answers.until()
    taken = None
    try:
        if refusal := metrics_refusal(request, until):
            return refusal
        taken = answers.shared.reading(until)
    except answers.Unanswered as error:
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


def metrics_refusal(request: HttpRequest, until: float) -> HttpResponse | None:
    """What who asks is answered instead of the metrics; None: he may see them. Raises answers.Unanswered."""
    if _opened(request):
        return None
    if request.COOKIES:
        # Whose session it is stands in the database, and reading that has no deadline: not of one that is away.
        answers.pings.reading(until)
    user = access.logged_in(request)
    if user is None:
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

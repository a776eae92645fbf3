"""What every view of the API has around it: who may, how long, and that each error is a problem document.

In this order: whether the API is on, the method, the size of the body, who asks, whether he may, how often; and then
what was asked for. All that may touch a database is within ``deadline.limit``. No view is in a transaction of the
project's ATOMIC_REQUESTS: an answer that says 201 follows the COMMIT.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import DatabaseError, InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.cache import add_never_cache_headers, patch_vary_headers
from django.views.decorators.csrf import csrf_exempt

from pgqueue_django import access, conf, deadline
from pgqueue_django.access import Actor
from pgqueue_django.answers import Unanswered, in_no_transaction
from pgqueue_django.worker.connections import first_line, is_broken

from . import limits, reading
from .errors import Problem, not_found

logger = logging.getLogger("pgqueue_django")


@dataclass(frozen=True)
class Asked:
    """One request of somebody who may."""

    request: HttpRequest
    actor: Actor
    raw: bytes = b""

    def body(self, *, optional: bool = False) -> dict[str, Any]:
        """Raises Problem."""
        return reading.body(self.request, self.raw, optional=optional)


Handler = Callable[..., HttpResponse]


class Need(NamedTuple):
    """A handler ``(asked, **captured)``, and the rights that it needs: all, or ``one_of`` them."""

    handler: Handler
    rights: tuple[str, ...]
    one_of: bool = False

    def allows(self, actor: Actor) -> bool:
        return any(map(actor.may, self.rights)) if self.one_of else actor.may(*self.rights)


Methods = Mapping[str, Need]


def needs(*rights: str, one_of: bool = False) -> Callable[[Handler], Need]:
    """Above a handler: the rights without which it is not called."""
    return lambda handler: Need(handler, rights, one_of)


def endpoint(**methods: Need) -> Callable[..., HttpResponse]:
    """The view of one URL: ``endpoint(GET=..., POST=...)``. HEAD is GET, OPTIONS says what there is."""

    def view(request: HttpRequest, **captured: Any) -> HttpResponse:
        return answer(request, methods, captured)

    return open_to_the_api(view)


def open_to_the_api(view: Callable[..., Any]) -> Callable[..., Any]:
    """Past the project's login middleware and its CSRF check, since ``access`` has both; in no transaction."""
    return csrf_exempt(login_not_required(in_no_transaction(view)))


def answer(request: HttpRequest, methods: Methods, captured: Mapping[str, Any], *, again: bool = False) -> HttpResponse:
    """What one request is answered with, whatever happens. ``again``: it has waited, and counts once."""
    try:
        return _for_one(_answer(request, methods, captured, again))
    except Exception as error:
        return refusal(request, error)


def _for_one(response: HttpResponse) -> HttpResponse:
    """It is kept by nobody who would give it to others."""
    if not response.has_header("Cache-Control"):
        add_never_cache_headers(response)
    patch_vary_headers(response, ["Authorization", "Cookie"])
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def _answer(request: HttpRequest, methods: Methods, captured: Mapping[str, Any], again: bool) -> HttpResponse:
    if not conf.current().API_AUTH:
        raise Problem(404, "off", 'The API is off: name who may use it in settings.PGQUEUE["API_AUTH"].')
    if conf.is_read_only():
        methods = {name: need for name, need in methods.items() if name == "GET"}
    need = methods.get("GET" if request.method == "HEAD" else request.method or "")
    if need is None:
        allow = {"Allow": ", ".join([*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"])}
        if not methods:
            raise not_found()
        if request.method == "OPTIONS":
            response = HttpResponse(status=204, headers=allow)
            del response["Content-Type"]
            return response
        raise Problem(405, "method", f"{request.method!r:.40} is not what can be done here.", headers=allow)
    raw = reading.raw(request) if request.method == "POST" else b""
    with deadline.limit():
        actor = access.actor(request)
        if actor is None:
            headers = {"WWW-Authenticate": 'Bearer realm="pgqueue"'}
            raise Problem(401, "unauthenticated", "Log in, or send a bearer token.", headers=headers)
        if not again:
            limits.rate(actor.name)
        if not need.allows(actor):
            wanted = (" or " if need.one_of else " and ").join(need.rights)
            raise Problem(403, "forbidden", f"This needs the right {wanted}.")
        return need.handler(Asked(request, actor, raw), **captured)


def refusal(request: HttpRequest, error: Exception) -> HttpResponse:
    """The problem document of whatever went wrong."""
    return _for_one(_problem(request, error).response())


def _problem(request: HttpRequest, error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, PermissionDenied):
        return Problem(403, "forbidden", f"{error}" or "You may not.")
    if isinstance(error, RequestDataTooBig):
        return Problem(413, "too_large", f"{error}")
    if isinstance(error, SuspiciousOperation):
        return Problem(400, "refused", "The request was refused.")
    if isinstance(error, Unanswered | OperationalError | InterfaceError) or (
        isinstance(error, DatabaseError) and is_broken(error)
    ):
        logger.warning("api: %s %s: %s", request.method, request.path, first_line(error))
        detail = "The database did not answer in time. What was asked for may have been done."
        return Problem(503, "unavailable", detail, headers={"Retry-After": "5"})
    logger.error("api: %s %s", request.method, request.path, exc_info=error)
    return Problem(500, "error", "Something is wrong here; the log of the server says what.")


def reply(
    data: Mapping[str, Any], status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> HttpResponse:
    return JsonResponse(data, status=status, headers=dict(headers or {}))

"""Who asks, and what he may: the actors of the JSON API.

``API_AUTH`` names functions ``(request) -> Actor | None`` that are asked one after the other; ``session`` and ``token``
are ours, and a project may have its own. A right is the codename of one of this app's permissions, the same as in the
admin. A token is known by its SHA-256 alone, comes in a header and never in a URL, and is written into no log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import CsrfViewMiddleware
from django.utils.crypto import constant_time_compare
from django.utils.module_loading import import_string

from . import conf


@dataclass(frozen=True)
class Actor:
    """A person or a program. ``name`` is what others see: of who paused a queue, and in the log."""

    name: str
    rights: Container[str]

    def may(self, *rights: str) -> bool:
        """Whether it has all of these rights."""
        return all(right in self.rights for right in rights)


Authenticator = Callable[[HttpRequest], Actor | None]


def actor(request: HttpRequest) -> Actor | None:
    """Whoever the first of ``API_AUTH`` knows; None: nobody. Raises PermissionDenied where one refuses outright."""
    for one in conf.current().API_AUTH:
        if found := _callable(one)(request):
            return found
    return None


@lru_cache(maxsize=100)
def _callable(one: str | Authenticator) -> Authenticator:
    found: Authenticator = import_string(one) if isinstance(one, str) else one
    return found


class _Permissions:
    """The rights of a user, asked for one at a time: Django remembers the answers with the user."""

    def __init__(self, user: Any) -> None:
        self._user = user

    def __contains__(self, right: object) -> bool:
        return bool(self._user.has_perm(f"pgqueue_django.{right}"))


class _Csrf(CsrfViewMiddleware):
    def _reject(self, request: HttpRequest, reason: str) -> HttpResponse:
        raise PermissionDenied(reason)


_csrf = _Csrf(lambda request: HttpResponse())


def logged_in(request: HttpRequest) -> Any:
    """The user whose session it is; None: nobody's."""
    user: Any = getattr(request, "user", None)
    # A cookie can hold a NUL and PostgreSQL no text with one: to look for such a session is an error there.
    if user is None or "\0" in "".join(request.COOKIES.values()) or not user.is_authenticated:
        return None
    return user


def session(request: HttpRequest) -> Actor | None:
    """The user who is logged in, with his permissions. Raises PermissionDenied for a change without a CSRF token."""
    user = logged_in(request)
    if user is None:
        return None
    # The views are exempt, since tokens need none of it: whoever comes by a cookie does.
    _csrf.process_request(request)
    _csrf.process_view(request, None, (), {})  # type: ignore[arg-type]
    return Actor(user.get_username(), _Permissions(user))


def token(request: HttpRequest) -> Actor | None:
    """The entry of ``API_TOKENS`` that ``Authorization: Bearer ...`` belongs to, while it has not expired."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        return None
    digest = hashlib.sha256(given.strip().encode()).hexdigest()
    found = None
    for name, entry in (conf.current().API_TOKENS or {}).items():
        # All of them: how long it takes does not tell which one came close.
        if constant_time_compare(digest, entry["sha256"].lower()):
            found = name, entry
    if found is None:
        return None
    name, entry = found
    if entry.get("expires") is not None and datetime.now(UTC).date() >= date.fromisoformat(entry["expires"]):
        return None
    return Actor(f"token:{name}", frozenset(entry["rights"]))

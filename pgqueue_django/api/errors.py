"""What went wrong, as RFC 9457 has it: problem documents, for every error that a client can meet.

``code`` is what a program looks at and stays the same; ``detail`` is for people, in English. No answer holds a
traceback, nor where the database is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from django.http import HttpResponse, JsonResponse


class Wrong(NamedTuple):
    """One thing that is wrong in a request's body. ``pointer``: where, as RFC 6901 has it; empty: as a whole."""

    pointer: str
    code: str
    message: str


class Problem(Exception):
    """Ends a request with a problem document. ``more`` are further members of it."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Iterable[Wrong] = (),
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = list(errors)
        self.headers = dict(headers or {})
        self.more = more

    def response(self) -> HttpResponse:
        document = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
            **self.more,
        }
        if self.errors:
            document["errors"] = [one._asdict() for one in self.errors]
        return JsonResponse(document, status=self.status, content_type="application/problem+json", headers=self.headers)


def invalid(errors: Iterable[Wrong]) -> Problem:
    """422, with everything that is wrong in the body."""
    found = list(errors)
    where = f"{found[0].pointer}: " if found[0].pointer else ""
    rest = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return Problem(422, "invalid", f"{where}{found[0].message}{rest}", errors=found)


def not_found() -> Problem:
    return Problem(404, "not_found", "There is nothing here.")


def pointer(*steps: object) -> str:
    """``/kwargs/lines/3``"""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)

"""What schemathesis is told beside the document, and checks of our own. Its process reads it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import schemathesis
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode

from tests.doors.fuzzing import resolved, undocumented

_OFFSETS = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
_FIRST, _LAST = datetime.now() + timedelta(days=2), datetime.now() + timedelta(days=36_000)
schemathesis.openapi.format("date-time", st.datetimes(_FIRST, _LAST, timezones=_OFFSETS).map(datetime.isoformat))


@schemathesis.hook
def before_call(ctx: Any, case: Any, kwargs: Any) -> None:
    """Nobody waits for long here: what is right stays right, and what is wrong wrong."""
    if str(case.query.get("wait")) in map(str, range(2, 26)):
        case.query["wait"] = 1


@schemathesis.check
def only_what_is_documented(ctx: Any, response: Any, case: Any) -> None:
    """The document lets answers grow; these have nothing that it does not name."""
    document = case.operation.schema.raw_schema
    responses = document["paths"][case.operation.path][case.operation.method.lower()]["responses"]
    if case.method.upper() != case.operation.method.upper() or f"{response.status_code}" not in responses:
        return
    if not response.content:  # as of HEAD
        return
    for content in resolved(document, responses[f"{response.status_code}"]).get("content", {}).values():
        found = list(undocumented(document, content["schema"], response.json()))
        assert not found, f"not in the document: {found}"


@schemathesis.check
def refused_for_a_reason(ctx: Any, response: Any, case: Any) -> None:
    """What the document allows is refused only for what it has no words for but ours."""
    if response.status_code == 422 and case.meta.generation.mode == GenerationMode.POSITIVE:
        wrong = {one["code"] for one in response.json()["errors"] if one["pointer"] != "/resume_at"}
        assert wrong <= {"payload", "reused"}, f"refused although the document allows it: {response.text}"


@schemathesis.check
def never_html(ctx: Any, response: Any, case: Any) -> None:
    """Whatever is asked for."""
    kind = (response.headers.get("content-type") or [""])[0]
    assert not response.content or kind in ("application/json", "application/problem+json"), kind

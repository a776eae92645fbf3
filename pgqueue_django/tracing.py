"""Traces: a span for each enqueue inside of one and for each attempt, linked through the job's row.

The only importer of OpenTelemetry, and only where ``PGQUEUE["TRACING"]`` is on. Owns what stands in the column
``trace``: the two W3C headers of the span that enqueued the job, whatever propagators the project has for its HTTP
calls. Never its baggage, which may hold personal data; at most about 600 characters.

Keeps: what a tracer, a processor or an exporter raises is logged here. It costs no enqueue and no attempt.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Sequence
from contextvars import Token
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from . import conf, logs
from .outcomes import Failure

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

logger = logging.getLogger("pgqueue_django")

_MOST_STATE = 512  # characters of a tracestate: so much everybody passes on, by the W3C's word
_LAMENT_SECONDS = 30.0  # from one warning about a tracer that fails to the next
_FLUSH_SECONDS = 1.0  # a supervisor waits three for a process whose time to stop is over
_NO_ERRORS = frozenset({"succeeded", "cancelled", "released"})

_lament_at = 0.0


class Sent(Protocol):
    """What there is to say of a job that is being enqueued."""

    @property
    def task(self) -> str: ...
    @property
    def queue_name(self) -> str: ...


class Attempted(Sent, Protocol):
    """And of one that is being run."""

    @property
    def id(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def trace(self) -> str | None: ...


# -- enqueue ---------------------------------------------------------------------------------------------------


class Sending:
    """Around an INSERT: its span is current meanwhile, so those of the driver are its children."""

    __slots__ = ("_span", "_token", "trace")

    def __init__(self, trace: str | None = None, span: Span | None = None, token: Token[Context] | None = None) -> None:
        self.trace = trace  # JSON text for the row; None: there is nothing to link to
        self._span = span
        self._token = token

    def __enter__(self) -> Sending:
        return self

    def made(self, id: int) -> None:
        """The one job that was sent has this id."""
        if self._span is not None:
            try:
                self._span.set_attribute("messaging.message.id", str(id))
            except Exception as error:
                _lament(error)

    def __exit__(self, kind: object, error: BaseException | None, frames: TracebackType | None) -> None:
        if self._span is None:
            return
        try:
            from opentelemetry import context, trace

            if self._token is not None:
                context.detach(self._token)
            if error is not None:
                # Without its text: PostgreSQL shows the row in it, and so the payload.
                name = type(error).__qualname__
                self._span.set_attribute("error.type", name)
                self._span.set_status(trace.Status(trace.StatusCode.ERROR, name))
        except Exception as second:
            _lament(second)
        _end(self._span)


_NOTHING = Sending()


def sending(jobs: Sequence[Sent]) -> Sending:
    """``with sending(jobs) as sent``: one PRODUCER span for all of them, where the current span is recorded.

    Outside of any trace there is none: it would be a trace of one INSERT. Where the current span is not sampled, its
    own context goes into the rows, so that the decision is seen.
    """
    if not conf.current().TRACING or not jobs:
        return _NOTHING
    try:
        from opentelemetry import context, trace

        current = trace.get_current_span()
        if not current.is_recording():
            return Sending(_written(trace.set_span_in_context(current)))
        queues, tasks = {job.queue_name for job in jobs}, {job.task for job in jobs}
        attributes: dict[str, Any] = {
            "messaging.system": "pgqueue",
            "messaging.operation.type": "send",
            "messaging.operation.name": "enqueue",
        }
        if len(jobs) > 1:
            attributes["messaging.batch.message_count"] = len(jobs)
        if len(queues) == 1:
            attributes["messaging.destination.name"] = jobs[0].queue_name
        if len(tasks) == 1:
            attributes["pgqueue.task"] = jobs[0].task
        span = _tracer().start_span(
            f"enqueue {jobs[0].task}" if len(tasks) == 1 else "enqueue",
            kind=trace.SpanKind.PRODUCER,
            attributes=attributes,
        )
    except Exception as error:
        _lament(error)
        return _NOTHING
    try:
        inside = trace.set_span_in_context(span)
        return Sending(_written(inside), span, context.attach(inside))
    except Exception as error:
        _lament(error)
        return Sending(None, span)


def _written(inside: Context) -> str | None:
    """The context of its span, as JSON text for the row."""
    headers: dict[str, str] = {}
    _propagator().inject(headers, inside)
    if not (parent := headers.get("traceparent")):
        return None
    state = headers.get("tracestate", "")
    return json.dumps({"traceparent": parent, **({"tracestate": state} if 0 < len(state) <= _MOST_STATE else {})})


# -- attempts --------------------------------------------------------------------------------------------------


def begin(job: Attempted) -> Span | None:
    """A CONSUMER span in a trace of its own, linked to who enqueued the job, and current in this context.

    For a context that ends with the attempt: nothing is detached. None: tracing is off, or the tracer has failed.
    """
    if not conf.current().TRACING:
        return None
    try:
        from opentelemetry import context, trace

        sent = _read(job.trace)
        span = _tracer().start_span(
            f"process {job.task}",
            context=context.Context(),
            kind=trace.SpanKind.CONSUMER,
            links=[] if sent is None else [trace.Link(sent)],
            attributes={
                "messaging.system": "pgqueue",
                "messaging.operation.type": "process",
                "messaging.operation.name": "process",
                "messaging.destination.name": job.queue_name,
                "messaging.message.id": str(job.id),
                "pgqueue.task": job.task,
                "pgqueue.attempt": job.attempt,
                "pgqueue.max_attempts": job.max_attempts,
            },
        )
        context.attach(trace.set_span_in_context(span, context.Context()))
    except Exception as error:
        _lament(error)
        return None
    return span


def end(span: Span, outcome: str | None, failure: Failure | None) -> None:
    """The attempt is over; ``outcome`` None: nobody knows how. A failure is told as OpenTelemetry tells exceptions."""
    try:
        from opentelemetry import trace

        if outcome is not None:
            span.set_attribute("pgqueue.outcome", outcome)
        if failure is not None:
            told = {
                "exception.type": failure.error_type,
                "exception.message": failure.message,
                "exception.stacktrace": failure.traceback,
            }
            span.add_event("exception", told)
        if failure is not None and outcome not in _NO_ERRORS:
            span.set_attribute("error.type", failure.error_type)
            span.set_status(trace.Status(trace.StatusCode.ERROR, f"{failure.error_type}: {failure.message}"))
    except Exception as error:
        _lament(error)
    _end(span)


def _read(written: str | None) -> SpanContext | None:
    """What stands in a row, where anybody may have written it; None: no context."""
    if written is None:
        return None
    from opentelemetry import context, trace

    try:
        headers = json.loads(written)
        texts = {name: headers[name] for name in ("traceparent", "tracestate") if isinstance(headers.get(name), str)}
        found = trace.get_current_span(_propagator().extract(texts, context.Context())).get_span_context()
    except Exception:  # no JSON that is read, no mapping, no text that is one
        return None
    return found if found.is_valid else None


# -- OpenTelemetry ---------------------------------------------------------------------------------------------


def flush() -> None:
    """Have exported what has ended, for a second: a worker's process does not wait long for Python's own end."""
    if not conf.current().TRACING:
        return
    # A thread, since processors do not keep to a time that they are given: a collector may not answer.
    thread = threading.Thread(target=_flush, name="pgqueue flush", daemon=True)
    thread.start()
    thread.join(_FLUSH_SECONDS)


def _flush() -> None:
    try:
        from opentelemetry import trace

        # Of the SDK, not of the API.
        flush = getattr(trace.get_tracer_provider(), "force_flush", None)
        if flush is not None:
            flush()
    except Exception as error:
        _lament(error)


@cache
def _tracer() -> Tracer:
    from opentelemetry import trace

    return trace.get_tracer("pgqueue_django")


@cache
def _propagator() -> TraceContextTextMapPropagator:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()


def _end(span: Span) -> None:
    try:
        span.end()
    except Exception as error:
        _lament(error)


def _lament(error: Exception) -> None:
    global _lament_at
    if time.monotonic() >= _lament_at:
        _lament_at = time.monotonic() + _LAMENT_SECONDS
        logger.warning(
            "tracing failed, and jobs go on: %s",
            type(error).__name__,
            exc_info=error,
            extra=logs.event("worker.trouble"),
        )

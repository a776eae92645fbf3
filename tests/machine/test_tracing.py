"""A span for each attempt, linked to who enqueued the job; and no tracer, however broken, costs a job anything."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError, connection
from django.test import Client
from verbs import rows

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import baggage, context, trace
from opentelemetry.trace import SpanKind, StatusCode

from pgqueue_django import enqueue_many, schedules, tracing, transitions
from pgqueue_django.models import Job
from pgqueue_django.states import State
from pgqueue_django.testing import run_jobs
from pgqueue_django.worker import executor
from pgqueue_django.worker.executor import Attempt, lease_clock
from tests.machine import handlers, spans, traced_handlers

from .workers import GRACE, REAL_DATABASE, Process, Running, job, notes, seconds, wait_for, wait_for_state

pytestmark = REAL_DATABASE
Drain = Callable[..., Running]
Worker = Callable[..., Running]
Start = Callable[..., Process]
Gate = Callable[[], Any]

tracer = trace.get_tracer("the tests")
TRACED: dict[str, Any] = {"PGQUEUE": {"TRACING": True}}


@pytest.fixture(autouse=True)
def traced(settings: Any) -> Iterator[None]:
    spans.begin()
    settings.PGQUEUE = TRACED["PGQUEUE"]
    spans.exporter.clear()
    yield
    spans.breakable.error = None


@contextmanager
def request() -> Iterator[Any]:
    """The span of a request, as an instrumentation of Django makes it."""
    with tracer.start_as_current_span("GET /", kind=SpanKind.SERVER) as span:
        yield span


def ended(name: str = "") -> list[Any]:
    """The spans that have ended, in that order."""
    return [span for span in spans.exporter.get_finished_spans() if span.name.startswith(name)]


def attempts(enqueued: Any) -> list[Any]:
    return [span for span in ended("process ") if span.attributes["messaging.message.id"] == str(enqueued.id)]


def the_attempt(enqueued: Any, timeout: float = 15) -> Any:
    """The span of its only attempt, once that has ended."""
    (span,) = wait_for(lambda: attempts(enqueued), timeout)
    return span


def place(span: Any) -> tuple[int, int]:
    found = span if isinstance(span, trace.SpanContext) else span.get_span_context()
    return found.trace_id, found.span_id


def links(span: Any) -> list[tuple[int, int]]:
    return [place(link.context) for link in span.links]


def written(span: Any) -> dict[str, str]:
    """What is in the rows of its jobs."""
    found = span.get_span_context()
    return {"traceparent": f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"}


def errors(span: Any) -> list[str]:
    return [event.attributes["exception.type"] for event in span.events if event.name == "exception"]


# -- who enqueued it -------------------------------------------------------------------------------------------


def test_a_view_and_its_job_are_two_traces_with_a_link(drain: Drain, settings: Any) -> None:
    settings.ROOT_URLCONF, settings.MIDDLEWARE = "tests.machine.site", []
    with request() as view:
        (id,) = Client().get("/one/").json()["ids"]
    (sent,) = ended("enqueue ")
    assert place(sent.parent) == place(view)
    assert (sent.name, sent.kind) == (f"enqueue {handlers.do_nothing.path}", SpanKind.PRODUCER)
    assert dict(sent.attributes) == {
        "messaging.system": "pgqueue",
        "messaging.operation.type": "send",
        "messaging.operation.name": "enqueue",
        "messaging.destination.name": "default",
        "messaging.message.id": str(id),
        "pgqueue.task": handlers.do_nothing.path,
    }
    assert job(id).trace == written(sent)
    drain()
    span = the_attempt(job(id))
    assert (span.name, span.kind) == (f"process {handlers.do_nothing.path}", SpanKind.CONSUMER)
    assert span.parent is None
    assert span.context.trace_id != view.context.trace_id
    assert links(span) == [place(sent)]
    assert (span.status.status_code, span.events) == (StatusCode.UNSET, ())
    assert dict(span.attributes) == {
        "messaging.system": "pgqueue",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": str(id),
        "pgqueue.task": handlers.do_nothing.path,
        "pgqueue.attempt": 1,
        "pgqueue.max_attempts": 5,
        "pgqueue.outcome": "succeeded",
    }


@pytest.mark.parametrize("count", [1, 3, 120], ids=["one", "insert", "copy"])
@pytest.mark.parametrize("keyed", [False, True], ids=["without keys", "with keys"])
def test_a_bulk_is_one_span_that_all_its_jobs_link_to(drain: Drain, count: int, keyed: bool) -> None:
    task = handlers.do_nothing
    calls = [task.using(idempotency_key=f"key-{n}" if keyed else None).call() for n in range(count)]
    with request() as view:
        enqueued = enqueue_many([*calls, *([handlers.do_nothing_async.call()] if count > 1 else [])])
    (sent,) = ended("enqueue")
    assert place(sent.parent) == place(view)
    if count > 1:
        assert sent.name == "enqueue"
        assert sent.attributes["messaging.batch.message_count"] == len(enqueued)
    assert list(Job.objects.values_list("trace", flat=True)) == [written(sent)] * len(enqueued)
    drain(concurrency=4)
    assert [links(span) for span in ended("process ")] == [[place(sent)]] * len(enqueued)


def test_a_task_of_djangos_own(drain: Drain) -> None:
    pytest.importorskip("pgqueue_django.compat", exc_type=ImproperlyConfigured, reason="no django.tasks here")
    from tests.machine import django_handlers

    with request() as view:
        result = django_handlers.give.enqueue(1)
    (sent,) = ended("enqueue ")
    assert place(sent.parent) == place(view)
    assert sent.attributes["messaging.message.id"] == result.id
    drain()
    (span,) = ended("process ")
    assert (links(span), span.attributes["pgqueue.outcome"]) == ([place(sent)], "succeeded")


def test_outside_of_a_trace_there_is_no_span_and_nothing_in_the_row(drain: Drain) -> None:
    first = handlers.do_nothing.enqueue()
    enqueue_many([handlers.do_nothing.call() for _ in range(60)])
    assert ended() == []
    drain()
    assert not Job.objects.filter(trace__isnull=False).exists()
    span = the_attempt(first)
    assert (span.parent, links(span), span.attributes["pgqueue.outcome"]) == (None, [], "succeeded")
    assert len(ended("process ")) == 61


def test_a_tick_of_a_schedule_has_nobody_to_link_to(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "_declared", {})
    schedules.periodic("* * * * * *", name="each second", args=["tick"])(handlers.write)
    worker()
    wait_for(lambda: ended("process "))
    assert [links(span) for span in ended("process ")] == [[]] * len(ended("process "))
    assert not Job.objects.filter(trace__isnull=False).exists()


def test_a_request_that_is_not_sampled_makes_no_span_and_hands_that_on(drain: Drain) -> None:
    unsampled = trace.SpanContext(7, 9, is_remote=True, trace_flags=trace.TraceFlags(0))
    with trace.use_span(trace.NonRecordingSpan(unsampled)):
        enqueued = handlers.do_nothing.enqueue()
    assert ended() == []
    assert job(enqueued).trace == {"traceparent": f"00-{7:032x}-{9:016x}-00"}
    drain()
    assert links(the_attempt(enqueued)) == [(7, 9)]


@pytest.mark.parametrize(("length", "kept"), [(200, True), (600, False)])
def test_a_row_has_a_bounded_trace_state_and_no_baggage(length: int, kept: bool) -> None:
    members = [(f"vendor{n}", "x" * 89) for n in range(length // 100)]
    parent = trace.SpanContext(7, 9, True, trace.TraceFlags(1), trace.TraceState(members))
    token = context.attach(baggage.set_baggage("customer", "somebody", trace.set_span_in_context(
        trace.NonRecordingSpan(parent))))  # fmt: skip
    try:
        with request():
            enqueued = handlers.do_nothing.enqueue()
    finally:
        context.detach(token)
    stored = job(enqueued).trace
    assert set(stored) == {"traceparent", *(["tracestate"] if kept else [])}
    assert "somebody" not in json.dumps(stored)
    assert len(json.dumps(stored)) < 700


def test_an_enqueue_that_the_database_refuses_ends_its_span_without_the_payload() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE pgqueue_job ADD CONSTRAINT refused CHECK (task <> %s)", [handlers.write.path])
    try:
        with request() as view:
            with pytest.raises(IntegrityError, match="refused"):
                handlers.write.enqueue("a secret")
            assert trace.get_current_span() is view
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE pgqueue_job DROP CONSTRAINT refused")
    (sent,) = ended("enqueue ")
    assert (sent.status.status_code, sent.attributes["error.type"]) == (StatusCode.ERROR, "IntegrityError")
    assert "a secret" not in sent.to_json()


def test_the_span_of_an_enqueue_is_current_for_its_statements_and_no_longer() -> None:
    def watch(execute: Any, sql: str, *args: Any) -> Any:
        if "INSERT" in sql:  # not the NOTIFY after the commit
            current.append(trace.get_current_span().name)
        return execute(sql, *args)

    current: list[str] = []
    with request() as view, connection.execute_wrapper(watch):
        handlers.do_nothing.enqueue()
        assert trace.get_current_span() is view
        enqueue_many([handlers.do_nothing.call() for _ in range(2)])
        assert trace.get_current_span() is view
    assert current == [f"enqueue {handlers.do_nothing.path}"] * 2


# -- what a handler makes --------------------------------------------------------------------------------------

WORK = [traced_handlers.work, traced_handlers.work_async, traced_handlers.work_in_thread, traced_handlers.work_atomic]


@pytest.mark.parametrize("task", WORK, ids=lambda task: task.path.rpartition(".")[2])
@pytest.mark.parametrize("kit", [False, True], ids=["worker", "run_jobs"])
def test_spans_of_a_handler_are_children_and_its_jobs_link_to_them(drain: Drain, task: Any, kit: bool) -> None:
    with request() as view:
        first = task.enqueue()
    if kit:
        with request():
            assert [ran.state for ran in run_jobs()] == [State.SUCCEEDED] * 2
            assert trace.get_current_span().name == "GET /"
    else:
        drain()
    span = the_attempt(first)
    (work,) = ended("work")
    _, sent = ended("enqueue ")
    assert (span.parent, span.attributes["pgqueue.outcome"]) == (None, "succeeded")
    assert place(work.parent) == place(span)
    assert place(sent.parent) == place(work)
    second = next(one for one in ended("process ") if one is not span)
    assert links(second) == [place(sent)]
    assert second.parent is None
    assert len({view.context.trace_id, span.context.trace_id, second.context.trace_id}) == 3


def test_an_attempt_leaves_no_span_to_the_next_one_on_its_thread(drain: Drain) -> None:
    jobs = enqueue_many([handlers.do_nothing.call() for _ in range(20)])
    drain(concurrency=1)
    assert [span.parent for span in ended("process ")] == [None] * 20
    assert {len(attempts(one)) for one in jobs} == {1}


# -- how it ended ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fail", [handlers.fail, handlers.fail_async], ids=["plain", "async"])
def test_each_attempt_is_a_span_and_a_retry_or_a_requeue_keeps_the_link(drain: Drain, fail: Any) -> None:
    with request():
        enqueued = fail.using(max_attempts=2).enqueue("exception")
    (sent,) = ended("enqueue ")
    for number, outcome in enumerate(["retrying", "dead", "retrying"], 1):
        drain()
        span = attempts(enqueued)[number - 1]
        assert links(span) == [place(sent)]
        assert span.attributes["pgqueue.outcome"] == outcome
        assert span.attributes["pgqueue.attempt"] == (1, 2, 1)[number - 1]
        error_type = job(enqueued).history[-1]["error_type"]
        assert (span.attributes["error.type"], errors(span)) == (error_type, [error_type])
        assert span.status.status_code == StatusCode.ERROR
        assert span.events[0].attributes["exception.stacktrace"] == job(enqueued).history[-1]["traceback"]
        if outcome == "retrying":
            transitions.run_now("default", [enqueued.id])
        else:
            transitions.requeue("default", [enqueued.id])
    assert len({span.context.trace_id for span in attempts(enqueued)}) == 3


def test_a_failure_for_good_and_arguments_that_no_longer_fit(drain: Drain) -> None:
    failed, unfit = handlers.fail.enqueue("permanent"), handlers.takes_number.enqueue(1)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET kwargs = '{\"no\": 1}' WHERE id = %s", [unfit.id])
    drain()
    assert {the_attempt(one).attributes["pgqueue.outcome"] for one in (failed, unfit)} == {"failed"}
    assert errors(the_attempt(unfit)) == [job(unfit).history[-1]["error_type"]]


@pytest.mark.parametrize("task", [handlers.overrun_in_a_loop, handlers.overrun_async], ids=["plain", "async"])
def test_a_timeout_ends_the_span(worker: Worker, task: Any) -> None:
    late = task.enqueue()
    running = worker(concurrency=1)
    span = the_attempt(late)
    assert span.attributes["pgqueue.outcome"] == "retrying"
    assert span.status.status_code == StatusCode.ERROR
    assert len(errors(span)) == 1
    wait_for(lambda: running.loop._slots.load == 0)
    assert running.loop._slots._interrupted == set()


def test_who_swallows_its_timeout_has_not_succeeded(worker: Worker, gate: Gate) -> None:
    door = gate()
    late = handlers.overrun_at.enqueue(str(door))
    worker(concurrency=1)
    wait_for_state(late, State.RETRYING)
    assert attempts(late) == []
    door.open()
    span = the_attempt(late)
    assert (span.attributes["pgqueue.outcome"], span.attributes["error.type"]) == ("retrying", "JobTimeout")


def test_a_handler_that_nothing_stops_has_its_span_ended_with_its_worker_and_only_once(
    worker: Worker, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    door = gate()
    late = handlers.overrun_at.enqueue(str(door))
    running = worker(concurrency=1)
    assert running.join() == 8
    span = the_attempt(late)
    assert (span.attributes["pgqueue.outcome"], span.attributes["error.type"]) == ("retrying", "JobTimeout")
    assert running.loop.has_deaf_handlers
    door.open()
    wait_for(lambda: not running.loop.has_deaf_handlers)
    assert attempts(late) == [span]
    assert [record.getMessage() for record in caplog.records if record.name.startswith("opentelemetry")] == []


def test_a_commit_that_came_before_the_loops_verdict_is_what_the_span_says() -> None:
    enqueued = handlers.write_atomic.enqueue()
    (held,) = rows.claim()
    attempt = Attempt(held, handlers.write_atomic, lease_clock() + 60)
    attempt.verdict = "lost"  # while the COMMIT is on its way
    executor.run(attempt, "default", [connection])
    assert job(enqueued).state == State.SUCCEEDED
    assert the_attempt(enqueued).attributes["pgqueue.outcome"] == "succeeded"


def cancel(enqueued: Any) -> None:
    assert transitions.cancel("default", [enqueued.id])


def take_away(enqueued: Any) -> None:
    rows.move_clock(enqueued.id, "lease_expires_at", -1)
    assert transitions.reap("default", by="another") == 1


@pytest.mark.parametrize(
    ("act", "outcome", "status"),
    [(cancel, "cancelled", StatusCode.UNSET), (take_away, "lost", StatusCode.ERROR)],
    ids=["cancelled", "lost"],
)
@pytest.mark.parametrize("task", [handlers.write_and_wait, handlers.write_and_await], ids=["plain", "async"])
def test_an_attempt_that_counts_no_more_says_why(
    worker: Worker, gate: Gate, settings: Any, task: Any, act: Callable[[Any], None], outcome: str, status: StatusCode
) -> None:
    settings.PGQUEUE = {**TRACED["PGQUEUE"], "CHORE_INTERVAL": 300}
    enqueued = task.enqueue(str(gate()))
    worker(concurrency=1, lease=3.0)
    wait_for(lambda: notes("begun"))
    act(enqueued)
    span = the_attempt(enqueued)
    assert (span.attributes["pgqueue.outcome"], span.status.status_code) == (outcome, status)


def test_what_a_stop_has_given_back_is_released_also_where_the_handler_goes_on(worker: Worker, gate: Gate) -> None:
    heard, deaf = gate(), gate()
    jobs = [handlers.write_and_wait.enqueue(str(heard)), handlers.write_and_wait_deaf.enqueue(str(deaf))]
    running = worker(concurrency=2, shutdown_timeout=0.1)
    wait_for(lambda: len(notes("begun")) == 2)
    assert running.stop() == 7
    for enqueued in jobs:
        span = the_attempt(enqueued)
        assert (span.attributes["pgqueue.outcome"], span.status.status_code) == ("released", StatusCode.UNSET)


def test_two_hundred_timeouts_hit_handlers_and_not_the_spans(drain: Drain, log: Any) -> None:
    late = enqueue_many([handlers.overrun_in_sql_soon.call() for _ in range(200)])
    quick = enqueue_many([handlers.do_nothing.call() for _ in range(200)])
    drain(concurrency=16, timeout=90)
    counts = Counter(span.attributes["pgqueue.outcome"] for span in ended("process "))
    assert counts == {"retrying": 200, "succeeded": 200}
    assert all(len(attempts(one)) == 1 for one in late + quick)
    assert log("tracing failed") == []


# -- rows that anybody may have written, tracers that fail -----------------------------------------------------

GARBAGE = [
    "7",
    "[]",
    '"00-1-2-01"',
    "{}",
    '{"traceparent": 5}',
    '{"traceparent": "00-1-2-01"}',
    '{"traceparent": ["00"]}',
    json.dumps({"traceparent": f"00-{0:032x}-{0:016x}-01"}),
    json.dumps({"traceparent": "x" * 100_000}),
    "[" * 5_000 + "]" * 5_000,
]


def test_garbage_in_the_row_costs_a_link_and_no_job(drain: Drain, log: Any) -> None:
    jobs = enqueue_many([handlers.do_nothing.call() for _ in GARBAGE])
    with connection.cursor() as cursor:
        for enqueued, text in zip(jobs, GARBAGE, strict=True):
            cursor.execute("UPDATE pgqueue_job SET trace = %s::jsonb WHERE id = %s", [text, enqueued.id])
    drain()
    for enqueued in jobs:
        span = the_attempt(enqueued)
        assert (span.attributes["pgqueue.outcome"], links(span)) == ("succeeded", [])
    assert log("tracing failed") == []


@pytest.mark.parametrize("state", ["=,=,\u0142", 5, ["a=b"], "x" * 10_000], ids=lambda state: str(state)[:10])
def test_a_trace_state_that_is_garbage_costs_no_link(drain: Drain, state: Any) -> None:
    enqueued = handlers.do_nothing.enqueue()
    written = json.dumps({"traceparent": f"00-{7:032x}-{9:016x}-01", "tracestate": state})
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET trace = %s::jsonb WHERE id = %s", [written, enqueued.id])
    drain()
    assert links(the_attempt(enqueued)) == [(7, 9)]


@pytest.mark.parametrize("at", ["start", "end"])
def test_a_processor_that_fails_costs_no_enqueue_and_no_attempt(
    drain: Drain, log: Any, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    monkeypatch.setattr(tracing, "_lament_at", 0.0)
    with request():
        spans.breakable.error, spans.breakable.at = ValueError("the processor's own"), at
        before = spans.breakable.raised
        jobs = [handlers.do_nothing.enqueue(), handlers.do_nothing_async.enqueue()]
        jobs += enqueue_many([handlers.write_atomic.call() for _ in range(60)])
        failed = handlers.fail.enqueue("permanent")
        drain()
        spans.breakable.error = None
    assert {job(one).state for one in jobs} == {State.SUCCEEDED}
    assert job(failed).state == State.FAILED
    assert set(Job.objects.values_list("attempts", flat=True)) == {1}
    assert spans.breakable.raised - before == 4 + 63
    assert log("tracing failed") == ["tracing failed, and jobs go on: ValueError"]


# -- processes -------------------------------------------------------------------------------------------------


@pytest.fixture
def spans_file(tmp_path: Path) -> Path:
    return tmp_path / "spans"


def test_what_a_process_has_traced_is_exported_before_it_ends(process: Start, spans_file: Path) -> None:
    jobs = enqueue_many([handlers.do_nothing.call() for _ in range(50)])
    settings = {**TRACED, "APPS": ["tests.machine.spans.Traced"]}
    started = process("--drain", settings=settings, environment={"SPANS": str(spans_file)})
    assert started.wait() == 0, started.log
    assert spans_file.read_text() == f"process {handlers.do_nothing.path} succeeded\n" * len(jobs)


@pytest.mark.parametrize("arguments", [(), ("--processes", "1")], ids=["alone", "supervised"])
def test_also_where_a_handler_goes_on(process: Start, spans_file: Path, gate: Gate, arguments: tuple[str, ...]) -> None:
    handlers.write_and_wait_deaf.enqueue(str(gate()))
    settings = {**TRACED, "APPS": ["tests.machine.spans.Traced"]}
    started = process(
        "--shutdown-timeout", "0.1", *arguments, settings=settings, environment={"SPANS": str(spans_file)}
    )
    wait_for(lambda: notes("begun"), 20)
    assert started.stop() == 7, started.log
    assert spans_file.read_text() == f"process {handlers.write_and_wait_deaf.path} released\n"


def test_an_exporter_that_hangs_delays_the_end_of_a_process_by_a_second(process: Start, spans_file: Path) -> None:
    os.mkfifo(spans_file)  # nobody reads it: whoever opens it waits
    settings = {**TRACED, "APPS": ["tests.machine.spans.Traced"]}
    started = process(settings=settings, environment={"SPANS": str(spans_file)})
    wait_for_state(handlers.do_nothing.enqueue(), State.SUCCEEDED, timeout=30)
    assert seconds(lambda: started.stop()) < 1 + 1 + GRACE  # the interpreter's own end has another one
    assert started.exit_code == 0


def test_without_an_sdk_nothing_is_written(process: Start) -> None:
    first = traced_handlers.work.enqueue()
    started = process("--drain", settings=TRACED)
    assert started.wait() == 0, started.log
    assert (job(first).state, Job.objects.count()) == (State.SUCCEEDED, 2)
    assert not Job.objects.filter(trace__isnull=False).exists()
    assert "tracing failed" not in started.log


@pytest.fixture
def without_opentelemetry(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that cannot import it, and that writes down each try."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'opentelemetry':\n"
        f"            open({str(tmp_path / 'tries')!r}, 'a').write(name)\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])}


def test_switched_off_it_is_never_imported_nor_needed(
    process: Start, without_opentelemetry: dict[str, str], tmp_path: Path
) -> None:
    jobs = [handlers.do_nothing.enqueue(), handlers.enqueue_at_once.enqueue(3), handlers.fail.enqueue("permanent")]
    started = process("--drain", environment=without_opentelemetry)
    assert started.wait() == 0, started.log
    assert [job(one).state for one in jobs] == [State.SUCCEEDED, State.SUCCEEDED, State.FAILED]
    assert not (tmp_path / "tries").exists()


def test_switched_on_without_it_is_an_error_of_the_checks(
    process: Start, without_opentelemetry: dict[str, str], tmp_path: Path
) -> None:
    started = process("--drain", settings=TRACED, environment=without_opentelemetry)
    assert started.wait() == 1
    assert "pgqueue.E004" in started.log
    assert 'pip install "pgqueue_django[otel]"' in started.log.replace("Pip", "pip")
    assert (tmp_path / "tries").exists()


def test_a_log_of_it_has_an_event(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_lament_at", 0.0)
    with caplog.at_level(logging.WARNING, "pgqueue_django"):
        tracing._lament(ValueError("x"))
        tracing._lament(ValueError("y"))
    assert [getattr(record, "event", None) for record in caplog.records] == ["worker.trouble"]

"""What the worker logs: events with fixed names, as text or JSON, and the job of the project's own records."""

from __future__ import annotations

import ast
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from django.core.management import call_command

import pgqueue_django
from pgqueue_django import enqueue_many, logs
from pgqueue_django.models import Job
from pgqueue_django.states import State
from tests.machine import handlers

from .workers import REAL_DATABASE, ROOT, Process, Running, job

pytestmark = REAL_DATABASE
Drain = Callable[..., Running]
Start = Callable[..., Process]

# Without the shop's own: nothing else would print our records.
SILENT: dict[str, Any] = {"LOGGING": {}}
SECRET = "4111111111111111"


def log_calls() -> Iterator[tuple[str, ast.Call]]:
    package = Path(pgqueue_django.__file__).parent
    others = [package / "transitions.py", package / "schedules.py"]
    for path in [*package.glob("worker/*.py"), *package.glob("management/**/*.py"), *others]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and re.match(r"logger\.(?!isEnabledFor)", ast.unparse(node.func)):
                yield f"{path.name}:{node.lineno}", node


def test_every_record_has_an_event_of_the_list_and_the_list_is_in_the_docs() -> None:
    used: set[str] = {"job.succeeded", "job.retrying", "job.failed", "job.dead"}
    for where, call in log_calls():
        extra = next((word.value for word in call.keywords if word.arg == "extra"), None)
        assert isinstance(extra, ast.Call), f"{where} has no event"
        assert ast.unparse(extra.func).endswith(".event"), where
        used |= set(re.findall(r"'([a-z]+\.[a-z_]+)'", ast.unparse(extra.args[0])))
    listed = set(get_args(logs.Event))
    assert used == listed
    page = (ROOT / "docs/worker.md").read_text()
    assert set(re.findall(r"^\| `((?:worker|job|database|process|schedule)\.[a-z_]+)`", page, re.M)) == listed


def test_json_is_one_object_a_line_with_the_facts_and_no_payload(process: Start) -> None:
    good = handlers.give.enqueue(SECRET)
    bad = handlers.fail_with_argument.using(max_attempts=1).enqueue(SECRET)
    started = process("--log-format", "json", "--drain", "--name", "counter-7", settings=SILENT)
    assert started.wait() == 0
    lines = [json.loads(line) for line in started.log.splitlines()]
    by_event: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        assert line["worker"].startswith("counter-7:")
        assert (line["pid"], line["logger"]) == (started.pid, "pgqueue_django.worker")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line["time"])
        by_event.setdefault(line["event"], []).append(line)
    assert {"worker.started", "worker.progress", "worker.stopped", "job.succeeded", "job.dead"} <= set(by_event)
    (done,) = by_event["job.succeeded"]
    assert (done["job_id"], done["task"], done["queue_name"], done["attempt"]) == (
        *(good.id, "tests.machine.handlers.give", "default", 1),
    )
    assert 0 <= done["run_seconds"] < 60
    assert (by_event["job.dead"][0]["job_id"], by_event["job.dead"][0]["level"]) == (bad.id, "WARNING")
    assert by_event["job.dead"][0]["error_type"] == "ValueError"
    assert by_event["worker.stopped"][0]["counts"] == {"succeeded": 1, "dead": 1}
    assert SECRET not in "".join(json.dumps(line) for line in by_event["job.succeeded"])


def test_text_begins_with_the_event(process: Start) -> None:
    handlers.do_nothing.enqueue()
    started = process("--drain", settings=SILENT)
    assert started.wait() == 0
    assert re.search(r"^[-\d]+ [\d:,]+ INFO job\.succeeded: tests\.machine\.handlers\.do_nothing #", started.log, re.M)


def test_a_json_line_survives_what_json_cannot_say() -> None:
    record = logging.makeLogRecord({"msg": "a\nb \udcff", "levelname": "INFO", "event": "x", "strange": object()})
    try:
        raise ValueError("boom")
    except ValueError:
        record.exc_info = sys.exc_info()
    text = logs.JsonFormatter(worker="w").format(record)
    assert "\n" not in text
    assert text.isascii()
    line = json.loads(text)
    assert (line["worker"], line["message"]) == ("w", "a\nb \udcff")
    assert "ValueError: boom" in line["traceback"]


# -- the project's own records ---------------------------------------------------------------------------------


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    """What the handlers log, as a handler of the project's own with our filter sees it."""
    seen: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record)

    keep = Keep()
    keep.addFilter(logs.JobFilter())
    shop = logging.getLogger("machine_shop")
    shop.addHandler(keep)
    shop.setLevel(logging.INFO)
    yield seen
    shop.removeHandler(keep)


def test_the_projects_own_records_know_their_job(drain: Drain, records: list[logging.LogRecord]) -> None:
    """Plain, atomic and async handlers, their sync_to_async parts and to_thread; side by side, each its own."""
    tasks = [handlers.log_a_line, handlers.log_a_line_atomic, handlers.log_a_line_async]
    jobs = enqueue_many(task.using(queue_name="logged").call() for task in tasks for _ in range(20))
    drain(concurrency=4)
    logging.getLogger("machine_shop").info("outside")
    assert set(Job.objects.values_list("state", flat=True)) == {State.SUCCEEDED}
    *inside, outside = records
    assert (outside.job_id, outside.task, outside.attempt) == ("-", "-", "-")  # type: ignore[attr-defined]
    for record in inside:
        row = job(int(record.getMessage()))
        told = (record.job_id, record.task, record.queue_name, record.attempt)  # type: ignore[attr-defined]
        assert told == (row.pk, row.task, "logged", 1)
    # Three places in each async one.
    assert len(inside) == 20 + 20 + 60
    assert {int(record.getMessage()) for record in inside} == {one.id for one in jobs}


def test_a_record_keeps_what_it_says_itself(records: list[logging.LogRecord]) -> None:
    logging.getLogger("machine_shop").info("own", extra={"job_id": "mine"})
    assert (records[0].job_id, records[0].task) == ("mine", "-")  # type: ignore[attr-defined]


def test_the_filter_and_the_formatter_can_be_named_in_settings_before_django_is_set_up() -> None:
    code = """
import logging.config
logging.config.dictConfig({
    "version": 1,
    "filters": {"job": {"()": "pgqueue_django.logs.JobFilter", "default": None}},
    "formatters": {"json": {"()": "pgqueue_django.logs.JsonFormatter", "service": "shop"}},
    "handlers": {"all": {"class": "logging.StreamHandler", "filters": ["job"], "formatter": "json"}},
    "root": {"handlers": ["all"], "level": "INFO"},
})
logging.info("hello")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    line = json.loads(done.stderr)
    assert (line["service"], line["message"], line["job_id"]) == ("shop", "hello", None)


def test_what_the_project_has_set_up_is_left_alone(log: Callable[..., list[str]]) -> None:
    package = logging.getLogger("pgqueue_django")
    before = list(package.handlers)
    call_command("pgqueue_worker", "--drain", "--no-listen", "--log-format", "json")
    assert package.handlers == before
    assert len(log("left to settings.LOGGING")) == 1

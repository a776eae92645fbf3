"""schemathesis against the JSON API, over the network, with a worker beside it.

It makes requests out of openapi.json, right ones and wrong ones, and looks at each answer with all of its checks and
those of ``fuzz_hooks``. What it leaves behind has to be a queue in order.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from machine.workers import REAL_DATABASE, ROOT
from verbs.rows import GRACE, make_job, wait_for

from pgqueue_django.states import State
from tests.doors.opened.tasks import echo, fail

from .websites import PREFIX, TOKEN, Website, website, worker

pytestmark = REAL_DATABASE

PHASES = "examples,coverage,fuzzing,stateful"
HEADERS = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}


def ask(site: Website, method: str, path: str, body: Any = None) -> Any:
    line = http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)
    try:
        line.request(method, f"{PREFIX}{path}", None if body is None else json.dumps(body), HEADERS)
        answer = line.getresponse()
        assert answer.status in (200, 201), answer.status
        return json.load(answer)
    finally:
        line.close()


def fuzz(site: Website, folder: Path, examples: int, seed: int = 1, phases: str = PHASES, seconds: float = 200) -> None:
    """So many examples of each operation, and what it does beside that. Raises AssertionError for what it finds."""
    folder.mkdir()
    document = ask(site, "GET", "/openapi.json")
    # Of tasks that cannot be enqueued it would learn nothing but that.
    document["components"]["schemas"]["NewJob"]["properties"]["task"] = {"enum": [echo.path, fail.path]}
    if site.interface == "wsgi":  # where nobody waits
        job = document["paths"]["/jobs/{id}"]["get"]
        job["parameters"] = [one for one in job["parameters"] if one["name"] != "wait"]
    file = folder / "openapi.json"
    file.write_text(json.dumps(document))
    config = ROOT / "tests" / "doors" / "schemathesis.toml"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", config, "run", file),
            *("--url", f"{site.url}{PREFIX}", "--header", f"Authorization: Bearer {TOKEN}", "--checks", "all"),
            *("--max-examples", f"{examples}", "--seed", f"{seed}", "--phases", phases, "--no-shrink"),
        ],
        cwd=folder,  # it leaves files there
        env={**os.environ, "PYTHONPATH": f"{ROOT}", "SCHEMATHESIS_HOOKS": "tests.doors.fuzz_hooks"},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def stuck() -> list[Any]:
    """Jobs that nobody does anything about, though somebody should."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id, state, queue_name, task FROM pgqueue_job WHERE state = 'running' OR "
            "(state = 'queued' AND queue_name NOT IN (SELECT name FROM pgqueue_queue "
            "    WHERE paused_at IS NOT NULL AND (resume_at IS NULL OR resume_at > statement_timestamp()))) OR "
            "(state IN ('scheduled', 'retrying') AND run_after < statement_timestamp() - interval '3 s') LIMIT 10"
        )
        return cursor.fetchall()


def open_transactions() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND state LIKE 'idle in transaction%'"
        )
        return int(cursor.fetchone()[0])


def is_in_order(site: Website) -> None:
    """After what was done to it: nothing went wrong, nothing is left, and it works."""
    answered = site.answered()
    assert answered[HTTPStatus.SERVICE_UNAVAILABLE] <= answered.total() / 500, answered
    assert not [status for status in answered if status >= 500 and status != HTTPStatus.SERVICE_UNAVAILABLE], answered
    assert {200, 201, 400, 404, 409, 422} <= set(answered), "it has not come far"
    assert "Traceback" not in site.log.read_text(errors="replace")
    wait_for(lambda: not stuck(), 60)
    wait_for(lambda: open_transactions() == 0)
    job = ask(site, "POST", "/jobs", {"task": echo.path, "args": ["still"], "queue_name": "after-all"})
    wait_for(lambda: ask(site, "GET", f"/jobs/{job['id']}")["state"] == "succeeded", 10 + GRACE)


def fill() -> None:
    """Jobs to be found, in every state that stays."""
    for state in (State.SCHEDULED, State.RETRYING, State.SUCCEEDED, State.FAILED, State.DEAD, State.CANCELLED):
        for task in (echo.path, fail.path):
            make_job(state, task=task)


@pytest.mark.parametrize(
    ("interface", "phases"), [("asgi", PHASES), ("wsgi", "examples,fuzzing")], ids=["asgi", "wsgi"]
)
def test_every_answer_is_as_documented_and_the_queue_is_in_order_afterwards(
    tmp_path: Path, interface: str, phases: str
) -> None:
    fill()
    with website(tmp_path, interface) as site, worker(tmp_path):
        fuzz(site, tmp_path / "cases", examples=2, phases=phases)
        is_in_order(site)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_twenty_thousand_cases_leave_nothing_behind(tmp_path: Path) -> None:
    """A web server and a worker for all of them: what each case left in it would have added up."""
    fill()
    with website(tmp_path, "asgi") as site, worker(tmp_path), ThreadPoolExecutor(2) as two:
        fuzz(site, tmp_path / "0", examples=20, seconds=600)
        wait_for(lambda: not stuck(), 60)
        threads, memory = site.process.num_threads(), site.process.memory_info().rss
        seed = 1
        while site.answered().total() < 20_000:
            seeds, seed = (seed + 1, seed + 2), seed + 2
            for _ in two.map(lambda one: fuzz(site, tmp_path / f"{one}", 150, seed=one, seconds=1800), seeds):
                pass
        is_in_order(site)
        print(site.answered(), threads, site.process.num_threads(), memory, site.process.memory_info().rss)
        wait_for(lambda: site.process.num_threads() <= threads + 2, 30)
        assert site.process.memory_info().rss < memory + 64 * 1024 * 1024

"""A task that this worker does not know, as in a rolling deploy: its jobs go back uncharged, and cost nobody."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from verbs import rows

from pgqueue_django import enqueue_many, snapshot, task_by_name, transitions
from pgqueue_django.models import Job, Stat
from pgqueue_django.states import State
from tests.machine import handlers

from .workers import GRACE, REAL_DATABASE, Process, Running, job, notes, wait_for_state

pytestmark = REAL_DATABASE
Drain = Callable[..., Running]
Worker = Callable[..., Running]

# A module that some processes can import, and that others cannot.
NEW_CODE = """
import os
from pgqueue_django import task

if os.environ.get("MACHINE_BROKEN"):
    raise RuntimeError("half deployed")

@task
def hello(name):
    return f"hello {name}"

not_a_task = hello.func
"""


@pytest.fixture
def new_code(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that has the new module."""
    directory = tmp_path / "new-code"
    directory.mkdir()
    (directory / "machine_new_code.py").write_text(NEW_CODE)
    return {"PYTHONPATH": str(directory)}


def seconds_ahead(job_id: Any) -> float:
    return rows.seconds_from_now(job(job_id).run_after)


def test_its_job_goes_back_uncharged_and_is_never_dead(drain: Drain, log: Callable[..., list[str]]) -> None:
    unknown = task_by_name("nowhere.at_all").using(max_attempts=1).enqueue(1)
    running = drain()
    row = job(unknown)
    assert (row.state, row.attempts, row.history, row.worker_id) == (State.SCHEDULED, 0, [], None)
    assert row.parked_at is not None
    assert row.run_after.microsecond == 0, "of thousands, those of one second come back together"
    assert 1_300 < seconds_ahead(unknown) < 2_300
    assert running.loop.counts == {}
    assert not Stat.objects.exists()
    assert len(log("nowhere.at_all")) == 1
    assert "uncharged" in log("nowhere.at_all")[0]
    assert set(snapshot.take().unknown_tasks) == {"nowhere.at_all"}


def test_the_longer_nobody_knows_it_the_longer_it_waits(drain: Drain, log: Callable[..., list[str]]) -> None:
    unknown = task_by_name("nowhere.at_all").using(max_attempts=1).enqueue()
    running = drain()
    for waited, expected in [(0, 1_800), (600, 1_800), (3_000, 3_000), (100_000, 7_200)]:
        with connection.cursor() as cursor:
            cursor.execute("UPDATE pgqueue_job SET parked_at = now() - make_interval(secs => %s)", [waited])
        assert transitions.run_now("default", [unknown.id])
        running = drain()
        assert (job(unknown).state, job(unknown).attempts) == (State.SCHEDULED, 0)
        assert 0.7 * expected < seconds_ahead(unknown) < 1.3 * expected
    assert running.loop.counts == {}
    # One line for each worker, not for each job.
    assert len(log("nowhere.at_all")) == 5


def test_of_two_kinds_of_workers_the_one_that_knows_the_task_runs_it(
    process: Callable[..., Process], new_code: dict[str, str]
) -> None:
    old = process("--concurrency", "2").wait_until_ready()
    hello = task_by_name("machine_new_code.hello")
    early = [hello.enqueue(str(number)) for number in range(5)]
    for enqueued in early:
        wait_for_state(enqueued, State.SCHEDULED)
    assert [job(enqueued).attempts for enqueued in early] == [0] * 5
    process("--concurrency", "2", environment=new_code).wait_until_ready()
    began = time.monotonic()
    late = [hello.enqueue(str(number)) for number in range(5, 25)]
    for number, enqueued in enumerate(early + late):
        assert wait_for_state(enqueued, State.SUCCEEDED, timeout=5 + GRACE).result == f"hello {number}"
    assert time.monotonic() - began < 5 + GRACE
    assert {(row.attempts, str(row.history)) for row in Job.objects.all()} == {(1, "[]")}
    assert old.stop() == 0
    assert old.log.count("machine_new_code.hello is not known here") == 1


def test_a_module_that_raises_at_import_is_an_unknown_task(
    process: Callable[..., Process], new_code: dict[str, str]
) -> None:
    enqueued = task_by_name("machine_new_code.hello").enqueue("you")
    half = process(environment={**new_code, "MACHINE_BROKEN": "1"}).wait_until_ready()
    wait_for_state(enqueued, State.SCHEDULED)
    assert "RuntimeError: half deployed" in half.log
    process(environment=new_code)
    assert wait_for_state(enqueued, State.SUCCEEDED, timeout=20).result == "hello you"
    assert half.stop() == 0


RAISES = {
    "exits": "import sys; sys.exit(3)",
    "no_syntax": "def :",
    "recurses": "def f(): f()\nf()",
    "nul_text": "raise ValueError('a\\0b\\udc80')",
}


def test_names_of_every_kind_that_lead_nowhere_leave_the_worker_and_the_other_jobs_alone(
    process: Callable[..., Process], new_code: dict[str, str]
) -> None:
    for name, code in RAISES.items():
        (Path(new_code["PYTHONPATH"]) / f"machine_{name}.py").write_text(code)
    names = [
        "",
        ".",
        "..",
        "nodots",
        "missing.module.task",
        "machine_new_code.missing",
        "machine_new_code.not_a_task",
        "machine_new_code",
        "tests.machine.handlers",
        "os.system",
        "builtins.exit",
        "tests.machine.handlers.SOON",
        "x" * 255,
        "a." * 127 + "b",
        "ünïcode.☃",
        "with space.and\nline",
        "../../etc/passwd",
        *(f"machine_{name}.task" for name in RAISES),
    ]
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO pgqueue_job (task) SELECT unnest(%s::text[])", [names])
        with pytest.raises(Exception, match="too long"):
            cursor.execute("INSERT INTO pgqueue_job (task) VALUES (%s)", ["x" * 10_000])
    good = [handlers.write.enqueue("good") for _ in range(10)]
    started = process("--drain", "--concurrency", "1", environment=new_code)
    assert started.wait(30) == 0
    assert {job(enqueued).state for enqueued in good} == {State.SUCCEEDED}
    assert notes() == [(0, "good")] * 10
    bad = Job.objects.exclude(pk__in=[enqueued.id for enqueued in good])
    assert {(row.state, row.attempts, row.parked_at is not None) for row in bad} == {(State.SCHEDULED, 0, True)}


def test_max_jobs_counts_only_jobs_that_ran(worker: Worker) -> None:
    enqueue_many(task_by_name("nowhere.at_all").call() for _ in range(5))
    good = [handlers.write.enqueue("good") for _ in range(3)]
    assert worker(max_jobs=2, concurrency=1).join() == 0
    assert [job(enqueued).state for enqueued in good] == [State.SUCCEEDED, State.SUCCEEDED, State.QUEUED]


def test_while_all_that_comes_is_unknown_claims_grow(drain: Drain, monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 of them in front of the others: by the slot that would be 1,250 claims, and as many releases.

    By the slot are claimed those on their last attempt alone.
    """
    last = task_by_name("nowhere.at_all").using(max_attempts=1)
    enqueue_many([last.call() for _ in range(40)] + [task_by_name("nowhere.at_all").call() for _ in range(4_960)])
    good = [handlers.write.enqueue("good") for _ in range(50)]
    sizes: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> list[transitions.Claimed]:
        claimed = claim(*args, **kwargs)
        sizes.append(len(claimed))
        return claimed

    claim = transitions.claim
    monkeypatch.setattr(transitions, "claim", counted)
    drain(concurrency=4)
    assert {job(enqueued).state for enqueued in good} == {State.SUCCEEDED}
    assert Job.objects.filter(state=State.SCHEDULED, attempts=0, parked_at__isnull=False).count() == 5_000
    assert max(sizes) <= transitions.BATCH
    assert len([size for size in sizes if size]) < 60


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("minutes", [1, 10, 60])
def test_a_hundred_thousand_of_them_leave_the_others_nine_tenths_of_their_rate(
    drain: Drain, caplog: pytest.LogCaptureFixture, minutes: int
) -> None:
    """So many minutes after a deploy: each has come back as often as its delay lets it, and now they trickle in."""
    caplog.set_level(logging.WARNING, logger="pgqueue_django.worker")
    good = 100_000

    def rate() -> float:
        enqueue_many(handlers.do_nothing.call() for _ in range(good))
        began = time.monotonic()
        # Not until the queue is dry: more of them come back all the time.
        running = drain(concurrency=4, max_jobs=good, timeout=120)
        assert running.loop.counts == {State.SUCCEEDED: good}
        return good / (time.monotonic() - began)

    def park() -> None:
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE pgqueue_job")
            # As release leaves them, at full seconds.
            cursor.execute(
                """
                INSERT INTO pgqueue_job (task, state, parked_at, run_after)
                SELECT 'nowhere.task_' || number %% 20, 'scheduled', statement_timestamp() - make_interval(mins => %s),
                       date_trunc('second', statement_timestamp() + random() * make_interval(mins => %s))
                FROM generate_series(1, 100000) number
                """,
                [minutes, max(30, minutes)],
            )
            cursor.execute("VACUUM ANALYZE pgqueue_job")

    def rate_with_them() -> float:
        park()
        return rate()

    def rate_without() -> float:
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE pgqueue_job")
        return rate()

    rate_without()  # warms up
    with_them, without = [], []
    for number in range(6):
        # Whichever comes second has it a little better or worse: they take turns.
        pair = [(with_them, rate_with_them), (without, rate_without)]
        for rates, measure in pair if number % 2 else reversed(pair):
            rates.append(measure())
    print(minutes, [round(one) for one in with_them], [round(one) for one in without])
    assert statistics.median(with_them) >= 0.9 * statistics.median(without)

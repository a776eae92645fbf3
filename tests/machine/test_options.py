"""``manage.py pgqueue_worker``: its options, its exit codes, and what it says."""

from __future__ import annotations

import re
import signal
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections
from psycopg.conninfo import make_conninfo

from pgqueue_django import enqueue_many, task_by_name
from pgqueue_django.management.commands.pgqueue_worker import Command
from pgqueue_django.models import Job
from pgqueue_django.states import State
from pgqueue_django.worker.loop import Options
from tests.machine import handlers

from .workers import REAL_DATABASE, Process, Running, database_url, job, wait_for, wait_for_state

pytestmark = REAL_DATABASE
Drain = Callable[..., Running]
Worker = Callable[..., Running]
Start = Callable[..., Process]

SECRET = "4111111111111111"


def in_a_thread(action: Callable[[], Any]) -> Any:
    """What it returned or raised, on a thread and connections of its own."""
    answer: list[Any] = []

    def run() -> None:
        try:
            answer.append(action())
        except BaseException as error:
            answer.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    return answer[0]


def states() -> dict[str, int]:
    found: dict[str, int] = {}
    for state in Job.objects.values_list("state", flat=True):
        found[state] = found.get(state, 0) + 1
    return found


def test_drain_ends_when_nothing_is_due(process: Start) -> None:
    enqueue_many(handlers.do_nothing.call() for _ in range(30))
    later = handlers.do_nothing.using(run_after=timedelta(hours=1)).enqueue()
    assert process("--drain").wait(20) == 0
    assert states() == {State.SUCCEEDED: 30, State.SCHEDULED: 1}
    assert job(later).fencing_token == 0


def test_drain_runs_what_is_due_and_not_yet_promoted(drain: Drain) -> None:
    # Again and again: it is promoted while the worker looks whether anything is left.
    for _ in range(3):
        enqueued = handlers.do_nothing.using(run_after=timedelta(hours=1)).enqueue()
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE pgqueue_job SET run_after = statement_timestamp() - interval '1 s' WHERE id = %s", [enqueued.id]
            )
        drain()
        assert job(enqueued).state == State.SUCCEEDED


def test_drain_of_an_empty_queue_ends_at_once(process: Start) -> None:
    started = process("--drain")
    assert started.wait(20) == 0
    assert "ended: no jobs" in started.log


def test_once_runs_one_job(process: Start) -> None:
    enqueue_many(handlers.do_nothing.call() for _ in range(3))
    assert process("--once").wait(20) == 0
    assert states() == {State.SUCCEEDED: 1, State.QUEUED: 2}
    assert set(Job.objects.filter(state=State.QUEUED).values_list("fencing_token", flat=True)) == {0}


def test_once_of_an_empty_queue_ends(worker: Worker) -> None:
    assert worker(drain=True, max_jobs=1).join() == 0


@pytest.mark.parametrize("concurrency", [1, 4, 50])
def test_max_jobs_ends_after_so_many_and_claims_no_more(worker: Worker, concurrency: int) -> None:
    enqueue_many(handlers.do_nothing.call() for _ in range(60))
    assert worker(max_jobs=33, concurrency=concurrency).join() == 0
    assert states() == {State.SUCCEEDED: 33, State.QUEUED: 27}
    assert set(Job.objects.filter(state=State.QUEUED).values_list("attempts", flat=True)) == {0}


def test_max_jobs_counts_failed_attempts_too(worker: Worker) -> None:
    enqueue_many(handlers.fail.call("exception") for _ in range(5))
    assert worker(max_jobs=3, concurrency=1).join() == 0
    assert states() == {State.RETRYING: 3, State.QUEUED: 2}


BAD_OPTIONS = [
    (["--concurrency", "0"], "at least 1"),
    (["--concurrency", "-3"], "at least 1"),
    (["--concurrency", "many"], "at least 1"),
    (["--concurrency", "1.5"], "at least 1"),
    (["--lease", "0.1"], "from 0.5 to"),
    (["--lease", "nan"], "from 0.5 to"),
    (["--lease", "inf"], "from 0.5 to"),
    (["--lease", "1e300"], "from 0.5 to"),
    (["--poll-interval", "0"], "from 0.01 to"),
    (["--poll-interval", "inf"], "from 0.01 to"),
    (["--poll-interval", "1e12"], "from 0.01 to"),
    (["--shutdown-timeout", "-1"], "from 0 to"),
    (["--shutdown-timeout", "nan"], "from 0 to"),
    (["--shutdown-timeout", "inf"], "from 0 to"),
    (["--max-jobs", "0"], "at least 1"),
    (["--queues", "a b"], "A-Za-z0-9_.-"),
    (["--queues", "a;b,c"], "A-Za-z0-9_.-"),
    (["--queues", ""], "A-Za-z0-9_.-"),
    (["--queues", ","], "A-Za-z0-9_.-"),
    (["--queues", "x" * 64], "A-Za-z0-9_.-"),
    (["--exclude-queues", "!"], "A-Za-z0-9_.-"),
    (["--queues", "a:0"], "not a whole number of at least 1"),
    (["--queues", "a:"], "not a whole number of at least 1"),
    (["--queues", "a:x,b"], "not a whole number of at least 1"),
    (["--queues", "a,b,a:3"], "a is named twice"),
    (["--databse", "default"], "Did you mean --database?"),
    (["--concurency", "4"], "Did you mean --concurrency?"),
    (["--log-format", "xml"], "json"),
    (["--probe-port", "x"], "no port from 0 to 65535"),
    (["--probe-port", "70000"], "no port from 0 to 65535"),
]


@pytest.mark.parametrize(("arguments", "allowed"), BAD_OPTIONS, ids=str)
def test_bad_options_end_with_2_and_say_what_is_allowed(
    capsys: pytest.CaptureFixture[str], arguments: list[str], allowed: str
) -> None:
    command = Command()
    command._called_from_command_line = True
    parser = command.create_parser("manage.py", "pgqueue_worker")
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(arguments)
    told = capsys.readouterr().err
    assert ended.value.code == 2, told
    assert allowed in told
    assert arguments[0].lstrip("-") in told


def test_a_database_that_is_not_in_the_settings_is_a_bad_option() -> None:
    with pytest.raises(CommandError, match=r"--database elsewhere: .*\(default\)") as raised:
        call_command("pgqueue_worker", "--database", "elsewhere", "--drain")
    assert raised.value.returncode == 2


def test_a_queue_that_no_task_names_is_doubted(log: Callable[..., list[str]]) -> None:
    """It may be right: a call can name any queue. Misspelt, it would stay empty and nobody would know why."""
    call_command("pgqueue_worker", "--drain", "--no-listen", "--queues", "defalt,default", "--exclude-queues", "zzz")
    assert log("no task here names it") == [
        "queue defalt: no task here names it. Did you mean default?",
        "queue zzz: no task here names it.",
    ]


def test_a_process_with_bad_options_ends_with_2(process: Start) -> None:
    started = process("--lease", "soon")
    assert started.wait(20) == 2
    assert "--lease" in started.log
    assert "Traceback" not in started.log


def test_the_banner_states_the_facts(process: Start) -> None:
    started = process(
        *("--name", "counter-7", "--queues", "b:2,a", "--exclude-queues", "c", "--concurrency", "3"),
        *("--lease", "12", "--poll-interval", "2", "--max-jobs", "1"),
    ).wait_until_ready()
    banner = next(line for line in started.log.splitlines() if "worker counter-7:" in line)
    for fact in [
        "database default",
        "queues b (at most 2), a but c",
        "3 slots",
        "lease 12 s",
        "heartbeat 4 s",
        "2 s",
        "listening",
    ]:
        assert fact in banner
    # The shop's tasks, found in the installed apps.
    assert "testproject.shop.tasks." in banner
    parameters = connections["default"].get_connection_params()
    assert parameters["dbname"] in banner
    assert parameters["password"] not in started.log
    with connection.cursor() as cursor:
        cursor.execute("SELECT name, queues, concurrency, lease_seconds FROM pgqueue_worker")
        assert cursor.fetchone() == ("counter-7", '["b", "a"]', 3, 12.0)
    assert started.stop() == 0


def test_each_outcome_is_one_line_that_holds_no_payload(
    worker: Worker, drain: Drain, log: Callable[..., list[str]]
) -> None:
    with connection.cursor() as cursor:
        # PostgreSQL's own message of it shows the whole row.
        cursor.execute(
            "ALTER TABLE pgqueue_job ADD CONSTRAINT refuse CHECK (queue_name <> 'refused' OR state <> 'succeeded'),"
            " ADD CONSTRAINT refuse_all CHECK (queue_name <> 'refused-all' OR state IN ('queued', 'running'))"
        )
    try:
        jobs = {
            "succeeded": handlers.give.enqueue(SECRET),
            "failed, payload": task_by_name(handlers.give.path).enqueue(SECRET, SECRET),
            "failed, payload by name": task_by_name(handlers.give.path).enqueue(value=1, x=SECRET),
            "retrying": handlers.fail_with_argument.enqueue(SECRET),
            "dead": handlers.fail_with_argument.using(max_attempts=1).enqueue(SECRET),
            "refused": handlers.give.using(queue_name="refused").enqueue(SECRET),
        }
        refused = handlers.give.using(queue_name="refused-all").enqueue(SECRET)
        running = drain(concurrency=2)
        for what, enqueued in jobs.items():
            lines = log(enqueued)
            assert len(lines) == 1, (what, lines)
            assert job(enqueued).state in lines[0]
            assert re.search(r"attempt 1/[15], ran \d+\.\d{3} s, picked up after \d+\.\d{3} s", lines[0]), lines[0]
        assert len(log(refused)) == 1
        assert sum(running.loop.counts.values()) == len(jobs)
        assert not [line for line in log() if SECRET in line]
    finally:
        with connection.cursor() as cursor:
            Job.objects.filter(pk=refused.id).delete()
            cursor.execute("ALTER TABLE pgqueue_job DROP CONSTRAINT refuse, DROP CONSTRAINT refuse_all")


def test_nothing_of_a_refused_outcome_in_the_log_of_a_process(process: Start) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE pgqueue_job ADD CONSTRAINT refuse_all "
            "CHECK (queue_name <> 'x' OR state IN ('queued', 'running'))"
        )
    try:
        enqueued = handlers.give.using(queue_name="x").enqueue(SECRET)
        started = process("--concurrency", "1")
        wait_for(lambda: f"#{enqueued.id}" in started.log, 20)
        assert started.stop() == 0
        assert SECRET not in started.log
    finally:
        with connection.cursor() as cursor:
            Job.objects.all().delete()
            cursor.execute("ALTER TABLE pgqueue_job DROP CONSTRAINT refuse_all")


def test_the_command_runs_in_a_thread_that_is_not_the_main_one(settings: Any) -> None:
    enqueued = handlers.write.enqueue("in a thread")
    assert in_a_thread(lambda: call_command("pgqueue_worker", "--drain", "--no-listen")) is None
    assert job(enqueued).state == State.SUCCEEDED


def test_the_command_gives_the_main_thread_back_as_it_was(worker: Worker) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    wrapper = connections["default"]
    enqueued = handlers.write.enqueue("in the main thread")
    call_command("pgqueue_worker", drain=True, no_listen=True)
    assert job(enqueued).state == State.SUCCEEDED
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert connections["default"] is wrapper


def test_the_settings_are_the_defaults(settings: Any) -> None:
    settings.PGQUEUE = {"LEASE": 9, "CONCURRENCY": 3, "LISTEN": False, "SHUTDOWN_TIMEOUT": 4}
    arguments = vars(Command().create_parser("manage.py", "pgqueue_worker").parse_args([]))
    assert (arguments["lease"], arguments["concurrency"], arguments["shutdown_timeout"]) == (9, 3, 4)
    options = Options(using="default")
    assert (options.concurrency, options.listen, options.lease, options.heartbeat) == (3, False, 9, 3)


def test_a_name_that_cannot_be_stored_does_not_stop_the_worker(drain: Drain) -> None:
    enqueued = handlers.do_nothing.enqueue()
    drain(name="bad\udc80name\0" + "x" * 300)
    wait_for_state(enqueued, State.SUCCEEDED)


# -- limits, signals, the environment --------------------------------------------------------------------------


def parsed(*words: str) -> dict[str, Any]:
    return vars(Command().create_parser("manage.py", "pgqueue_worker").parse_args(list(words)))


def test_every_option_can_be_given_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "QUEUES": "a:4,b",
        "CONCURRENCY": "3",
        "LEASE": "7.5",
        "NO_LISTEN": "1",
        "DRAIN": "false",
        "MAX_MEMORY": "9",
        "NAME": "x",
        "PROCESSES": "2",
    }
    for name, text in given.items():
        monkeypatch.setenv(f"PGQUEUE_WORKER_{name}", text)
    options = parsed("--lease", "8")
    assert (options["queues"], options["concurrency"], options["lease"]) == ({"a": 4, "b": None}, 3, 8)
    assert (options["no_listen"], options["drain"], options["max_memory"]) == (True, False, 9)
    assert (options["name"], options["processes"]) == ("x", 2)


@pytest.mark.parametrize(("name", "text"), [("CONCURRENCY", "0"), ("LEASE", "x"), ("DRAIN", "perhaps"), ("QUEUES", "")])
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(f"PGQUEUE_WORKER_{name}", text)
    with pytest.raises(CommandError, match=f"PGQUEUE_WORKER_{name}"):
        parsed()


@pytest.mark.parametrize("limit", [{"max_time": 0.5}, {"max_memory": 1}], ids=str)
def test_a_worker_at_its_limit_finishes_what_runs_and_ends(
    worker: Worker, gate: Callable[[], Any], limit: dict[str, Any]
) -> None:
    door = gate()
    enqueued = handlers.wait_unwritten.enqueue(str(door))
    running = worker(concurrency=1, **({} if "max_memory" in limit else limit))
    wait_for_state(enqueued, State.RUNNING)
    if "max_memory" in limit:
        object.__setattr__(running.loop.options, "max_memory", 1)
    wait_for(lambda: running.loop._is_retiring)
    left = handlers.do_nothing.enqueue()
    assert running.is_alive
    door.open()
    assert running.join() == 0
    assert (job(enqueued).state, job(left).state) == (State.SUCCEEDED, State.QUEUED)


def test_a_quiet_worker_claims_nothing_more_and_stays(process: Start, gate: Callable[[], Any]) -> None:
    door = gate()
    running = process("--concurrency", "2").wait_until_ready()
    begun = handlers.wait_unwritten.enqueue(str(door))
    wait_for_state(begun, State.RUNNING)
    running.signal(signal.SIGUSR2)
    wait_for(lambda: "working, 1 jobs held" in running.log)
    running.signal(signal.SIGUSR1)
    wait_for(lambda: "quiet: 1 jobs may finish" in running.log)
    left = handlers.do_nothing.enqueue()
    door.open()
    wait_for_state(begun, State.SUCCEEDED)
    running.signal(signal.SIGUSR2)
    wait_for(lambda: "quiet, 0 jobs held" in running.log)
    assert job(left).state == State.QUEUED
    running.signal(signal.SIGQUIT)
    wait_for(lambda: "most recent call first" in running.log)
    assert running.stop() == 0


def test_without_a_database_it_ends_with_4_when_it_has_waited(process: Start) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        nobody = {"DATABASE_URL": f"postgresql://nobody@127.0.0.1:{reserved.getsockname()[1]}/nothing"}
        alone = process("--db-wait", "0.5", environment=nobody)
        fleet = process("--db-wait", "0.5", "--processes", "2", environment=nobody)
        assert (alone.wait(), fleet.wait()) == (4, 4)
    assert "no database within 0.5 s" in alone.log
    assert "Traceback" not in alone.log


def test_without_its_tables_it_ends_with_5(process: Start) -> None:
    empty = make_conninfo(database_url(), dbname="postgres")
    running = process(environment={"DATABASE_URL": empty})
    assert running.wait() == 5
    assert "manage.py migrate" in running.log


@pytest.mark.parametrize("fleet", [[], ["--processes", "2"]], ids=["alone", "fleet"])
def test_fail_on_error_ends_with_6(process: Start, fleet: list[str]) -> None:
    handlers.do_nothing.enqueue()
    assert process("--drain", "--fail-on-error", *fleet).wait() == 0
    handlers.fail.enqueue("permanent")
    assert process("--drain", "--fail-on-error", *fleet).wait() == 6

"""The rules, each on a queue where something is wrong and on one where it is not; and the page that tells them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from verbs import rows

from doors.test_snapshot import add
from pgqueue_django import answers, problems, queues, snapshot, transitions
from pgqueue_django.models import MAX_WORKER_TASKS, Job, Schedule, Stat, Worker
from pgqueue_django.problems import Problem, Rule, Severity
from pgqueue_django.snapshot import Table
from pgqueue_django.states import State

pytestmark = pytest.mark.django_db(transaction=True)
URL = "/pgqueue/healthz/queues"
TOKEN = "token-of-the-test"


@pytest.fixture(autouse=True)
def no_bloat_of_other_tests(settings: Any) -> None:
    settings.PGQUEUE = {"PROBLEMS": {"dead_rows": 10**9}}


def wait_since(seconds: float, state: State = State.QUEUED, **columns: Any) -> None:
    """A job that could have run for so long."""
    job = rows.make_job(state, **columns)
    moment = rows.database_now() - timedelta(seconds=seconds)
    Job.objects.filter(pk=job.pk).update(run_after=moment, enqueued_at=moment)


def work(id: str = "w", *, heartbeat: float = 0, **columns: Any) -> None:
    values = {"id": id, "name": id, "host": "h", "pid": 1, "concurrency": 8, "lease_seconds": 30, **columns}
    Worker.objects.create(**values)
    Worker.objects.filter(id=id).update(heartbeat_at=rows.database_now() - timedelta(seconds=heartbeat))


def found(**options: Any) -> dict[Rule, list[Problem]]:
    told: dict[Rule, list[Problem]] = {}
    for problem in problems.find(snapshot.take(), **options):
        told.setdefault(problem.rule, []).append(problem)
    return told


def test_an_empty_queue_and_one_that_works_have_none() -> None:
    assert found() == {}
    work()
    wait_since(1)
    rows.make_job("scheduled")
    assert found() == {}


def test_due_jobs_that_no_live_worker_takes() -> None:
    wait_since(31, queue_name="mail")
    wait_since(31, queue_name="billing")
    wait_since(29, queue_name="new")
    work(queues=["billing"])
    (problem,) = found()[Rule.UNSERVED]
    assert (problem.severity, problem.facts["queue"]) == (Severity.ERROR, "mail")
    assert problem.text == "Queue mail: no live worker takes it; its oldest due job has waited for 31 s."
    work("dead", queues=["mail"], heartbeat=31)
    assert [one.facts["queue"] for one in found()[Rule.UNSERVED]] == ["mail"]
    work("all", queues=[])
    assert Rule.UNSERVED not in found()


def test_without_any_worker_each_queue_with_due_jobs_is_told_the_one_that_waits_longest_first() -> None:
    for seconds in (40, 60, 50):
        wait_since(seconds, queue_name=f"q{seconds}")
    assert [one.facts["queue"] for one in found()[Rule.UNSERVED]] == ["q60", "q50", "q40"]


def test_the_oldest_due_job_of_each_queue() -> None:
    work()
    wait_since(301, queue_name="slow")
    wait_since(299, queue_name="fast")
    assert [one.facts["queue"] for one in found()[Rule.OLDEST_DUE]] == ["slow"]
    assert {one.facts["queue"] for one in found(max_lag=60)[Rule.OLDEST_DUE]} == {"slow", "fast"}
    assert Rule.OLDEST_DUE not in found(max_lag=1000)


def test_a_job_whose_task_no_worker_knows_is_due_although_it_is_put_off_again_and_again() -> None:
    work()
    job = rows.make_job(State.SCHEDULED, parked=True, queue_name="mail")
    assert found() == {}
    rows.move_clock(job.pk, "parked_at", -400)
    (problem,) = found()[Rule.OLDEST_DUE]
    assert (problem.facts["queue"], round(problem.facts["seconds"], -1)) == ("mail", 400)
    transitions.adopt("default", [job.task], limit=1)
    assert found() == {}


def park(task: str, seconds: float, **columns: Any) -> None:
    """A job that workers without its code have handed back for so long."""
    job = rows.make_job(State.SCHEDULED, parked=True, task=task, **columns)
    rows.move_clock(job.pk, "parked_at", -seconds)


def test_a_task_that_no_live_worker_knows_is_named() -> None:
    work("w", tasks=["shop.tasks.charge"])
    park("shop.tasks.gone", 121)
    park("shop.tasks.gone", 200, queue_name="mail")
    park("shop.tasks.renamed", 250)
    park("shop.tasks.new", 119)
    park("shop.tasks.charge", 400, queue_name="paused")
    queues.pause("default", "paused")
    first, second = found().pop(Rule.UNKNOWN_TASK)
    assert (first.severity, first.facts["task"], second.facts["task"]) == (
        Severity.ERROR, "shop.tasks.renamed", "shop.tasks.gone",
    )  # fmt: skip
    assert second.text == "Task shop.tasks.gone: no live worker knows it; its jobs have been handed back for 200 s."
    # A worker that is gone knows nothing any more, and one that is there and knows it takes its jobs soon.
    Worker.objects.filter(id="w").update(tasks=["shop.tasks.renamed"])
    work("gone", tasks=["shop.tasks.gone"], heartbeat=31)
    assert {one.facts["task"] for one in found()[Rule.UNKNOWN_TASK]} == {"shop.tasks.gone", "shop.tasks.charge"}
    transitions.adopt("default", ["shop.tasks.gone", "shop.tasks.charge"], limit=9)
    assert Rule.UNKNOWN_TASK not in found()


def test_a_worker_that_may_know_more_than_it_says_and_a_job_that_is_ready_are_no_problem() -> None:
    park("gone", 200)
    assert Rule.UNKNOWN_TASK in found()
    work("w", tasks=[f"task-{number}" for number in range(MAX_WORKER_TASKS)])
    assert Rule.UNKNOWN_TASK not in found()
    Worker.objects.all().delete()
    transitions.run_now("default", list(Job.objects.values_list("pk", flat=True)))
    assert Rule.UNKNOWN_TASK not in found()


def test_known_ones_do_not_hide_an_unknown_one() -> None:
    names = [f"known{number:03}" for number in range(snapshot.MAX_LISTED + 5)]
    for name in [*names, "unknown"]:
        park(name, 200)
    work("w", tasks=names)
    assert [one.facts["task"] for one in found()[Rule.UNKNOWN_TASK]] == ["unknown"]


def test_of_very_many_unknown_tasks_some_are_named() -> None:
    for number in range(snapshot.MAX_LISTED + 5):
        park(f"gone{number:03}", 200)
    assert len(snapshot.take().unknown_tasks) == snapshot.MAX_LISTED
    assert len(found()[Rule.UNKNOWN_TASK]) == problems.MAX_EACH


def test_a_schedule_whose_tick_is_late() -> None:
    for name, late, columns in (
        ("late", 121, {}),
        ("soon", -60, {}),
        ("just", 119, {}),
        ("off", 500, {"is_enabled": False}),
        ("retired", 500, {"retired_at": rows.database_now()}),
    ):
        at = rows.database_now() - timedelta(seconds=late)
        Schedule.objects.create(name=name, task="t", line="* * * * *", next_at=at, **columns)
    assert [one.facts["schedule"] for one in found()[Rule.SCHEDULE_LATE]] == ["late"]


def test_a_task_that_fails_often_and_of_late() -> None:
    work()
    for task, good, bad in (("bad", 20, 10), ("rare", 100, 10), ("few", 0, 9)):
        for _ in range(good):
            add("q", task, State.SUCCEEDED, None, 0.1)
        for _ in range(bad):
            add("q", task, State.RETRYING, None, 0.1)
    assert [(one.facts["task"], one.facts["attempts"]) for one in found()[Rule.FAILURE_RATE]] == [("bad", 30)]
    Stat.objects.update(minute=rows.database_now() - timedelta(minutes=12))
    assert found() == {}


def test_leases_that_expire() -> None:
    work()
    for _ in range(11):
        rows.make_job("running", expired=True)
    assert Rule.LEASES_EXPIRED not in found()
    transitions.reap("default", by="reaper")
    (problem,) = found()[Rule.LEASES_EXPIRED]
    assert (problem.severity, problem.facts["leases"]) == (Severity.WARNING, 11)
    Stat.objects.update(minute=rows.database_now() - timedelta(minutes=12))
    assert Rule.LEASES_EXPIRED not in found()


def test_a_paused_queue_with_due_jobs_is_a_problem_after_an_hour_and_no_other_one() -> None:
    wait_since(4000, queue_name="mail")
    queues.pause("default", "mail")
    queues.pause("default", "idle")
    assert found() == {}
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_queue SET paused_at = paused_at - interval '3601 s'")
    told = found()
    assert [one.facts["queue"] for one in told.pop(Rule.PAUSED)] == ["mail"]
    assert told == {}
    with connection.cursor() as cursor:  # it goes on by itself
        cursor.execute("UPDATE pgqueue_queue SET resume_at = statement_timestamp() - interval '1 s'")
    assert set(found()) == {Rule.UNSERVED, Rule.OLDEST_DUE}


def test_any_number_of_paused_queues_is_no_problem() -> None:
    for number in range(snapshot.MAX_QUEUES + 5):
        queues.pause("default", f"shop-{number:03}")
    wait_since(400, State.SCHEDULED, queue_name=f"shop-{number:03}")
    assert found() == {}


def test_a_worker_that_is_not_heard_of_any_more() -> None:
    work("well")
    work("late", heartbeat=31)
    work("slow", heartbeat=31, lease_seconds=60)
    work("long ago", heartbeat=1000)
    assert [one.facts["worker"] for one in found()[Rule.WORKER_LATE]] == ["late"]


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (Table(1000, 100_001, None), True),
        (Table(1000, 100_001, 3601), True),
        (Table(1000, 100_001, 3599), False),
        (Table(1000, 99_999, None), False),
        (Table(200_000, 100_001, None), False),
    ],
)
def test_a_table_full_of_dead_rows(table: Table, told: bool, settings: Any) -> None:
    settings.PGQUEUE = {}
    taken = dataclasses.replace(snapshot.take(), table=table)
    assert (Rule.BLOAT in {one.rule for one in problems.find(taken)}) is told


def test_the_server_says_how_many_rows_are_dead() -> None:
    for _ in range(30):
        rows.make_job()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT n_live_tup, n_dead_tup FROM pg_stat_user_tables WHERE relname = 'pgqueue_job'")
        rows.wait_for(lambda: snapshot.take().table.live_rows >= 30)


def test_limits_are_those_of_the_settings(settings: Any) -> None:
    settings.PGQUEUE = {"PROBLEMS": {"oldest_due_seconds": 5, "unserved_seconds": 1000}}
    wait_since(6)
    assert set(found()) == {Rule.OLDEST_DUE}


def test_no_rule_tells_more_than_twenty(settings: Any) -> None:
    settings.PGQUEUE = {"PROBLEMS": {"unserved_seconds": 0}}
    for number in range(25):
        wait_since(number + 1, queue_name=f"q{number}")
    told = found()[Rule.UNSERVED]
    assert (len(told), told[0].facts["queue"]) == (problems.MAX_EACH, "q24")


def test_every_rule_has_a_severity_and_a_text_with_its_own_facts() -> None:
    assert set(problems.SEVERITIES) == set(problems.TEXTS) == set(Rule)


# -- the page --------------------------------------------------------------------------------------------------


def ask(query: str = "", **headers: str) -> tuple[int, Any]:
    answer = Client().get(URL + query, headers=headers)
    return answer.status_code, json.loads(answer.content)


def test_it_is_well_while_there_are_warnings_only() -> None:
    assert ask() == (200, {"status": "ok", "problems": []})
    work()
    work("late", heartbeat=31)
    assert ask_again() == (200, {"status": "ok", "problems": ["worker_late"]})


def ask_again(query: str = "", **headers: str) -> tuple[int, Any]:
    answers.shared.forget()
    return ask(query, **headers)


def test_an_error_is_a_503_that_names_the_rule_and_nothing_else() -> None:
    wait_since(400, queue_name="secret-queue")
    assert ask() == (503, {"status": "failing", "problems": ["queue_without_worker", "oldest_due"]})


def test_the_details_are_for_those_who_may_see_the_metrics(settings: Any, browser: Callable[..., Client]) -> None:
    settings.PGQUEUE = {"METRICS_TOKEN": TOKEN, "PROBLEMS": {"dead_rows": 10**9}}
    work()
    wait_since(400, queue_name="mail")
    _, told = ask(Authorization=f"Bearer {TOKEN}")
    (detail,) = told["details"]
    assert (detail["rule"], detail["severity"], detail["queue"]) == ("oldest_due", "error", "mail")
    assert detail["text"].startswith("Queue mail: its oldest due job has waited for 40")
    assert "details" not in ask(Authorization="Bearer nonsense")[1]
    assert "details" in json.loads(browser("view_dashboard").get(URL).content)
    assert "details" not in json.loads(browser("view_job").get(URL).content)


def test_who_asks_says_how_long_a_job_may_wait() -> None:
    work()
    wait_since(100)
    assert ask()[0] == 200
    assert ask("?max_lag=60") == (503, {"status": "failing", "problems": ["oldest_due"]})
    assert ask("?max_lag=1000")[0] == 200


@pytest.mark.parametrize("given", ["", "x", "-1", "nan", "inf", "1e999", "60s", "٣x"])
def test_what_is_no_number_of_seconds_is_refused(given: str) -> None:
    status, told = ask(f"?max_lag={given}")
    assert (status, told["detail"]) == (400, "max_lag: give a number of seconds, 0 or more.")

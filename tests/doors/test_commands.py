"""The operator's commands, against a real queue."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from verbs.rows import DB, claim, ending, make_job, new, row, settle, state_of

from pgqueue_django import transitions
from pgqueue_django.management.commands import pgqueue_enqueue
from pgqueue_django.models import Job, Queue, Schedule
from pgqueue_django.states import State

pytestmark = pytest.mark.django_db


class Answer:
    def __init__(self, *words: str, **options: Any) -> None:
        out, err = StringIO(), StringIO()
        self.code: int | str | None = 0
        try:
            call_command(*words, stdout=out, stderr=err, **options)
        except SystemExit as exit:
            self.code = exit.code
        except CommandError as error:
            self.code = error.returncode
            err.write(str(error))
        self.out, self.err = out.getvalue().strip(), err.getvalue().strip()

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


# -- pgqueue_requeue, pgqueue_cancel ---------------------------------------------------------------------------


def test_requeue_moves_what_may_move_and_says_why_the_others_did_not() -> None:
    dead, failed, running = make_job("dead"), make_job("failed"), make_job("running")
    answer = Answer("pgqueue_requeue", str(dead.pk), str(failed.pk), str(running.pk), "999999999")
    assert answer.code == 1
    assert answer.out == f"2 requeued, 2 not: #{running.pk} is running, #999999999 does not exist"
    assert (state_of(dead.pk), state_of(failed.pk)) == (State.QUEUED, State.QUEUED)
    assert Answer("pgqueue_requeue", str(make_job("dead").pk)).out == "1 requeued"


def test_a_whole_state_of_a_queue_is_moved_in_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "BATCH", 4)
    dead = [make_job("dead", queue_name="mail").pk for _ in range(10)]
    other = make_job("dead", queue_name="billing")
    assert Answer("pgqueue_requeue", "--state", "dead", "--queue", "mail", "--limit", "3").out == "3 requeued"
    assert Answer("pgqueue_requeue", "--state", "dead", "--queue", "mail").out == "7 requeued"
    assert {state_of(id) for id in dead} == {State.QUEUED}
    assert state_of(other.pk) == State.DEAD
    assert Answer("pgqueue_requeue", "--state", "dead", "--all").out == "1 requeued"


def test_a_job_that_left_the_state_between_the_look_and_the_step_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another operator has sent it back, and it has succeeded."""
    dead, other = make_job("dead"), make_job("dead")
    requeue = transitions.requeue

    def late(using: str, ids: Any, source: State | None) -> set[int]:
        if dead.pk in ids and state_of(dead.pk) == State.DEAD:
            requeue(using, [dead.pk])
            settle(claim()[0], ending(State.SUCCEEDED))
        return requeue(using, ids, source)

    monkeypatch.setattr(transitions, "requeue", late)
    assert Answer("pgqueue_requeue", "--state", "dead", "--all").out == "1 requeued"
    assert (state_of(dead.pk), state_of(other.pk)) == (State.SUCCEEDED, State.QUEUED)


def test_jobs_that_die_again_meanwhile_are_requeued_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "BATCH", 2)
    for _ in range(4):
        make_job("dead")
    requeue = transitions.requeue

    def die_again(using: str, ids: Any, source: State | None) -> set[int]:
        moved = requeue(using, ids, source)
        for held in claim(len(moved)):
            settle(held, ending(State.DEAD))
        return moved

    monkeypatch.setattr(transitions, "requeue", die_again)
    assert Answer("pgqueue_requeue", "--state", "dead", "--all").out == "4 requeued"


def test_cancel_by_state_and_task() -> None:
    queued = make_job("queued", task="shop.tasks.a")
    other = make_job("queued", task="shop.tasks.b")
    running = make_job("running", task="shop.tasks.a")
    assert Answer("pgqueue_cancel", "--state", "queued", "--task", "shop.tasks.a").out == "1 cancelled"
    assert [state_of(job.pk) for job in (queued, other, running)] == [State.CANCELLED, State.QUEUED, State.RUNNING]
    assert Answer("pgqueue_cancel", str(running.pk)).out == "1 cancelled"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "either some ids, or --state"),
        (["1", "--state", "dead"], "either some ids, or --state"),
        (["--state", "dead"], "say --all"),
        (["--state", "dead", "--queue", "mial"], "Did you mean mail?"),
        (["--state", "dead", "--queue", "no such"], "A-Za-z0-9_.-"),
        (["--state", "dead", "--all", "--limit", "0"], "at least 1"),
        (["--state", "dead", "--all", "--database", "defalt"], "Did you mean default?"),
        (["0"], "no job's id"),
        ([str(2**63)], "no job's id"),
    ],
)
def test_a_choice_that_is_none_or_two_moves_nothing(words: list[str], text: str) -> None:
    job = make_job("dead", queue_name="mail")
    before = row(job.pk)
    answer = Answer("pgqueue_requeue", *words)
    assert answer.code == 2
    assert text in answer.err
    assert row(job.pk) == before


# -- pgqueue_status --------------------------------------------------------------------------------------------


def test_status_is_one_snapshot_as_a_table_and_as_json() -> None:
    make_job("queued", queue_name="mail")
    make_job("queued", queue_name="mail")
    make_job("dead", queue_name="billing")
    table = Answer("pgqueue_status").lines
    assert table[0].endswith("workers alive: 0")
    assert " ".join(table[2].split()) == "queue scheduled queued running retrying failed dead oldest due"
    assert table[3].split() == ["billing", "0", "0", "0", "0", "0", "1"]
    assert table[4].split()[:7] == ["mail", "0", "2", "0", "0", "0", "0"]
    told = json.loads(Answer("pgqueue_status", json=True).out)
    assert told["queues"]["mail"]["jobs"] == {"queued": 2}
    assert told["queues"]["mail"]["oldest_due_seconds"] >= 0
    assert told["queues"]["billing"] == {"jobs": {"dead": 1}, "capped": []}


def test_status_of_an_empty_queue() -> None:
    assert "no jobs but those that succeeded" in Answer("pgqueue_status").out
    assert json.loads(Answer("pgqueue_status", json=True).out)["queues"] == {}


# -- pgqueue_jobs ----------------------------------------------------------------------------------------------


def test_jobs_are_listed_newest_first_without_their_payload() -> None:
    first = make_job("queued", args=["secret"])
    second = make_job("dead", queue_name="mail")
    assert [line.split()[0] for line in Answer("pgqueue_jobs").lines] == [f"#{second.pk}", f"#{first.pk}"]
    assert "secret" not in Answer("pgqueue_jobs").out
    assert "secret" in Answer("pgqueue_jobs", payload=True).out
    assert [line.split()[0] for line in Answer("pgqueue_jobs", "--queue", "mail").lines] == [f"#{second.pk}"]
    assert Answer("pgqueue_jobs", "--state", "queued", "--limit", "1").lines[0].startswith(f"#{first.pk}  queued")
    assert json.loads(Answer("pgqueue_jobs", "--json", "--limit", "1").out)["id"] == second.pk
    assert Answer("pgqueue_jobs", "--limit", "0").code == 2


def test_one_job_is_shown_with_its_history() -> None:
    transitions.enqueue(DB, new(args=["secret"]))
    (held,) = claim()
    settle(held, ending(State.SUCCEEDED))
    shown = json.loads(Answer("pgqueue_jobs", str(held.id)).out)
    assert (shown["state"], shown["attempts"], shown["history"]) == ("succeeded", 1, [])
    assert "args" not in shown
    assert json.loads(Answer("pgqueue_jobs", str(held.id), payload=True).out)["args"] == ["secret"]
    missing = Answer("pgqueue_jobs", "999999999")
    assert (missing.code, "does not exist" in missing.err) == (1, True)


# -- pgqueue_enqueue -------------------------------------------------------------------------------------------


def test_enqueue_takes_a_list_or_an_object_and_says_the_id() -> None:
    first = Answer("pgqueue_enqueue", "testproject.shop.tasks.make_invoice", "[7]")
    job = Job.objects.get(pk=int(first.out[1:]))
    assert (job.args, job.kwargs, job.queue_name, job.state) == ([7], {}, "documents", State.QUEUED)
    words = ["--queue", "slow", "--priority", "5", "--delay", "60", "--key", "k", "--max-attempts", "2"]
    second = Answer("pgqueue_enqueue", "testproject.shop.tasks.make_invoice", '{"order_id": 7}', *words)
    job = Job.objects.get(pk=int(second.out[1:]))
    assert (job.args, job.kwargs, job.queue_name, job.priority) == ([], {"order_id": 7}, "slow", 5)
    assert (job.state, job.max_attempts, job.idempotency_key) == (State.SCHEDULED, 2, "k")
    again = Answer("pgqueue_enqueue", "testproject.shop.tasks.make_invoice", '{"order_id": 7}', *words)
    assert again.out == f"#{job.pk} (it has that key already)"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["testproject.shop.tasks.make_invoise", "[1]"], "--unknown"),
        (["testproject.shop.tasks.make_invoice", "[1"], "no JSON"),
        (["testproject.shop.tasks.make_invoice", "1"], "list or object"),
        (["testproject.shop.tasks.make_invoice", "[1, 2]"], "make_invoice()"),
        (["testproject.shop.tasks.make_invoice", '{"order": 1}'], "make_invoice()"),
        (["testproject.shop.tasks.make_invoice", "[1]", "--priority", "1000"], "priority"),
        (["testproject.shop.tasks.make_invoice", "[1]", "--queue", "a b"], "queue_name"),
        (["testproject.shop.tasks.make_invoice", "[NaN]"], "NaN"),
        (["testproject.shop.tasks.make_invoice", "[" * 100_000], "no JSON"),
        (["testproject.shop.tasks.make_invoice", "[1]", "--delay", "nan"], "--delay"),
        (["testproject.shop.tasks.make_invoice", "[1]", "--delay", "inf"], "--delay"),
        (["testproject.shop.tasks.make_invoice", "[1]", "--wait", "nan"], "--wait"),
    ],
)
def test_what_cannot_be_enqueued_is_not(words: list[str], text: str) -> None:
    answer = Answer("pgqueue_enqueue", *words)
    assert answer.code == 2
    assert text in answer.err
    assert not Job.objects.exists()


def test_enqueue_of_a_task_whose_code_is_elsewhere() -> None:
    assert Answer("pgqueue_enqueue", "other.tasks.unknown", "[1]", unknown=True).code == 0
    assert Job.objects.get().task == "other.tasks.unknown"


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("dead", 1), ("cancelled", 1)])
def test_enqueue_waits_for_the_end(monkeypatch: pytest.MonkeyPatch, state: str, code: int) -> None:
    def end(seconds: float) -> None:
        job = Job.objects.get()
        if state == "cancelled":
            transitions.cancel(DB, [job.pk])
        else:
            settle(claim(queue_name="documents")[0], ending(State(state)))

    monkeypatch.setattr(pgqueue_enqueue.time, "sleep", end)
    answer = Answer("pgqueue_enqueue", "testproject.shop.tasks.make_invoice", "[7]", "--wait", "5")
    assert answer.code == code
    assert answer.lines[1:] == (['"ok"'] if code == 0 else [])
    assert state == "succeeded" or state in answer.err


def test_enqueue_does_not_wait_for_ever() -> None:
    answer = Answer("pgqueue_enqueue", "testproject.shop.tasks.make_invoice", "[7]", "--wait", "0")
    assert answer.code == 1
    assert "still queued" in answer.err


# -- pgqueue_prune, pgqueue_pause, pgqueue_resume --------------------------------------------------------------


def test_prune_deletes_what_is_due_or_what_is_old_and_says_how_many() -> None:
    make_job("succeeded", prunable=True)
    make_job("succeeded")
    dead = make_job("dead")
    assert Answer("pgqueue_prune").out == "1 jobs deleted"
    assert Answer("pgqueue_prune", "--older-than", "0s", "--dry-run").out == "2 jobs would go"
    assert Answer("pgqueue_prune", "--older-than", "1d").out == "0 jobs deleted"
    assert Answer("pgqueue_prune", "--older-than", "0s", "--state", "succeeded").out == "1 jobs deleted"
    assert list(Job.objects.values_list("pk", flat=True)) == [dead.pk]


@pytest.mark.parametrize(
    "words",
    [["--older-than", "14"], ["--older-than", "-1d"], ["--state", "succeeded"], ["--dry-run"], ["--state", "queued"]],
)
def test_prune_refuses_what_it_cannot_mean(words: list[str]) -> None:
    make_job("succeeded", prunable=True)
    assert Answer("pgqueue_prune", *words).code != 0
    assert Job.objects.count() == 1


def test_pause_and_resume_say_what_they_did() -> None:
    assert Answer("pgqueue_pause", "mail", "--reason", "down").out == "mail is paused"
    assert Answer("pgqueue_pause", "billing", "--for", "90m").out == "billing is paused, for 1:30:00"
    mail, billing = Queue.objects.get(name="mail"), Queue.objects.get(name="billing")
    assert (mail.reason, mail.actor.startswith("cli:"), mail.resume_at) == ("down", True, None)
    assert billing.resume_at is not None
    answer = Answer("pgqueue_resume", "mial")
    assert (answer.code, answer.out) == (1, "mial is not paused. Did you mean mail?")
    assert Answer("pgqueue_resume", "mail").out == "mail goes on"
    assert Answer("pgqueue_resume", "mail").code == 1
    assert Answer("pgqueue_pause", "no such queue").code == 2
    assert Answer("pgqueue_pause", "mail", "--for", "0s").code == 2


def test_a_length_that_no_moment_can_hold_is_refused() -> None:
    """A row with such a one stops every reading of its table."""
    for length in ("36501d", "99999999d", "999999999w"):
        assert Answer("pgqueue_pause", "mail", "--for", length).code != 0
        assert Answer("pgqueue_prune", "--older-than", length).code != 0
    assert not Queue.objects.exists()
    assert Answer("pgqueue_prune", "--older-than", "36500d").code == 0


def test_status_shows_what_is_paused_and_what_comes_next() -> None:
    make_job("queued", queue_name="mail")
    Answer("pgqueue_pause", "mail")
    soon = datetime.now(UTC) + timedelta(seconds=90)
    values = {"task": "a.b", "line": "0 3 * * *", "args": [], "kwargs": {}}
    Schedule.objects.create(name="nightly", next_at=soon, **values)
    Schedule.objects.create(name="broken", next_at=soon, error="no such task", **values)
    Schedule.objects.create(name="off", next_at=soon, is_enabled=False, **values)
    text = Answer("pgqueue_status").out
    assert "mail (paused)" in text
    assert re.search(r"^nightly +in (89|90) s$", text, re.M)
    assert re.search(r"^broken +in (89|90) s  no such task$", text, re.M)
    assert "off" not in text
    told = json.loads(Answer("pgqueue_status", "--json").out)
    assert told["paused"] == ["mail"]
    assert [one["name"] for one in told["schedules"]] == ["nightly", "broken"]

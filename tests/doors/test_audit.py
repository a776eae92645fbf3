"""Who did what: one row for each action, whatever its door, in the transaction of what it did."""

from __future__ import annotations

import getpass
import hashlib
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, get_args

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import DatabaseError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from verbs import rows
from verbs.rows import DB, Rival, make_job

from doors.conftest import fill, log_in, plan
from pgqueue_django import audit, queues, transitions
from pgqueue_django.admin import actions, audit_log
from pgqueue_django.audit import MAX_ACTOR, MAX_REASON, MAX_TARGET, Trail
from pgqueue_django.models import AuditEntry, Job, Queue, Schedule

from .test_admin import act, button
from .test_commands import Answer
from .test_problems_page import URL as PROBLEMS
from .test_problems_page import fail
from .test_problems_page import requeue as requeue_group
from .test_schedule_admin import QUEUES, URL, form, make
from .test_schedule_admin import act as act_on_schedules

pytestmark = pytest.mark.django_db

Browser = Callable[..., Client]
TOKEN = "token-of-the-test"
API = "/pgqueue/api/v1"


def entries() -> list[tuple[str, str, str, int, int]]:
    """Action, target, reason, changed and skipped, in their order."""
    found = AuditEntry.objects.order_by("id")
    return list(found.values_list("action", "target", "reason", "changed", "skipped"))


@pytest.fixture
def boss(person: Callable[..., User]) -> User:
    return person(superuser=True)


# -- the rows --------------------------------------------------------------------------------------------------


def trail(**told: Any) -> Trail:
    return Trail(DB, **{"actor": "ann", "action": "requeue", "target": "job 7", **told})


def test_what_several_transactions_have_done_adds_up_in_one_row() -> None:
    mine = trail()
    for changed, skipped in ((2, 1), (0, 3), (5, 0)):
        with transaction.atomic():
            mine.add(changed, skipped)
    assert entries() == [("requeue", "job 7", "", 7, 4)]


def test_where_nothing_was_chosen_there_is_no_row() -> None:
    trail().add(0, 0)
    assert entries() == []
    trail().add(0, 1)
    assert entries() == [("requeue", "job 7", "", 0, 1)]


def test_a_row_is_there_if_and_only_if_the_change_is() -> None:
    mine, job = trail(), make_job("dead")

    def requeue(*, fail: bool) -> None:
        with transaction.atomic():
            mine.add(len(transitions.requeue(DB, [job.pk])))
            if fail:
                raise DatabaseError

    with pytest.raises(DatabaseError):
        requeue(fail=True)
    assert (entries(), rows.state_of(job.pk)) == ([], "dead")
    requeue(fail=False)  # the row that was rolled back is not the one to add to
    assert entries() == [("requeue", "job 7", "", 1, 0)]


def test_what_is_too_long_or_cannot_be_stored_is_cut_and_no_error() -> None:
    trail(actor="a" * 999, target="t" * 999, reason=" r\0\ud800" + "x" * 999).add(1)
    entry = AuditEntry.objects.get()
    assert (len(entry.actor), len(entry.target), len(entry.reason)) == (MAX_ACTOR, MAX_TARGET, MAX_REASON)
    assert entry.target.endswith("t…")
    assert entry.reason.startswith("r\\x00\\ud800")


@pytest.mark.parametrize(
    ("names", "among", "text"),
    [
        ([7], "", "job 7"),
        ([9, 7], "", "2 jobs: 9, 7"),
        ([9], "state=dead", "1 job (state=dead): 9"),
        ([9, 8], "q=" + "x" * 600, f"2 jobs (q={'x' * 247}…): 9, 8"),
    ],
)
def test_a_target_says_what_was_chosen(names: list[int], among: str, text: str) -> None:
    assert audit.told("job", names, among) == text


def test_a_long_target_ends_with_a_whole_name() -> None:
    text = audit.told("job", range(1_000_000, 1_010_000))
    assert len(text) <= MAX_TARGET
    assert text.startswith("10000 jobs: 1000000, 1000001")
    assert text.endswith(", …")
    assert {len(name) for name in text.removesuffix(", …").split(": ")[1].split(", ")} == {7}


# -- the admin -------------------------------------------------------------------------------------------------

VERBS = {"requeue": "dead", "run_now": "scheduled", "cancel": "queued", "delete_finished": "dead"}
ACTION = {"delete_finished": "delete"}
LIST_ACTIONS = {"requeue": "requeue_jobs", "run_now": "run_jobs_now", "cancel": "cancel_jobs"}


@pytest.mark.parametrize("verb", VERBS)
def test_actions_of_the_list_and_buttons_of_a_job(verb: str, boss: User) -> None:
    client, state = log_in(boss), VERBS[verb]
    one, two, running, alone = make_job(state), make_job(state), make_job("running"), make_job(state)
    name = LIST_ACTIONS.get(verb, "delete_finished_jobs")
    others = [running] if verb != "cancel" else [make_job("dead")]
    act(client, name, one, two, *others, reason="the bank is back")
    client.post(button(alone, verb), {"reason": "alone"})
    client.post(button(others[0], verb))
    chosen = ", ".join(str(job.pk) for job in sorted([one, two, *others], key=lambda job: -job.pk))
    action = ACTION.get(verb, verb)
    assert entries() == [
        (action, f"3 jobs: {chosen}", "the bank is back", 2, 1),
        (action, f"job {alone.pk}", "alone", 1, 0),
        (action, f"job {others[0].pk}", "", 0, 1),
    ]
    assert set(AuditEntry.objects.values_list("actor", flat=True)) == {boss.get_username()}


def test_the_reason_may_come_from_below_the_list_and_is_cut(browser: Browser) -> None:
    job = make_job("dead")
    data = {"action": "requeue_jobs", "_selected_action": job.pk, "index": "0", "reason": [" ", "x" * 300]}
    browser(superuser=True).post("/admin/pgqueue_django/job/", data)
    ((_, _, reason, changed, _),) = entries()
    assert (len(reason), changed) == (MAX_REASON, 1)


def test_every_page_that_acts_on_jobs_asks_for_a_reason(browser: Browser) -> None:
    job, client = make_job("dead"), browser(superuser=True)
    for url in ("/admin/pgqueue_django/job/", f"/admin/pgqueue_django/job/{job.pk}/change/", PROBLEMS, URL, QUEUES):
        make(name=f"of {url}")
        queues.pause(DB, "mail")
        page = client.get(url).content.decode()
        assert 'name="reason"' in page, url
        assert 'maxlength="200"' in page, url


def test_the_filter_and_the_search_are_told_but_no_payload(browser: Browser) -> None:
    job = make_job("dead", kwargs={"email": "ann@example.com"}, idempotency_key="secret-key", label="for ann")
    search = f'id:{job.pk} args.email:ann@example.com error:boom secret-key key:secret-key label:"for ann"'
    data = {"action": "requeue_jobs", "index": "0", "_selected_action": job.pk, "select_across": "1"}
    browser(superuser=True).post("/admin/pgqueue_django/job/", data, QUERY_STRING=f"state=dead&q={search}")
    told = f'id:{job.pk} args.email:… error:… key:… key:… label:"for ann"'
    assert entries() == [("requeue", f"1 job (state=dead, {told}): {job.pk}", "", 1, 0)]


def test_a_group_of_failed_jobs(browser: Browser) -> None:
    client = browser(superuser=True)
    for _ in range(3):
        job = fail("declined")
    requeue_group(client, job, reason="mended")
    ((action, target, reason, changed, skipped),) = entries()
    assert (action, reason, changed, skipped) == ("requeue", "mended", 3, 0)
    assert target.startswith(f"3 jobs (fp:{job.error_fingerprint} task:shop.charge): {job.pk}, ")


def test_a_refused_action_leaves_none(browser: Browser) -> None:
    job = make_job("dead")
    client = browser("view_job")
    act(client, "requeue_jobs", job)
    assert client.post(button(job, "requeue")).status_code == 403
    forged = log_in(User.objects.create_superuser("root"), enforce_csrf_checks=True)
    assert forged.post(button(job, "requeue")).status_code == 403
    assert entries() == []


def test_an_action_that_fails_leaves_none(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of the admin cannot be written: what was done is taken back, and with it what is told of it."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise DatabaseError

    job = make_job("dead")
    monkeypatch.setattr(Trail, "add", fail)
    client = browser(superuser=True)
    with pytest.raises(DatabaseError):
        client.post(button(job, "requeue"))
    assert (rows.state_of(job.pk), entries(), LogEntry.objects.count()) == ("dead", [], 0)


@pytest.mark.parametrize("jobs", [1, 100, 2_500])
def test_an_action_costs_one_insert_and_an_update_for_each_further_step(jobs: int, browser: Browser) -> None:
    fill(dead=jobs)
    client = browser(superuser=True)
    with CaptureQueriesContext(connection) as captured:
        act(client, "requeue_jobs", Job.objects.latest("id"), select_across="1")
    sent = [query["sql"] for query in captured if "pgqueue_audit" in query["sql"]]
    steps = -(-jobs // transitions.BATCH)
    assert [sql.split()[0] for sql in sent] == ["INSERT"] + ["UPDATE"] * (steps - 1)
    assert entries()[0][3:] == (jobs, 0)


def test_pauses_and_resumes(boss: User) -> None:
    client = log_in(boss)
    client.post(QUEUES + "add/", {"name": "mail", "reason": "provider down"})
    client.post(f"{QUEUES}mail/change/", {"reason": "still down"})
    client.post(QUEUES, {"action": "resume_queues", "_selected_action": ["mail"], "reason": "it is up"})
    assert entries() == [
        ("pause", "queue mail", "provider down", 1, 0),
        ("pause", "queue mail", "still down", 1, 0),
        ("resume", "queue mail", "it is up", 1, 0),
    ]
    client.post(QUEUES + "add/", {"name": "no queue"})
    assert len(entries()) == 3
    assert set(AuditEntry.objects.values_list("actor", flat=True)) == {boss.get_username()}


def test_schedules(browser: Browser) -> None:
    client = browser(superuser=True)
    client.post(URL + "add/", form())
    row = Schedule.objects.get()
    broken = make("broken", task="nowhere.at_all", line="never")
    client.post(f"{URL}{row.pk}/change/", form(args="[8]", line="*/5 * * * *"))
    client.post(f"{URL}{row.pk}/change/", form(args="[8]", line="*/5 * * * *"))  # the same: nothing was done
    act_on_schedules(client, "run_schedules", row, broken)
    act_on_schedules(client, "skip_schedules", row)
    act_on_schedules(client, "skip_schedules", row)
    act_on_schedules(client, "disable_schedules", row)
    act_on_schedules(client, "enable_schedules", row)
    client.post(f"{URL}{row.pk}/delete/", {"post": "yes"})
    client.post(URL, {"action": "delete_selected", "_selected_action": [broken.pk], "post": "yes"})
    assert entries() == [
        ("add_schedule", "schedule mine", "", 1, 0),
        ("change_schedule", "schedule mine: args, line", "", 1, 0),
        ("run_schedule", "2 schedules: broken, mine", "", 1, 1),
        ("skip_schedule", "schedule mine", "", 1, 0),
        ("skip_schedule", "schedule mine", "", 0, 1),
        ("disable_schedule", "schedule mine", "", 1, 0),
        ("enable_schedule", "schedule mine", "", 1, 0),
        ("delete_schedule", "schedule mine", "", 1, 0),
        ("delete_schedule", "schedule broken", "", 1, 0),
    ]
    assert Job.objects.count() == 1


# -- two at once -----------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_two_who_requeue_the_same_jobs_at_once_have_done_it_once_between_them() -> None:
    """They go in other steps, so that each of them finds some that the other one has sent back."""
    jobs = [make_job("dead").pk for _ in range(60)]

    def requeue(actor: str, ids: list[int], step: int) -> None:
        mine = trail(actor=actor)
        for start in range(0, len(ids), step):
            chosen = ids[start : start + step]
            with transaction.atomic():
                moved = transitions.requeue(DB, chosen)
                mine.add(len(moved), len(chosen) - len(moved))

    both = [Rival(lambda: requeue("ann", jobs, 7)), Rival(lambda: requeue("bob", jobs[::-1], 5))]
    for one in both:
        one.result()
    told = {entry.actor: (entry.changed, entry.skipped) for entry in AuditEntry.objects.all()}
    assert sum(changed for changed, _ in told.values()) == 60
    assert [changed + skipped for changed, skipped in told.values()] == [60, 60]
    assert Job.objects.filter(state="queued").count() == 60


@pytest.mark.django_db(transaction=True)
def test_one_who_waits_for_the_other_tells_what_he_found(person: Callable[..., User]) -> None:
    job, client = make_job("dead"), log_in(person(superuser=True))
    first = trail(actor="ann")
    with transaction.atomic():
        first.add(len(transitions.requeue(DB, [job.pk])))
        rival = Rival(lambda: client.post(button(job, "requeue")))
        rival.wait_until_blocked()
    rival.result()
    assert [(changed, skipped) for *_, changed, skipped in entries()] == [(1, 0), (0, 1)]


# -- the JSON API ----------------------------------------------------------------------------------------------


@pytest.fixture
def program(settings: Any) -> Client:
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    rights = ["view_job", "requeue_job", "run_job_now", "cancel_job", "pause_queue"]
    settings.PGQUEUE = {
        "API_AUTH": ["pgqueue_django.access.token", "pgqueue_django.access.session"],
        "API_TOKENS": {"ci": {"sha256": digest, "rights": rights}},
    }
    return Client(headers={"Authorization": f"Bearer {TOKEN}"})


def post(client: Client, path: str, status: int = 200, **body: Any) -> Any:
    answer = client.post(f"{API}/{path}", body or None, content_type="application/json")
    assert answer.status_code == status, answer.content
    return answer.json()


@pytest.mark.parametrize(("verb", "state"), [("requeue", "dead"), ("run-now", "scheduled"), ("cancel", "queued")])
def test_a_program_moves_a_job(verb: str, state: str, program: Client) -> None:
    job = make_job(state)
    post(program, f"jobs/{job.pk}/{verb}", reason="nightly")
    assert entries() == [(verb.replace("-", "_"), f"job {job.pk}", "nightly", 1, 0)]
    assert AuditEntry.objects.get().actor == "token:ci"


def test_what_the_api_refuses_leaves_none(program: Client) -> None:
    job = make_job("dead")
    post(program, f"jobs/{job.pk}/cancel", 409)
    post(program, "jobs/999999999/cancel", 404)
    post(program, f"jobs/{job.pk}/requeue", 422, reason=5)
    post(program, f"jobs/{job.pk}/requeue", 422, reason="x" * 201)
    post(program, f"jobs/{job.pk}/requeue", 422, why="typo")
    post(program, "queues/mail/resume", 422, reason=["x"])
    post(program, "queues/mail/requeue", 422, reason="\0")
    assert entries() == []
    assert rows.state_of(job.pk) == "dead"


def test_a_program_operates_a_queue(program: Client) -> None:
    jobs = sorted((make_job("failed", queue_name="mail").pk for _ in range(2)), reverse=True)
    post(program, "queues/mail/pause", reason="the bank is away")
    post(program, "queues/mail/resume", reason="it is back")
    post(program, "queues/mail/resume")
    post(program, "queues/mail/requeue", state="failed", reason="again")
    post(program, "queues/mail/requeue", state="failed")
    assert entries() == [
        ("pause", "queue mail", "the bank is away", 1, 0),
        ("resume", "queue mail", "it is back", 1, 0),
        ("requeue", f"2 jobs (state=failed, queue=mail): {jobs[0]}, {jobs[1]}", "again", 2, 0),
    ]


def test_a_user_of_the_api_is_told_by_name(program: Client, person: Callable[..., User]) -> None:
    user, job = person("view_job", "requeue_job"), make_job("dead")
    post(log_in(user), f"jobs/{job.pk}/requeue")
    assert AuditEntry.objects.get().actor == user.get_username()


def test_an_api_change_that_fails_is_taken_back_with_its_row(program: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise DatabaseError

    monkeypatch.setattr(Trail, "add", fail)
    job = make_job("dead")
    post(program, f"jobs/{job.pk}/requeue", 500)
    post(program, "queues/mail/pause", 500)
    assert (rows.state_of(job.pk), Queue.objects.count(), entries()) == ("dead", 0, [])


# -- the commands ----------------------------------------------------------------------------------------------

OPERATOR = f"cli:{getpass.getuser()}@{socket.gethostname()}"


def test_commands_say_who_ran_them_and_where() -> None:
    dead, running = make_job("dead"), make_job("running")
    Answer("pgqueue_requeue", str(dead.pk), str(running.pk), "--reason", "mended")
    Answer("pgqueue_cancel", str(dead.pk))
    assert entries() == [
        ("requeue", f"2 jobs: {dead.pk}, {running.pk}", "mended", 1, 1),
        ("cancel", f"job {dead.pk}", "", 1, 0),
    ]
    assert set(AuditEntry.objects.values_list("actor", flat=True)) == {OPERATOR}


def test_a_state_in_several_steps_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "BATCH", 2)
    for _ in range(5):
        make_job("dead", queue_name="mail")
    assert Answer("pgqueue_requeue", "--state", "dead", "--queue", "mail", "--limit", "4").out == "4 requeued"
    Answer("pgqueue_cancel", "--state", "queued", "--task", "shop.tasks.charge")
    Answer("pgqueue_requeue", "--state", "failed", "--all")  # there are none
    assert entries() == [
        ("requeue", "dead jobs, queue=mail, limit=4", "", 4, 0),
        ("cancel", "queued jobs, task=shop.tasks.charge", "", 4, 0),
    ]


def test_a_command_that_is_refused_leaves_none() -> None:
    make_job("dead")
    assert Answer("pgqueue_requeue", "--state", "dead").code == 2
    assert Answer("pgqueue_pause", "mail", "--for", "0s").code == 2
    assert entries() == []


def test_a_queue_that_was_not_paused_is_told_to_have_been_left_alone() -> None:
    assert Answer("pgqueue_resume", "mail").code == 1
    assert entries() == [("resume", "queue mail", "", 0, 1)]


def test_pausing_and_pruning_by_hand() -> None:
    Answer("pgqueue_pause", "mail", "--reason", "down", "--for", "2h")
    Answer("pgqueue_resume", "mail", "--reason", "up")
    make_job("dead", prunable=True)
    Answer("pgqueue_prune", "--older-than", "0s", "--dry-run")
    Answer("pgqueue_prune", "--reason", "room")
    make_job("succeeded")
    Answer("pgqueue_prune", "--older-than", "0s", "--state", "succeeded")
    Answer("pgqueue_prune")
    assert entries() == [
        ("pause", "queue mail", "down", 1, 0),
        ("resume", "queue mail", "up", 1, 0),
        ("prune", "jobs whose retention is over", "room", 1, 0),
        ("prune", "succeeded jobs that ended 0:00:00 ago or before", "", 1, 0),
    ]
    assert set(AuditEntry.objects.values_list("actor", flat=True)) == {OPERATOR}


# -- retention -------------------------------------------------------------------------------------------------


def test_old_entries_go_the_oldest_first_and_no_more_than_so_many() -> None:
    for target in ("a", "b", "c", "young"):
        trail(target=target).add(1)
    for target, age in (("a", 3), ("b", 5), ("c", 4)):
        AuditEntry.objects.filter(target=target).update(at=rows.database_now() - timedelta(days=age))
    assert audit.prune(DB, older_seconds=2 * 86_400, limit=2) == 2
    assert [entry[1] for entry in entries()] == ["a", "young"]
    assert audit.prune(DB, older_seconds=2 * 86_400, limit=2) == 1
    assert audit.prune(DB, older_seconds=2 * 86_400, limit=2) == 0
    assert [entry[1] for entry in entries()] == ["young"]


# -- the page --------------------------------------------------------------------------------------------------

LOG = "/admin/pgqueue_django/auditentry/"


def written(count: int, action: str = "requeue") -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_audit (at, actor, action, target) SELECT statement_timestamp() - make_interval(hours "
            "=> %s - i), 'user-' || i %% 7, %s, 'job ' || i FROM generate_series(1, %s) AS i",
            [count, action, count],
        )


def shown(answer: Any) -> list[str]:
    return [entry.target for entry in answer.context["cl"].result_list]


def test_the_log_has_a_right_of_its_own_and_nobody_writes_it(browser: Browser) -> None:
    written(1)
    entry = AuditEntry.objects.get()
    assert browser("view_job").get(LOG).status_code == 403
    client = browser("view_auditentry")
    page = client.get(LOG)
    assert page.status_code == 200
    assert "job 1" in page.content.decode()
    assert "Add audit" not in page.content.decode()
    boss = browser(superuser=True)
    for url in (f"{LOG}add/", f"{LOG}{entry.pk}/change/", f"{LOG}{entry.pk}/delete/"):
        for who in (client, boss):
            assert who.post(url, {"post": "yes", "actor": "x"}).status_code == 403, url
    boss.post(LOG, {"action": "delete_selected", "_selected_action": [entry.pk], "post": "yes"})
    assert list(AuditEntry.objects.all()) == [entry]


def test_the_newest_come_first_and_the_pages_follow_each_other(browser: Browser) -> None:
    written(250)
    client, seen, url = browser("view_auditentry"), list[str](), ""
    for _ in range(3):
        answer = client.get(f"{LOG}{url}")
        seen += shown(answer)
        written(1, "cancel")  # what comes meanwhile shifts nothing
        url = answer.context["cl"].older_url
    assert url == ""
    assert seen == [f"job {number}" for number in range(250, 0, -1)]
    assert answer.context["cl"].newest_url == "?"


def test_filter_and_search(browser: Browser) -> None:
    written(50)
    written(2, "cancel")
    client = browser("view_auditentry")
    assert shown(client.get(f"{LOG}?action=cancel")) == ["job 2", "job 1"]
    assert shown(client.get(f"{LOG}?q=user-3&action=requeue"))[0] == "job 45"
    assert shown(client.get(f"{LOG}?q=job+44")) == ["job 44"]
    assert shown(client.get(f"{LOG}?action=nothing")) == []
    # Whoever chooses another filter begins anew.
    tenth = AuditEntry.objects.get(target="job 10", action="requeue")
    answer = client.get(f"{LOG}?before={tenth.pk}&action=requeue")
    assert shown(answer)[0] == "job 9"
    page = answer.content.decode()
    filters = page[page.index('id="changelist-filter"') :]
    assert "?action=cancel" in filters
    assert "before=" not in filters
    assert 'name="before"' not in page, "nor whoever searches"
    assert '<input type="hidden" name="action" value="requeue">' in page


def test_a_search_looks_at_so_many_and_goes_on_below(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "LOOKED_AT", 10)
    written(1, "cancel")
    written(25)
    client, url, pages = browser("view_auditentry"), "?action=cancel", []
    while url:
        answer = client.get(f"{LOG}{url}")
        pages.append(shown(answer))
        noted = "Looked for among 10 entries" in answer.content.decode()
        url = answer.context["cl"].older_url
        assert noted == bool(url)
    assert pages == [[], [], ["job 1"]]


@pytest.mark.parametrize("lookup", ["actor__contains=x", "reason=x", "p=9999", "before=x", f"before={'9' * 30}", "o=1"])
def test_nothing_else_is_looked_up(lookup: str, browser: Browser) -> None:
    written(2)
    answer = browser("view_auditentry").get(f"{LOG}?{lookup}")
    if answer.status_code == 200:
        assert shown(answer) == ["job 2", "job 1"]
    else:
        assert answer.status_code == 400 or answer["Location"].endswith("?e=1")


@pytest.mark.parametrize("query", ["", "?action=cancel", "?q=nobody", "?before=50000"])
def test_the_log_of_a_hundred_thousand_is_read_in_bounded_steps(query: str, browser: Browser) -> None:
    """No entry is counted, and no statement reads more than the ``LOOKED_AT`` of its page."""
    written(100_000)
    client = browser("view_auditentry")
    with CaptureQueriesContext(connection) as captured:
        assert client.get(f"{LOG}{query}").status_code == 200
    sent = [one["sql"] for one in captured if 'FROM "pgqueue_audit"' in one["sql"]]
    assert 1 <= len(sent) <= 2
    assert len(captured) <= 12
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE pgqueue_audit")
    for sql in sent:
        assert "COUNT(" not in sql
        found = plan(sql)
        assert "Seq Scan" not in found, found
        assert "Sort" not in found, found


def test_every_action_has_its_word_and_a_filter(browser: Browser) -> None:
    assert set(audit_log.ACTIONS) == set(get_args(audit.Action))
    assert {verb.arrow for verb in actions.VERBS.values()} <= set(audit_log.ACTIONS)
    page = browser("view_auditentry").get(LOG).content.decode()
    for action in audit_log.ACTIONS:
        assert f"?action={action}" in page


def test_hostile_text_is_text(browser: Browser) -> None:
    hostile = "<script>alert(1)</script>"
    trail(actor=hostile, target=hostile, reason=hostile).add(1)
    page = browser("view_auditentry").get(f"{LOG}?q={hostile}").content.decode()
    assert hostile not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 3


def test_it_is_listed_only_for_who_may_see_it(browser: Browser) -> None:
    assert LOG in browser("view_auditentry").get("/admin/").content.decode()
    assert LOG not in browser("view_job").get("/admin/").content.decode()

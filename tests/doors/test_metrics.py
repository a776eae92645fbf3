"""The metrics page: who may read it, and that its text says what the tables say.

The page reads on a connection of its own, so these tests commit.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import prometheus_client
import pytest
from django.db import connection
from django.test import Client
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from verbs import rows

from doors.conftest import fill
from doors.test_snapshot import add
from pgqueue_django import answers, counts, metrics, problems, snapshot, stats, transitions, views
from pgqueue_django.models import Count, Job, Schedule, Stat, Worker
from pgqueue_django.states import State

pytestmark = pytest.mark.django_db(transaction=True)

URL = "/pgqueue/metrics"
TOKEN = "a-long-random-token-ü"
Browser = Callable[..., Client]

Samples = dict[str, dict[tuple[str, ...], float]]


def samples(text: str, parse: Callable[[str], Any] = parse_text) -> Samples:
    """By name, then by label values in the order of the labels' names."""
    found: Samples = {}
    for family in parse(text):
        for sample in family.samples:
            key = tuple(value for _, value in sorted(sample.labels.items()))
            series = found.setdefault(sample.name, {})
            assert key not in series, f"twice: {sample}"
            series[key] = sample.value
    return found


def scrape(client: Client | None = None, **headers: str) -> Samples:
    answer = (client or Client()).get(URL, headers=headers or {"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200, answer.content
    return samples(answer.content.decode())


@pytest.fixture
def token(settings: Any) -> None:
    settings.PGQUEUE = {"METRICS_TOKEN": TOKEN}


# -- who may ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rights", "options", "status"),
    [
        (("view_dashboard",), {}, 200),
        (("view_dashboard",), {"staff": False}, 200),
        ((), {"superuser": True}, 200),
        ((), {}, 403),
        (("view_job", "view_job_payload", "requeue_job", "cancel_job"), {}, 403),
    ],
)
def test_users_need_the_right(rights: tuple[str, ...], options: Any, status: int, browser: Browser) -> None:
    answer = browser(*rights, **options).get(URL)
    assert answer.status_code == status
    assert ("pgqueue_up" in answer.content.decode()) == (status == 200)


def test_an_inactive_user_may_not(person: Any) -> None:
    user = person("view_dashboard")
    client = Client()
    client.force_login(user)
    user.is_active = False
    user.save()
    assert client.get(URL).status_code == 401


def test_an_unknown_visitor_is_told_how_to_be_known_and_costs_no_query(
    django_assert_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(answers, "answer")  # nor a connection
    with django_assert_num_queries(0):
        answer = Client().get(URL)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer ")


@pytest.mark.parametrize(
    "header",
    [f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN, "Bearer ", "Bearer", "", "Bearer None",
     f"Bearer {TOKEN.upper()}"],
)  # fmt: skip
def test_another_token_opens_nothing(header: str, token: None) -> None:
    assert Client().get(URL, headers={"Authorization": header}).status_code == 401


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_token_in_the_settings_none_opens(value: str | None, settings: Any) -> None:
    settings.PGQUEUE = {"METRICS_TOKEN": value}
    for header in ("Bearer", "Bearer ", "Bearer None", "Bearer null"):
        assert Client().get(URL, headers={"Authorization": header}).status_code == 401


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_token_opens(scheme: str, token: None) -> None:
    assert Client().get(URL, headers={"Authorization": f"{scheme} {TOKEN}"}).status_code == 200


def test_the_token_is_compared_in_constant_time(token: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(views, "constant_time_compare", lambda a, b: bool(asked.append((a, b))))
    assert Client().get(URL, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 401
    assert asked == [(TOKEN, TOKEN)]


def test_the_token_is_not_read_from_the_url(token: None) -> None:
    for name in ("token", "access_token", "bearer", "Authorization", "METRICS_TOKEN"):
        assert Client().get(URL, {name: TOKEN}).status_code == 401
    assert Client().get(f"{URL}/{TOKEN}").status_code == 404


def test_the_setting_opens_it_to_everybody(settings: Any) -> None:
    settings.PGQUEUE = {"METRICS_PUBLIC": True}
    assert Client().get(URL).status_code == 200


PATHS = ["metrics", "livez", "healthz", "healthz/queues"]


@pytest.mark.parametrize("path", PATHS)
def test_only_get_and_head(path: str, settings: Any) -> None:
    settings.PGQUEUE = {"METRICS_PUBLIC": True}
    client = Client()
    for method in ("post", "put", "patch", "delete", "options"):
        assert getattr(client, method)(f"/pgqueue/{path}").status_code == 405, method
    head = client.head(f"/pgqueue/{path}")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("path", PATHS)
def test_answers_are_never_cached_nor_sniffed_and_slashes_do_not_matter(path: str, settings: Any) -> None:
    settings.PGQUEUE = {"METRICS_PUBLIC": True}
    for url in (f"/pgqueue/{path}", f"/pgqueue/{path}/"):
        answer = Client().get(url)
        assert answer.status_code == 200
        assert "no-store" in answer.headers["Cache-Control"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "no-store" in Client().get("/pgqueue/metrics?x=1").headers["Cache-Control"]


def test_a_host_that_asks_for_a_login_everywhere_does_not_ask_here(settings: Any, token: None) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    assert Client().get("/pgqueue/healthz").status_code == 200
    assert Client().get(URL, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert Client().get(URL).status_code == 401


# -- what it says ----------------------------------------------------------------------------------------------


def test_it_equals_the_tables(token: None) -> None:
    fill(scheduled=3, queued=7, running=4, retrying=5, failed=6, dead=2, succeeded=9, cancelled=8)
    add("q0", "shop.a", State.SUCCEEDED, 0.003, 0.2)
    add("q0", "shop.a", State.RETRYING, 700.0, 0.2, worker="w2")
    add("q1", "shop.b", State.FAILED, 0.02, 40.0)
    add("q1", 'shop."b"\\\n', State.DEAD, None, None)
    found = scrape()

    table = Counter(Job.objects.exclude(state__in=["succeeded", "cancelled"]).values_list("queue_name", "state"))
    assert {key: value for key, value in found["pgqueue_jobs"].items() if value} == dict(table)
    assert {state for _, state in found["pgqueue_jobs"]} == set(map(str, snapshot.COUNTED))
    assert set(found["pgqueue_jobs_capped"].values()) == {0.0}

    completed: Counter[tuple[str, str]] = Counter()
    failures: Counter[tuple[str, str, str]] = Counter()
    for row in Stat.objects.all():
        completed[row.queue_name, row.task] += row.succeeded
        for outcome in ("retried", "failed", "dead"):
            failures[outcome, row.queue_name, row.task] += getattr(row, outcome)
    assert found["pgqueue_jobs_completed_total"] == dict(completed)
    assert found["pgqueue_job_failures_total"] == dict(failures)
    assert (sum(completed.values()), sum(failures.values())) == (1, 3)

    for queue_name in ("q0", "q1"):
        of_queue = list(Stat.objects.filter(queue_name=queue_name))
        counts = [sum(row.pickup_counts[place] for row in of_queue) for place in range(len(stats.BOUNDS) + 1)]
        running_total = 0
        for bound, count in zip([*map(str, stats.BOUNDS), "+Inf"], counts, strict=True):
            running_total += count
            assert found["pgqueue_enqueue_to_start_seconds_bucket"][bound, queue_name] == running_total
        assert found["pgqueue_enqueue_to_start_seconds_count"][queue_name,] == running_total
        assert found["pgqueue_enqueue_to_start_seconds_sum"][queue_name,] == sum(row.pickup_seconds for row in of_queue)
    assert found["pgqueue_run_seconds_count"]["shop.a",] == 2
    assert found["pgqueue_run_seconds_sum"]["shop.a",] == pytest.approx(0.4)
    assert found["pgqueue_run_seconds_bucket"]["0.25", "shop.a"] == 2
    assert found["pgqueue_run_seconds_bucket"]["30.0", "shop.b"] == 0
    assert found["pgqueue_up"] == {(): 1.0}
    assert found["pgqueue_workers"] == {(): 0.0}


def test_the_attempts_that_the_verbs_settle_are_counted(token: None) -> None:
    for state in ("succeeded", "retrying", "failed", "dead"):
        rows.make_job(state, task="shop.tasks.charge")
    found = scrape()
    assert found["pgqueue_jobs_completed_total"] == {("default", "shop.tasks.charge"): 1}
    by_outcome = {outcome: count for (outcome, _, _), count in found["pgqueue_job_failures_total"].items()}
    assert by_outcome == {"retried": 1, "failed": 1, "dead": 1}
    assert found["pgqueue_leases_expired_total"] == {(): 0}


def test_leases_that_expire_are_failures_and_counted_apart(token: None) -> None:
    for max_attempts in (1, 5):
        rows.make_job("running", expired=True, max_attempts=max_attempts)
    assert transitions.reap("default", by="reaper") == 2
    found = scrape()
    by_outcome = {outcome: count for (outcome, _, _), count in found["pgqueue_job_failures_total"].items()}
    assert by_outcome == {"retried": 1, "failed": 0, "dead": 1}
    assert found["pgqueue_leases_expired_total"] == {(): 2}


def test_workers_slots_schedules_and_problems_are_on_it(token: None) -> None:
    for number, age in enumerate((0, 0, 90)):
        worker = {"id": f"w{number}", "name": "w", "host": "h", "pid": 1, "lease_seconds": 30, "queues": ["billing"]}
        Worker.objects.create(**worker, concurrency=8, running=3 + number)
        rows_of_worker = Worker.objects.filter(id=f"w{number}")
        rows_of_worker.update(heartbeat_at=rows.database_now() - timedelta(seconds=age))
    for name, late in (("nightly", 150), ("hourly", -3600)):
        at = rows.database_now() - timedelta(seconds=late)
        Schedule.objects.create(name=name, task="shop.a", line="0 3 * * *", next_at=at)
    Schedule.objects.create(name="off", task="shop.a", line="0 3 * * *", next_at=at, is_enabled=False)
    found = scrape()
    assert found["pgqueue_workers"] == {(): 2}
    assert found["pgqueue_slots"] == {("busy",): 7, ("free",): 9}
    assert set(found["pgqueue_schedule_late_seconds"]) == {("nightly",), ("hourly",)}
    assert found["pgqueue_schedule_late_seconds"]["nightly",] == pytest.approx(150, abs=10)
    assert found["pgqueue_schedule_late_seconds"]["hourly",] == 0
    wrong = {rule for (rule, _), count in found["pgqueue_problems"].items() if count}
    assert wrong == {"schedule_late", "worker_late"}
    assert set(found["pgqueue_problems"]) == {(rule, str(problems.SEVERITIES[rule])) for rule in problems.Rule}


def test_beyond_the_cap_it_is_the_last_full_count_with_its_age(token: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "CAP", 5)
    fill(dead=30, failed=3)
    before = scrape()
    assert sum(value for (_, state), value in before["pgqueue_jobs"].items() if state == "dead") == 5
    assert math.isnan(before["pgqueue_jobs_count_age_seconds"]["dead",])
    assert before["pgqueue_jobs_count_age_seconds"]["failed",] == 0
    counts.take("default", counts.crowded("default"))
    Count.objects.update(counted_at=rows.database_now() - timedelta(seconds=100))
    answers.shared.forget()
    after = scrape()
    assert {queue: value for (queue, state), value in after["pgqueue_jobs"].items() if state == "dead"} == {
        "q0": 10, "q1": 10, "q2": 10,
    }  # fmt: skip
    assert sum(value for (_, state), value in after["pgqueue_jobs"].items() if state == "failed") == 3
    assert after["pgqueue_jobs_count_age_seconds"]["dead",] == pytest.approx(100, abs=10)
    assert after["pgqueue_jobs_capped"]["dead",] == 1


def test_an_empty_queue_has_a_page(token: None) -> None:
    assert scrape()["pgqueue_up"] == {(): 1.0}


def test_open_metrics_for_who_asks(token: None) -> None:
    fill(queued=3)
    add("q0", "shop.a", State.SUCCEEDED, 0.003, 0.2)
    answer = Client().get(
        URL,
        headers={"Authorization": f"Bearer {TOKEN}", "Accept": "application/openmetrics-text; version=1.0.0"},
    )
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    found = samples(answer.content.decode(), parse_openmetrics)
    assert found["pgqueue_jobs_completed_total"]["q0", "shop.a"] == 1
    plain = Client().get(URL, headers={"Authorization": f"Bearer {TOKEN}"})
    assert plain.headers["Content-Type"].startswith("text/plain; version=0.0.4")


def test_labels_are_bounded_and_the_sums_stay_true(token: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_LABELS", 3)
    for number in range(9, 0, -1):
        rows.make_job(queue_name=f"tenant-{number}", task=f"shop.t{number}")
        add(f"tenant-{number}", f"shop.t{number}", State.SUCCEEDED, 0.01, 0.01)
    found = scrape()
    assert {queue for queue, _ in found["pgqueue_jobs"]} == {"tenant-9", "tenant-8", "tenant-7", "other"}
    assert found["pgqueue_jobs"]["other", "queued"] == 6
    assert {key for (key,) in found["pgqueue_run_seconds_count"]} == {"shop.t9", "shop.t8", "shop.t7", "other"}
    assert found["pgqueue_run_seconds_count"]["other",] == 6
    assert found["pgqueue_jobs_completed_total"]["other", "other"] == 6
    # A newcomer that sorts first takes nobody's name, and no counter goes down.
    add("a", "a", State.SUCCEEDED, 0.01, 0.01)
    later = scrape()
    for name in ("pgqueue_jobs_completed_total", "pgqueue_run_seconds_count"):
        assert set(later[name]) == set(found[name])
        assert all(later[name][key] >= value for key, value in found[name].items())


def test_by_default_there_are_at_most_200_queues_and_tasks(token: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO pgqueue_stat (minute, worker_id, queue_name, task, succeeded, pickup_counts, run_counts)
            SELECT statement_timestamp(), 'w' || i, 'q' || i, 't' || i, 1, array_fill(1::bigint, ARRAY[16]),
                   array_fill(1::bigint, ARRAY[16]) FROM generate_series(1, 3000) AS i
            """
        )
        cursor.execute(
            "INSERT INTO pgqueue_job (task, queue_name) SELECT 't' || i, 'z' || i FROM generate_series(1, 500) AS i"
        )
    answer = Client().get(URL, headers={"Authorization": f"Bearer {TOKEN}"})
    text = answer.content.decode()
    found = samples(text)
    assert len({queue for queue, _ in found["pgqueue_jobs"]}) == 201
    assert len(found["pgqueue_run_seconds_count"]) == 201
    assert sum(found["pgqueue_jobs_completed_total"].values()) == 3000
    assert sum(found["pgqueue_jobs"].values()) == 500
    assert len(text.splitlines()) < 20_000


def test_labels_name_no_job_worker_key_or_error(token: None) -> None:
    rows.make_job("dead", idempotency_key="key-4711", label="label-4711", args=["arg-4711"], worker_id="worker-4711")
    text = Client().get(URL, headers={"Authorization": f"Bearer {TOKEN}"}).content.decode()
    assert "4711" not in text
    assert "boom" not in text


def test_capped_counts_say_so(token: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "CAP", 5)
    fill(dead=30)
    found = scrape()
    assert sum(value for (_, state), value in found["pgqueue_jobs"].items() if state == "dead") == 5
    assert found["pgqueue_jobs_capped"]["dead",] == 1
    assert found["pgqueue_jobs_capped"]["failed",] == 0


def test_nothing_is_left_in_the_default_registry(token: None) -> None:
    scrape()
    scrape()
    assert b"pgqueue" not in prometheus_client.generate_latest()


def test_registering_asks_the_database_nothing(django_assert_num_queries: Any) -> None:
    fill(queued=1)
    taken = snapshot.take()
    with django_assert_num_queries(0):
        for auto_describe in (True, False):
            CollectorRegistry(auto_describe=auto_describe).register(metrics.SnapshotCollector(taken))


def test_all_values_of_a_page_are_of_one_moment(
    token: None, monkeypatch: pytest.MonkeyPatch, second_connection: Any
) -> None:
    """Jobs hop between two queues all the time; no page may see more or fewer of them than there are."""
    for _ in range(40):
        rows.make_job(queue_name="a")
    stop = threading.Event()

    def hop() -> None:
        while not stop.is_set():
            for sql in (
                "UPDATE pgqueue_job SET queue_name = 'b', state = 'scheduled' WHERE id % 2 = 0",
                "UPDATE pgqueue_job SET queue_name = 'a', state = 'queued' WHERE id % 2 = 0",
            ):
                second_connection.execute(sql)

    thread = threading.Thread(target=hop)
    thread.start()
    try:
        for _ in range(40):
            assert sum(scrape()["pgqueue_jobs"].values()) == 40
    finally:
        stop.set()
        thread.join()


def test_no_connection_is_left_open(token: None, second_connection: Any) -> None:
    def sessions() -> int:
        (number,) = second_connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        ).fetchone()
        return int(number)

    before = sessions()
    for _ in range(10):
        scrape()
        Client().get("/pgqueue/healthz")
    rows.wait_for(lambda: sessions() <= before)
    assert not [thread for thread in threading.enumerate() if thread.name == "pgqueue-question"]


def test_probes_of_anybody_are_one_session_for_half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def answer(ask: Any, until: float, database: Any) -> float:
        asked.append(time.monotonic())
        return 0.001

    monkeypatch.setattr(answers, "answer", answer)
    for _ in range(50):
        assert Client().get("/pgqueue/healthz").json() == {"status": "ok", "db_ms": 1.0}
    assert len(asked) <= 1 + (time.monotonic() - asked[0]) / answers.PING_SECONDS


class Askers:
    """Some who ask at the same time; ``answer`` waits until all of them do."""

    def __init__(self, count: int, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> None:
        monkeypatch.setattr(answers, "answer", self.fail if fails else self.answer)
        self.shared: answers.Shared[Any] = answers.Shared(snapshot.take, answers.SHARED_SECONDS)
        self.tries: list[float] = []
        self._coming = count
        self.rivals = [rows.Rival(self.ask) for _ in range(count)]

    def ask(self) -> Any:
        self._coming -= 1
        return self.shared.reading()

    def answer(self, ask: Any, until: float, database: Any) -> Any:
        self.tries.append(time.monotonic())
        rows.wait_for(lambda: self._coming == 0)
        return object()

    def fail(self, ask: Any, until: float, database: Any) -> Any:
        self.answer(ask, until, database)
        raise answers.Unanswered("away")


def test_all_who_ask_within_a_second_get_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten scrapers cost no more than one, also when they come together."""
    askers = Askers(10, monkeypatch)
    first = askers.rivals[0].result()
    assert all(rival.result() is first for rival in askers.rivals)
    assert askers.shared.reading() is first
    assert len(askers.tries) == 1
    rows.wait_for(lambda: time.monotonic() > askers.tries[0] + answers.SHARED_SECONDS)
    assert askers.shared.reading() is not first


def test_who_has_waited_for_a_slow_reading_does_not_wait_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "SHARED_SECONDS", -1.0)  # each is too old for who comes later
    askers = Askers(5, monkeypatch)
    assert askers.shared.seconds == -1.0
    first = askers.rivals[0].result()
    assert all(rival.result() is first for rival in askers.rivals)
    assert len(askers.tries) == 1
    assert askers.shared.reading() is not first


def test_all_who_wait_for_an_answer_that_does_not_come_hear_it_together(monkeypatch: pytest.MonkeyPatch) -> None:
    askers = Askers(5, monkeypatch, fails=True)
    for rival in askers.rivals:
        with pytest.raises(answers.Unanswered):
            rival.result()
    assert len(askers.tries) == 1
    with pytest.raises(answers.Unanswered):
        askers.shared.reading()
    assert len(askers.tries) == 2, "who comes later asks again"

"""Many requests to the JSON API at the same time, each on a thread and a connection of its own."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections
from django.test import Client
from psycopg import IsolationLevel
from verbs.rows import make_job

from pgqueue_django.access import Actor
from pgqueue_django.api import limits
from pgqueue_django.conf import RIGHTS
from pgqueue_django.models import Job

from .api_tasks import charge

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue_django"])

AT_ONCE = 8


def everybody(request: Any) -> Actor:
    return Actor("tester", RIGHTS)


@pytest.fixture(autouse=True)
def open_api(settings: Any) -> None:
    settings.PGQUEUE = {"API_AUTH": [everybody]}
    settings.ROOT_URLCONF, settings.MIDDLEWARE = f"{__package__}.api_urls", []
    limits.forget()


@pytest.fixture(params=["as it is", IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def isolation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the project sets, of connections that are made from now on."""
    if isinstance(request.param, IsolationLevel):
        monkeypatch.setitem(connections.settings["default"]["OPTIONS"], "isolation_level", request.param)


def wanted(key: str | None = None, number: int = 7) -> dict[str, Any]:
    return {"task": charge.path, "args": [number], **({"idempotency_key": key} if key else {})}


def post(path: str, body: Any = None) -> int:
    return Client().post(f"/pgqueue/api/v1/{path}", body or {}, "application/json").status_code


def at_once(ask: Callable[[int], int], times: int = AT_ONCE) -> Counter[int]:
    """What they were answered: so many of each status."""
    statuses: list[int] = []
    together = threading.Barrier(times)

    def go(number: int) -> None:
        try:
            together.wait()
            statuses.append(ask(number))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=go, args=(number,)) for number in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Counter(statuses)


@pytest.mark.usefixtures("isolation")
def test_one_key_makes_one_job_and_all_others_are_answered_as_repeats() -> None:
    for key in "abcde":
        assert at_once(lambda _, key=key: post("jobs", wanted(key))) == {201: 1, 200: AT_ONCE - 1}  # type: ignore[misc]
    assert Job.objects.count() == 5


@pytest.mark.usefixtures("isolation")
def test_one_key_with_several_contents_makes_one_job_and_refuses_the_others() -> None:
    for key in "abcde":
        answers = at_once(lambda number, key=key: post("jobs", wanted(key, number)))  # type: ignore[misc]
        assert answers == {201: 1, 422: AT_ONCE - 1}
    assert Job.objects.count() == 5


@pytest.mark.usefixtures("isolation")
def test_batches_with_the_same_keys_in_any_order_are_one() -> None:
    jobs = [wanted(f"key-{number}", number) for number in range(50)]

    def ask(number: int) -> int:
        return post("jobs:batch", {"jobs": jobs if number % 2 else jobs[::-1]})

    assert at_once(ask) == {201: 1, 200: AT_ONCE - 1}
    assert Job.objects.count() == 50


@pytest.mark.usefixtures("isolation")
@pytest.mark.parametrize(("verb", "state"), [("cancel", "queued"), ("requeue", "dead")])
def test_a_job_is_moved_once_and_the_others_are_told_its_state(verb: str, state: str) -> None:
    for _ in range(3):
        job = make_job(state)
        assert at_once(lambda _, id=job.pk: post(f"jobs/{id}/{verb}")) == {200: 1, 409: AT_ONCE - 1}  # type: ignore[misc]


def test_a_queue_takes_no_more_than_it_may_however_many_ask(settings: Any) -> None:
    settings.PGQUEUE = {"API_AUTH": [everybody], "API_MAX_QUEUE_DEPTH": 10}
    assert at_once(lambda _: post("jobs", wanted()), 30) == {201: 10, 429: 20}
    assert Job.objects.count() == 10


def test_a_full_queue_is_counted_by_one_of_those_who_ask(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.PGQUEUE = {"API_AUTH": [everybody], "API_MAX_QUEUE_DEPTH": 1}
    assert post("jobs", wanted()) == 201
    counting, walks = [], limits.index_walks
    monkeypatch.setattr(limits, "index_walks", lambda using: counting.append(using) or walks(using))  # type: ignore[func-returns-value]
    (place,) = limits._depths
    monkeypatch.setattr(limits, "COUNTED_SECONDS", 60)
    limits._depths[place] = -60.0, 1  # counted long ago
    assert at_once(lambda _: post("jobs", wanted())) == {429: AT_ONCE}
    assert len(counting) == 1


def test_repeats_and_what_was_refused_take_no_room(settings: Any) -> None:
    """And who repeats is answered, although the queue is full: his job is there."""
    settings.PGQUEUE = {"API_AUTH": [everybody], "API_MAX_QUEUE_DEPTH": 3}
    assert post("jobs", wanted("a")) == 201
    assert [post("jobs", wanted("a")) for _ in range(3)] == [200] * 3
    assert [post("jobs", wanted("a", 8)) for _ in range(3)] == [422] * 3
    assert post("jobs:batch", {"jobs": [wanted("a"), wanted(), wanted()]}) == 201
    assert post("jobs", wanted()) == 429
    assert post("jobs", wanted("a")) == 200
    assert post("jobs:batch", {"jobs": [wanted("a"), wanted("b")]}) == 429
    assert Job.objects.count() == 3

"""A queue that is paused, and for how long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from pgqueue_django import queues
from pgqueue_django.exceptions import InvalidOption
from pgqueue_django.models import Queue

from .rows import DB

pytestmark = pytest.mark.django_db


def test_a_pause_says_who_and_why_and_ends_when_a_person_says_so() -> None:
    assert queues.paused(DB) == frozenset()
    queues.pause(DB, "mail", reason="provider down", actor="ana")
    queues.pause(DB, "billing")
    row = Queue.objects.get(name="mail")
    assert (row.reason, row.actor, row.resume_at) == ("provider down", "ana", None)
    assert row.paused_at is not None
    assert queues.paused(DB) == {"mail", "billing"}
    assert queues.resume(DB, "mail")
    assert not queues.resume(DB, "mail")
    assert not queues.resume(DB, "never-paused")
    assert queues.paused(DB) == {"billing"}


def test_a_pause_with_an_end_ends_by_itself() -> None:
    queues.pause(DB, "mail", until=timedelta(hours=1))
    assert queues.paused(DB) == {"mail"}
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_queue SET resume_at = statement_timestamp() - interval '1 ms'")
    assert queues.paused(DB) == frozenset()


def test_a_second_pause_replaces_the_first() -> None:
    queues.pause(DB, "mail", reason="a", until=datetime.now(UTC) + timedelta(hours=1))
    queues.pause(DB, "mail", reason="b" * 300, actor="c" * 300)
    row = Queue.objects.get()
    assert (row.reason, row.actor, row.resume_at) == ("b" * 200, "c" * 150, None)


def test_a_pause_of_no_length_is_refused_before_anything_is_written() -> None:
    for length in (timedelta(0), timedelta(seconds=-1)):
        with pytest.raises(InvalidOption, match="more than 0"):
            queues.pause(DB, "mail", until=length)
    assert not Queue.objects.exists()


def test_a_pause_that_has_ended_by_itself_is_no_longer_there_to_be_resumed() -> None:
    queues.pause(DB, "mail", until=timedelta(hours=1))
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_queue SET resume_at = statement_timestamp() - interval '1 ms'")
    assert not queues.resume(DB, "mail")
    assert not Queue.objects.exists()

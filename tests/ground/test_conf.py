"""settings.PGQUEUE: every mistake is an error that names the key and says what it may be."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from pgqueue_django import conf
from pgqueue_django.conf import DAY, RETENTION, Settings, current


def test_the_defaults_are_those_of_the_design(settings: Any) -> None:
    settings.PGQUEUE = {}
    now = current()
    assert now == Settings()
    assert (now.LEASE, now.heartbeat, now.POLL_INTERVAL, now.CHORE_INTERVAL, now.SHUTDOWN_TIMEOUT) == (30, 10, 1, 1, 30)
    assert (now.CONCURRENCY, now.MAX_ATTEMPTS, now.TIMEOUT, now.MAX_PAYLOAD_BYTES) == (8, 5, None, 262_144)
    assert now.retention == {"succeeded": 7 * DAY, "cancelled": 7 * DAY, "failed": 30 * DAY, "dead": 30 * DAY}
    assert now.IDEMPOTENCY_RETENTION == DAY


def test_a_test_that_overrides_them_sees_them_and_the_next_one_does_not(settings: Any) -> None:
    settings.PGQUEUE = {"LEASE": 12}
    assert (current().LEASE, current().heartbeat) == (12, 4)
    settings.PGQUEUE = {}
    assert current().LEASE == 30


def test_retention_names_only_what_differs(settings: Any) -> None:
    settings.PGQUEUE = {"RETENTION": {"dead": None, "succeeded": 0}}
    assert current().retention == {**RETENTION, "dead": None, "succeeded": 0}


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("LEASE", [0, -1, "30", None, True, float("nan")]),
        ("POLL_INTERVAL", [0, -1, "1", None]),
        ("CHORE_INTERVAL", [0, -1, "1", None]),
        ("SHUTDOWN_TIMEOUT", [-1, "30", None]),
        ("HEARTBEAT", [0, -1, "10", 16]),
        ("TIMEOUT", [0, -1, "10"]),
        ("CONCURRENCY", [0, -1, 1.5, "8", None, True]),
        ("MAX_ATTEMPTS", [0, -1, 1.5, "5", None, True]),
        ("MAX_PAYLOAD_BYTES", [0, -1, 1.5, None]),
        ("MAX_HISTORY", [0, -1, 1.5, None]),
        ("IDEMPOTENCY_RETENTION", [-1, "1", None]),
        ("TRACING", [1, "on", None]),
        ("LIVE", ["websocket", "SSE", None, True]),
        ("LISTEN_DATABASE", ["elsewhere", "", 1, ["default"]]),
        ("PUBLIC_DATABASE", ["elsewhere", "", 1, ["default"]]),
        ("PUBLIC", [1, "on", None]),
        ("READ_ONLY", [1, "on", None]),
        ("AUDIT_RETENTION", [-1, "400 days", True, float("nan")]),
        ("RETENTION", [{"succeeded": -1}, {"dead": "x"}, {"queued": 1}]),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_key(settings: Any, key: str, values: list[Any]) -> None:
    for value in values:
        settings.PGQUEUE = {key: value}
        with pytest.raises(ImproperlyConfigured, match=key):
            current()


@pytest.mark.parametrize(
    "given",
    [
        {"SHUTDOWN_TIMEOUT": 0},
        {"IDEMPOTENCY_RETENTION": 0},
        {"HEARTBEAT": None},
        {"HEARTBEAT": 15},
        {"TIMEOUT": 0.5},
        {"LISTEN_DATABASE": "default"},
        {"LISTEN_DATABASE": None},
        {"RETENTION": None},
        {"AUDIT_RETENTION": None},
        {"AUDIT_RETENTION": 0},
    ],
    ids=str,
)
def test_values_at_the_edge_are_taken(settings: Any, given: dict[str, Any]) -> None:
    settings.PGQUEUE = given
    for key, value in given.items():
        assert getattr(current(), key) == value


def test_an_unknown_key_is_an_error_that_names_it_and_the_known_ones(settings: Any) -> None:
    settings.PGQUEUE = {"LEASES": 30, "Lease": 30}
    with pytest.raises(ImproperlyConfigured) as raised:
        current()
    assert all(f"unknown {key}; did you mean LEASE?" in str(raised.value) for key in ("LEASES", "Lease"))
    assert all(field.name in str(raised.value) for field in fields(Settings))


def test_all_mistakes_are_told_at_once(settings: Any) -> None:
    settings.PGQUEUE = {"LEASE": "30", "HEARTBEAT": 1, "CONCURENCY": 8, 3: 4, "RETENTION": "a week", "METRICS_TOKEN": 5}
    assert [one.key for one in conf.mistakes()] == ["CONCURENCY", "3", "LEASE", "METRICS_TOKEN", "RETENTION"]
    with pytest.raises(ImproperlyConfigured, match=r"did you mean CONCURRENCY\?.*LEASE.*METRICS_TOKEN.*a week"):
        current()


def test_a_wrong_token_is_not_shown(settings: Any) -> None:
    settings.PGQUEUE = {"METRICS_TOKEN": b"a secret"}
    with pytest.raises(ImproperlyConfigured, match="METRICS_TOKEN") as raised:
        current()
    assert "a secret" not in str(raised.value)


@pytest.mark.parametrize("given", [[], "x", 3, None])
def test_the_settings_are_a_dict(settings: Any, given: Any) -> None:
    settings.PGQUEUE = given
    with pytest.raises(ImproperlyConfigured, match="dict"):
        current()


def test_a_heartbeat_that_one_late_one_would_lose_is_refused(settings: Any) -> None:
    settings.PGQUEUE = {"LEASE": 10, "HEARTBEAT": 6}
    with pytest.raises(ImproperlyConfigured, match=r"HEARTBEAT.*LEASE"):
        current()


def test_they_are_read_once(settings: Any) -> None:
    settings.PGQUEUE = {"LEASE": 12}
    assert current() is current()
    assert conf.current.cache_info().hits


@pytest.mark.parametrize(
    "given",
    [
        *({key: float("inf")} for key in ("LEASE", "POLL_INTERVAL", "SHUTDOWN_TIMEOUT", "TIMEOUT", "HEARTBEAT")),
        {"RETENTION": {"succeeded": float("inf")}},
        {"IDEMPOTENCY_RETENTION": float("inf")},
        {"MAX_ATTEMPTS": 2**31},
        {"METRICS_PUBLIC": "no"},
        {"LISTEN": "False"},
        {"MAX_HISTORY": 1},
    ],
    ids=str,
)
def test_values_that_sql_or_a_truth_test_would_choke_on_are_refused(settings: Any, given: dict[str, Any]) -> None:
    settings.PGQUEUE = given
    with pytest.raises(ImproperlyConfigured, match=next(iter(given))):
        current()

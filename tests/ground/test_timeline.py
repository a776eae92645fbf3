"""The timeline of a job: what its row tells of its attempts and waits, and its drawing, whatever the row holds."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from pgqueue_django.dashboard import timeline
from pgqueue_django.dashboard.timeline import Step, StepKind, draw, long, looks, moment_of, steps, summary, told
from pgqueue_django.models import Job
from pgqueue_django.outcomes import Kind
from pgqueue_django.states import State

ZERO = datetime(2027, 1, 31, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return ZERO + timedelta(seconds=seconds)


def failed(attempt: Any, begin: float, end: float, kind: str = "error", **more: Any) -> dict[str, Any]:
    moments = {"started_at": at(begin).isoformat(), "ended_at": at(end).isoformat()}
    return {"attempt": attempt, "worker": "w", "kind": kind, "error_type": "E", **moments, **more}


def job(state: str, *history: Any, started: float | None = None, ended: float | None = None, **columns: Any) -> Job:
    values: dict[str, Any] = {"enqueued_at": at(0), "run_after": at(0), "attempts": 1, "worker_id": "w", **columns}
    values |= {
        "started_at": None if started is None else at(started),
        "finished_at": None if ended is None else at(ended),
    }
    return Job(pk=7, task="shop.tasks.charge", state=state, history=list(history), **values)


def read(found: list[Step]) -> list[tuple[Any, ...]]:
    """Kind, length, and what a run ended in or how many were lost."""
    return [
        (step.kind.value, step.seconds, *([step.outcome or step.attempts] * bool(step.outcome or step.attempts)))
        for step in found
    ]


def test_a_job_that_succeeded_at_once_waited_and_ran() -> None:
    assert read(steps(job("succeeded", started=3, ended=5), at(60))) == [
        (
            "ready",
            3,
        ),
        ("run", 2, "succeeded"),
    ]


def test_one_that_was_planned_waited_for_its_time_and_then_for_a_worker() -> None:
    found = steps(job("succeeded", started=12, ended=13, run_after=at(10)), at(60))
    assert read(found) == [("scheduled", 10), ("ready", 2), ("run", 1, "succeeded")]


def test_between_attempts_there_is_backoff_and_of_the_latest_the_wait_is_told_apart() -> None:
    history = [failed(1, 1, 2), failed(2, 6, 7, "timeout")]
    found = steps(job("succeeded", *history, started=20, ended=22, run_after=at(17), attempts=3), at(60))
    assert read(found) == [
        ("wait", 1), ("run", 1, "error"), ("backoff", 4), ("run", 1, "timeout"), ("backoff", 10), ("ready", 3),
        ("run", 2, "succeeded"),
    ]  # fmt: skip
    assert [step.attempt for step in found if step.kind == StepKind.RUN] == [1, 2, 3]


def test_a_dead_jobs_last_attempt_is_that_of_its_history() -> None:
    history = [failed(1, 1, 2), failed(2, 12, 13)]
    found = steps(job("dead", *history, started=12, ended=13, run_after=at(9), attempts=2), at(60))
    assert read(found) == [("wait", 1), ("run", 1, "error"), ("backoff", 7), ("ready", 3), ("run", 1, "error")]


@pytest.mark.parametrize(("lease", "outcome"), [(70, "running"), (50, "expired")])
def test_what_runs_runs_until_now_and_an_expired_lease_is_told(lease: float, outcome: str) -> None:
    found = steps(job("running", started=3, lease_expires_at=at(lease)), at(60))
    assert read(found) == [("ready", 3), ("run", 57, outcome)]


def test_what_waits_for_its_next_attempt_shows_how_long_it_will() -> None:
    found = steps(job("retrying", failed(1, 1, 2), started=1, run_after=at(90)), at(60))
    assert read(found) == [("wait", 1), ("run", 1, "error"), ("backoff", 88)]
    overdue = steps(job("retrying", failed(1, 1, 2), started=1, run_after=at(30)), at(60))
    assert read(overdue)[2:] == [("backoff", 28), ("ready", 30)]


@pytest.mark.parametrize(
    ("state", "run_after", "expected"),
    [
        ("queued", 0, [("ready", 60)]),
        ("queued", 20, [("scheduled", 20), ("ready", 40)]),
        ("scheduled", 90, [("scheduled", 90)]),
    ],
)
def test_what_has_never_run_only_waits(state: str, run_after: float, expected: list[Any]) -> None:
    assert read(steps(job(state, run_after=at(run_after), attempts=0), at(60))) == expected


def test_a_job_that_was_sent_back_begins_anew() -> None:
    history = [failed(1, 1, 2), failed(2, 4, 5)]
    waiting = steps(job("queued", *history, started=4, run_after=at(40), attempts=0), at(60))
    assert read(waiting)[3:] == [("run", 1, "error"), ("sent-back", 35), ("ready", 20)]
    again = steps(job("succeeded", *history, started=45, ended=46, run_after=at(40), attempts=1), at(60))
    assert read(again)[3:] == [("run", 1, "error"), ("sent-back", 35), ("ready", 5), ("run", 1, "succeeded")]


def test_what_succeeded_and_was_sent_back_ran_nobody_knows_how_long() -> None:
    found = steps(job("queued", started=3, run_after=at(40), attempts=0), at(60))
    assert read(found) == [("wait", 3), ("run", None, "unknown"), ("sent-back", None)]


def test_a_cancel_ends_a_run_or_a_wait() -> None:
    running = steps(job("cancelled", started=3, ended=9, run_after=at(33)), at(60))
    assert read(running) == [("wait", 3), ("run", 6, "cancelled")]
    retrying = steps(job("cancelled", failed(1, 1, 2), started=1, ended=9, run_after=at(33)), at(60))
    assert read(retrying) == [("wait", 1), ("run", 1, "error"), ("backoff", 7)]
    assert read(steps(job("cancelled", ended=9, attempts=0), at(60))) == [("ready", 9)]


def test_the_gap_of_a_cut_history_is_told() -> None:
    history = [failed(1, 1, 2), failed(31, 400, 401), failed(32, 410, 411)]
    found = steps(job("dead", *history, started=410, ended=411, attempts=32), at(500))
    assert read(found)[2] == ("lost", 398, 29)
    assert told(found[2]) == "29 attempts that are not kept"


def test_of_a_long_history_the_first_and_the_newest_are_looked_at() -> None:
    history = [failed(number, number * 10, number * 10 + 1) for number in range(1, 1001)]
    found = steps(job("dead", *history, started=10_000, ended=10_001, attempts=1000), at(20_000))
    runs = [step.attempt for step in found if step.kind == StepKind.RUN]
    assert runs == [1, *range(982, 1001)]
    assert [step.attempts for step in found if step.kind == StepKind.LOST] == [980]
    cut = [*history[:1], *history[-19:]]
    assert steps(job("dead", *cut, started=10_000, ended=10_001, attempts=1000), at(20_000), left_out=980) == found


def test_clocks_that_were_set_back_make_no_negative_waits() -> None:
    found = steps(job("succeeded", failed(1, 50, 40), started=30, ended=20, enqueued_at=at(60), attempts=2), at(10))
    assert [step.seconds for step in found] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "value",
    [
        "",
        None,
        5,
        {},
        [],
        "yesterday",
        "2027-02-31T00:00:00Z",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59-12:00",
        "2027",
    ],
)
def test_what_is_no_moment_is_unknown(value: object) -> None:
    assert moment_of(value) is None


def test_moments_without_a_zone_are_of_the_projects() -> None:
    with override_settings(TIME_ZONE="Europe/Warsaw"):
        assert moment_of("2027-01-31T13:00:00") == ZERO
    with override_settings(USE_TZ=False, TIME_ZONE="Europe/Warsaw"):
        naive = datetime(2027, 1, 31, 13)
        found = steps(
            Job(state="queued", enqueued_at=naive, run_after=naive, history=[failed(1, 1, 2)], attempts=1), naive
        )
    assert found[0].seconds == 1


# -- in words and as a drawing ---------------------------------------------------------------------------------


def shapes(svg: str) -> list[ET.Element]:
    root = ET.fromstring(svg)
    assert root.tag == "svg"
    return list(root)


def test_every_step_is_drawn_once_in_its_order_with_its_title() -> None:
    history = [failed(1, 1, 2), failed(2, 6, 7, "timeout")]
    found = steps(job("retrying", *history, started=6, run_after=at(90), attempts=2), at(60))
    drawn = shapes(draw(found, at(60)))
    assert [group.get("class") for group in drawn[:-1]] == [looks(step) for step in found]
    titles = [group.findtext("title") for group in drawn[:-1]]
    assert titles == [f"{told(step)}, {long(step)}" for step in found]
    assert titles[1] == "Attempt 1: error (E), 1 s"
    assert titles[3] == "Attempt 2: timeout (E), 1 s"
    lefts = [float(str(shape.get("x") or shape.get("x1")).rstrip("%")) for group in drawn[:-1] for shape in group[1:2]]
    assert lefts == sorted(lefts)
    assert len(set(lefts)) == len(found)


def test_now_is_marked_where_it_is_and_only_while_the_job_is_under_way() -> None:
    def mark(found: list[Step], now: datetime) -> float | None:
        marks = [group for group in shapes(draw(found, now)) if group.get("class") == "pgq-t-now"]
        return float(str(marks[0][0].get("x1")).rstrip("%")) if marks else None

    planned = steps(job("scheduled", run_after=at(100), attempts=0), at(25))
    assert mark(planned, at(25)) == pytest.approx(25)
    assert mark(steps(job("queued", attempts=0), at(60)), at(60)) == pytest.approx(99.8)
    assert mark(steps(job("succeeded", started=3, ended=5), at(60)), at(60)) is None


def test_what_is_longer_is_wider_and_a_second_beside_a_day_is_seen() -> None:
    found = steps(job("succeeded", started=86_400, ended=86_401), at(90_000))
    wait, run = (float(str(group[1].get("width")).rstrip("%")) for group in shapes(draw(found, at(90_000))))
    assert wait > run > 5


def test_the_summary_counts_what_is_lost_and_nothing_that_is_ahead() -> None:
    history = [failed(1, 1, 3), failed(5, 50, 53)]
    found = steps(job("retrying", *history, started=50, run_after=at(100), attempts=5), at(60))
    assert summary(found, at(60)) == "5 attempts, 5 s running, 8 s waiting, 60 s in all."


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_failure_has_its_words(kind: Kind) -> None:
    (found,) = [step for step in steps(job("dead", failed(1, 1, 2, str(kind)), started=1), at(9)) if step.attempt]
    assert looks(found) == "pgq-t-run pgq-t-failed"
    assert "?" not in told(found)
    assert "_" not in told(found)


GARBAGE: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.datetimes().map(str),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=6,
)
NAMES = ("attempt", "worker", "started_at", "ended_at", "kind", "error_type", "message", "traceback")
ENTRIES = st.dictionaries(st.sampled_from(NAMES), GARBAGE) | GARBAGE
MOMENTS = st.none() | st.integers(-(10**9), 10**9).map(at)
HISTORIES = st.lists(ENTRIES, max_size=30) | GARBAGE


@given(
    HISTORIES, st.sampled_from(State), MOMENTS, MOMENTS, MOMENTS, st.integers(0, 2**31), st.integers(-(10**9), 10**9)
)
def test_whatever_the_row_holds_it_is_drawn(
    history: Any, state: State, started: Any, ended: Any, lease: Any, attempts: int, enqueued: int
) -> None:
    row = job(str(state), started=None, attempts=attempts, enqueued_at=at(enqueued))
    row.history, row.started_at, row.lease_expires_at = history, started, lease
    row.finished_at = ended
    found = steps(row, ZERO)
    assert all(step.seconds is None or step.seconds >= 0 for step in found)
    assert len([step for step in found if step.kind == StepKind.RUN]) <= timeline.MAX_ATTEMPTS + 1
    svg = draw(found, ZERO)
    for number in re.findall(r'(?:x|x1|x2|width)="(-?[\d.]+)%"', svg):
        assert -0.2 <= float(number) <= 100.01
    assert "style" not in re.sub(r"<title>.*?</title>", "", svg, flags=re.S)
    assert summary(found, ZERO)
    assert all(told(step) and long(step) and looks(step).startswith("pgq-t-") for step in found)


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "]]></svg><img src=x onerror=alert(1)>", "&amp;\x0b"])
def test_hostile_words_stay_words(text: str) -> None:
    entry = failed(text, 1, 2, text, error_type=text, worker=text)
    svg = draw(steps(job("dead", entry, started=1, ended=2), at(9)), at(9))
    assert "<script" not in svg
    assert "<img" not in svg
    assert svg.count("<title>") == 2

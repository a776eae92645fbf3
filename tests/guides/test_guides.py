"""The code of the guides does what it did before: the same day in the shop leaves the same ledger.

*Before* runs under the peer's own worker, *after* under ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pgqueue_django.cron import Line

from .projects import PACKAGES, Program, Project, missing

DAY = sorted(
    [
        "paid order-1, 1000 cents, attempt 1",
        "unreachable order-2, attempt 1",
        "paid order-2, 2000 cents, attempt 2",
        "declined order-3, attempt 1",
        *(f"mail customer{number}@example.com: Your order {number}" for number in (1, 2, 3)),
        *(f"mail {name}@example.com: Winter sale" for name in ("ada", "bob", "cyd")),
    ]
)
REPORT = "2 orders are paid"

WORKERS = {
    "celery": ("celery", "-A", "shop", "worker", "-c", "2", "-Q", "celery,billing,mail", "-l", "info"),
    "procrastinate": ("django", "procrastinate", "worker", "-c", "2"),
    "django-q2": ("django", "qcluster"),
    "django-tasks-db": ("django", "db_worker", "--queue-name", "*", "--no-startup-delay", "--interval", "0.1"),
}

# What their own schedulers do at three o'clock.
TICKS = {
    "celery": """
from django.conf import settings
from shop import celery_app
celery_app.send_task(settings.CELERY_BEAT_SCHEDULE["daily-report"]["task"])
""",
    "procrastinate": "from shop.tasks import file_daily_report; file_daily_report.defer(timestamp=0)",
    "django-q2": """
from datetime import timedelta
from django.utils import timezone
from django_q.models import Schedule
from django_q.scheduler import scheduler
from shop.checkout import report_daily
report_daily()
Schedule.objects.filter(name="daily report").update(next_run=timezone.now() - timedelta(minutes=1))
scheduler()
""",
    "django-tasks-db": "from shop.tasks import file_daily_report; file_daily_report.enqueue()",
}

guides = pytest.mark.parametrize("guide", sorted(PACKAGES))


@guides
def test_before_under_the_peers_worker(guide: str, projects: Callable[..., list[Project]]) -> None:
    if why := missing(guide):
        pytest.skip(why)
    shop, _ = projects((guide, "before"), (guide, "after"))
    shop.python("day")
    worker = shop.start(*WORKERS[guide])
    _schedule_at_once(shop, guide)
    _ends_with_the_ledger(shop, guide, worker)


@guides
def test_after_under_ours(guide: str, projects: Callable[..., list[Project]]) -> None:
    if why := missing(guide):
        pytest.skip(why)
    _, shop = projects((guide, "before"), (guide, "after"))
    shop.python("day")
    worker = shop.start("django", "pgqueue_worker", "--concurrency", "2")
    _ends_with_the_ledger(shop, guide, worker)
    _all_but_the_declined_card_succeeded(shop)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"hour": 3, "minute": 0}, "0 3 * * *"),
        ({"hour": 7, "minute": 30, "day_of_week": "mon,fri"}, "30 7 * * 1,5"),
        ({"hour": 0, "minute": 5, "day_of_month": 1}, "5 0 1 * *"),
    ],
)
def test_a_crontab_of_celery_and_our_line_are_the_same_moments(fields: dict[str, Any], line: str) -> None:
    if why := missing("celery"):
        pytest.skip(why)
    from celery import Celery
    from celery.schedules import crontab

    app = Celery(set_as_current=False)
    app.conf.timezone = "Europe/Warsaw"
    for days in range(400):
        noon = datetime(2026, 1, 1, 12, tzinfo=ZoneInfo("Europe/Warsaw")) + timedelta(days=days)
        schedule = crontab(**fields, app=app, nowfun=lambda noon=noon: noon)  # type: ignore[misc]
        theirs = noon.astimezone(UTC) + schedule.remaining_estimate(noon)
        assert theirs == Line(line, "Europe/Warsaw").next_after(noon)


@pytest.mark.parametrize("guide", ["celery", "django-q2"])
def test_what_was_queued_before_is_handed_over_by_the_peers_worker(
    guide: str, projects: Callable[..., list[Project]]
) -> None:
    if why := missing(guide):
        pytest.skip(why)
    before, during = projects((guide, "before"), (guide, "during"))
    before.python("day")
    theirs = during.start(*WORKERS[guide], environment={"SCRATCH": str(before.directory)})
    ours = during.start("django", "pgqueue_worker", "--concurrency", "2")
    _schedule_at_once(during, guide)
    _ends_with_the_ledger(during, guide, ours)
    assert theirs.stop() == 0, theirs.log
    _all_but_the_declined_card_succeeded(during)


@pytest.mark.parametrize(
    ("guide", "options"),
    [("django-tasks-db", ()), ("procrastinate", ("--map", "newsletter=shop.tasks.send_newsletter"))],
)
def test_what_was_queued_before_is_moved(
    guide: str, options: Sequence[str], projects: Callable[..., list[Project]]
) -> None:
    if why := missing(guide):
        pytest.skip(why)
    before, after = projects((guide, "before"), (guide, "after"))
    before.python("day")
    assert "9  moved" in after.django("pgqueue_import", guide, *options)
    worker = after.start("django", "pgqueue_worker", "--concurrency", "2")
    _ends_with_the_ledger(after, guide, worker)
    _all_but_the_declined_card_succeeded(after)


def _schedule_at_once(shop: Project, guide: str) -> None:
    """The scheduler of django-q2 comes by each half minute; this is it."""
    if guide == "django-q2":
        late = "UPDATE django_q_schedule SET next_run = now() - interval '1 second' WHERE repeats <> 0 RETURNING id"
        assert len(shop.sql(late)) == 3
        shop.execute("from django_q.scheduler import scheduler; scheduler()")


def _all_but_the_declined_card_succeeded(shop: Project) -> None:
    states = shop.sql(
        "SELECT state, count(*) FROM pgqueue_job WHERE task NOT LIKE '%%report' GROUP BY state ORDER BY state"
    )
    assert states == [("failed", 1), ("succeeded", 8)]


def _ends_with_the_ledger(shop: Project, guide: str, worker: Program) -> None:
    shop.wait_until(lambda: len(shop.ledger) >= len(DAY), worker)
    # What our worker has declared as it started; where it has not, the peer's own.
    if not shop.sql("UPDATE pgqueue_schedule SET next_at = now() - interval '1 second' RETURNING id"):
        shop.execute(TICKS[guide])
    shop.wait_until(lambda: REPORT in shop.reports, worker)
    assert worker.stop() == 0, worker.log
    assert shop.ledger == DAY

"""What the demo plans: two schedules, as a person would make them in the admin, and a queue that is paused at times."""

from __future__ import annotations

from datetime import timedelta

from django.db import connection

from pgqueue_django import queues, schedules
from pgqueue_django.models import Schedule

SCHEDULES = {
    "demo: stock": ("testproject.shop.tasks.count_stock", "* * * * * */3"),
    "demo: takings": ("testproject.shop.tasks.mail_takings", "* * * * * */5"),
}
LONGEST_SECONDS = 10
"""After so long each of them has fired."""
PAUSED = "mail"
PAUSE = timedelta(seconds=2)


def open_() -> None:
    """Let them fire from now on."""
    for name, (task, line) in SCHEDULES.items():
        row = Schedule.objects.filter(name=name).first() or Schedule(name=name)
        row.task, row.line, row.is_enabled = task, line, True
        schedules.plan("default", row)
        row.save()


def close() -> None:
    """None fires any more, and nothing is paused: what is due can be done."""
    Schedule.objects.filter(name__in=SCHEDULES).update(is_enabled=False)
    queues.resume("default", PAUSED)


def pause() -> None:
    queues.pause("default", PAUSED, reason="the mail server is looked after", actor="demo", until=PAUSE)


def ticks(after: int) -> int:
    """Jobs of these schedules with a higher id; each tick has one."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pgqueue_job WHERE id > %s AND idempotency_key LIKE 'schedule:demo: %%'", [after]
        )
        return int(cursor.fetchone()[0])


def problems() -> list[str]:
    """What is wrong with them, if they were open for some seconds."""
    rows = Schedule.objects.filter(name__in=SCHEDULES)
    broken = [row for row in rows if row.error or row.last_job_id is None]
    return [f"schedule {row.name}: {row.error or 'never fired'}" for row in broken]

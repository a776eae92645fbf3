"""``python -m orders.scenes people filled exporting=gate``: put into the database of a site; told as JSON."""

from __future__ import annotations

import json
import math
import sys
from datetime import timedelta
from typing import Any

import django

django.setup()

from django.contrib.admin.utils import quote  # noqa: E402
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY  # noqa: E402
from django.contrib.auth.models import Group, User  # noqa: E402
from django.contrib.sessions.backends.db import SessionStore  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402
from django.db.models import Model  # noqa: E402
from orders import tasks  # noqa: E402

from pgqueue_django import enqueue_many, queues, stats, transitions  # noqa: E402
from pgqueue_django.audit import Trail  # noqa: E402
from pgqueue_django.models import AuditEntry, Job, Schedule, Worker  # noqa: E402
from pgqueue_django.outcomes import DeadLettered, Failed, Failure, Kind, Retried, Settled, Succeeded  # noqa: E402
from pgqueue_django.states import FINISHED, State  # noqa: E402
from testproject.shop import seed  # noqa: E402
from tests.doors.hostile import HOSTILE  # noqa: E402
from tests.verbs.rows import claim_one, heartbeat, new, settle  # noqa: E402

TRACEBACK = """\
Traceback (most recent call last):
  File "/srv/shop/orders/tasks.py", line 41, in charge
    answer = provider.charge(order_id, amount_cents)
  File "/srv/shop/venv/lib/python3.13/site-packages/cards/client.py", line 212, in charge
    return self._send("POST", "/charges", body)
  File "/srv/shop/venv/lib/python3.13/site-packages/cards/client.py", line 88, in _send
    raise CardDeclined(answer.reason)
orders.tasks.CardDeclined: {message}
"""


def people() -> dict[str, Any]:
    """Sessions by user name: an admin, who also has a password, an operator, a viewer, a clerk without any right."""
    seed.products()
    seed.admin("e2e")
    call_command("pgqueue_groups", stdout=sys.stderr)
    for name in ("operator", "viewer"):
        User.objects.create(username=name, is_staff=True).groups.add(Group.objects.get(name=f"Queue {name}"))
    User.objects.create(username="clerk", is_staff=True)
    return {"people": {user.username: _session(user) for user in User.objects.all()}}


def _session(user: User) -> str:
    store = SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.create()
    return str(store.session_key)


def filled() -> dict[str, Any]:
    """Jobs in every state, two groups of errors, a paused queue, a live worker and one that is gone, schedules."""
    anvil, lost = "anvil-5f0c2ab1", "bellows-77e01c9d"
    known = [tasks.charge.path, tasks.welcome.path, tasks.export.path]
    common: dict[str, Any] = {"concurrency": 8, "lease_seconds": 3600, "version": "1.4.0", "tasks": known}
    Worker.objects.create(id=anvil, name="anvil", host="web1.shop.example", pid=4121, running=3, **common)
    Worker.objects.create(id=lost, name="bellows", host="web2.shop.example", pid=977, running=0, **common)
    _sql("UPDATE pgqueue_worker SET heartbeat_at = statement_timestamp() - interval '3 hours' WHERE id = %s", lost)
    _sql('UPDATE pgqueue_worker SET memory_bytes = 84500000, skew_seconds = 0.003, queues = \'["billing", "mail"]\'')

    # As the admin quotes it in an address.
    told: dict[str, Any] = {"worker": quote(anvil)}
    for order in range(1041, 1049):
        told["succeeded"] = _ended(anvil, _charge(order, 1999), Succeeded('{"charged": 1999}'))
    for order in range(1051, 1056):
        told["dead"] = _ended(anvil, _charge(order, 4290, max_attempts=3), *3 * [DeadLettered(_declined(order))])
    for address in ("ada@mail.example", "grace@mail.example"):
        refused = Failure(
            Kind.ERROR,
            "smtplib.SMTPRecipientsRefused",
            f"{{'{address}': (550, b'no such address')}}",
            TRACEBACK.format(message=address),
        )
        told["failed"] = _ended(anvil, _mail(address), Failed(refused))
    told["retrying"] = _ended(anvil, _charge(1061, 8900), Retried(_declined(1061), 600))
    told["scheduled"] = _mail("alan@mail.example", run_after=timedelta(days=3))
    told["cancelled"] = _mail("barbara@mail.example")
    transitions.cancel("default", [told["cancelled"]])
    for number in range(3):
        told["queued"] = _mail(f"reader{number}@mail.example")
    unknown = transitions.enqueue("default", new("orders.tasks.forgotten", queue_name="partners")).id
    told["unknown"] = unknown
    for number, fraction in enumerate((0.15, 0.4, 0.85)):
        told["running"] = transitions.enqueue(
            "default", new(tasks.export.path, queue_name="reports", label=f"sales of week {number + 45}", args=["gate"])
        ).id
        held = claim_one(told["running"], worker_id=anvil)
        heartbeat(
            held,
            lease=1800,
            progress={held.id: json.dumps({"fraction": fraction, "message": f"day {number + 5} of 20"})},
        )

    _spread()
    queues.pause("default", "mail", reason="the provider is down", actor="ana")
    takings = Schedule.objects.create(
        name="takings", task="testproject.shop.tasks.mail_takings", line="0 6 * * *", zone="Europe/Warsaw",
        next_at=_moment("1 hour"), last_fired_at=_moment("-23 hours"), last_job_id=told["succeeded"],
    )  # fmt: skip
    Schedule.objects.create(
        name="stock", task="testproject.shop.tasks.count_stock", line="*/5 * * * *", zone="UTC", is_enabled=False
    )
    told["schedule"] = takings.pk
    _sql("ANALYZE")
    return told


def _spread() -> None:
    """As if all of that had taken an hour, and the attempts their time."""
    jobs = list(Job.objects.order_by("pk"))
    for number, job in enumerate(jobs):
        moment = _moment(f"-{(len(jobs) - number) * 170} seconds")
        changes: dict[str, Any] = {"enqueued_at": moment}
        history = job.history
        for attempt, entry in enumerate(history):
            moment += timedelta(seconds=3 + 6 * attempt**2)
            begin, moment = moment, moment + timedelta(seconds=1.4 + 0.8 * attempt)
            entry |= {"started_at": begin.isoformat(), "ended_at": moment.isoformat()}
        if job.state == State.SUCCEEDED:
            begin, moment = moment + timedelta(seconds=0.02), moment + timedelta(seconds=0.14)
        if job.state not in (State.QUEUED, State.SCHEDULED, State.CANCELLED):
            changes |= {"history": history, "started_at": begin if history or job.state == State.SUCCEEDED else moment}
        if job.state in FINISHED:
            changes["finished_at"] = moment
        if job.state == State.QUEUED:
            changes["run_after"] = moment
        Job.objects.filter(pk=job.pk).update(**changes)


def _charge(order: int, cents: int, **options: Any) -> int:
    job = new(tasks.charge.path, queue_name="billing", label=f"order {order}", args=[order, cents], **options)
    return transitions.enqueue("default", job._replace(kwargs=json.dumps({"tenant_id": order % 10}))).id


def _mail(address: str, **options: Any) -> int:
    return transitions.enqueue(
        "default", new(tasks.welcome.path, queue_name="mail", args=[address], label=address, **options)
    ).id


def _declined(order: int) -> Failure:
    message = f"order {order}: insufficient funds"
    return Failure(Kind.ERROR, "orders.tasks.CardDeclined", message, TRACEBACK.format(message=message))


def _ended(worker_id: str, pk: int, *outcomes: Settled) -> int:
    for number, outcome in enumerate(outcomes):
        if number:
            _sql("UPDATE pgqueue_job SET run_after = statement_timestamp() WHERE id = %s", pk)
            transitions.run_now("default", [pk])
        last = number == len(outcomes) - 1
        settle(
            claim_one(pk, worker_id=worker_id), outcome if last else Retried(outcome.failure, 60), worker_id=worker_id
        )  # type: ignore[union-attr]
    return pk


def busy() -> dict[str, Any]:
    """Work for some seconds of a real worker."""
    made = enqueue_many(
        [tasks.charge.call(number, 100 if number % 10 else 0, tenant_id=number % 7) for number in range(300)]
    )
    return {"busy": len(made)}


def one() -> dict[str, Any]:
    """One job that a worker is to take at once."""
    return {"one": tasks.welcome.enqueue("first@mail.example").id}


def pictured() -> dict[str, Any]:
    """An hour of a busy shop behind the jobs that are there, for pictures; the same in each of them."""
    # Of the minute that has begun there is as much as has passed.
    begun = float(_sql("SELECT extract(second FROM statement_timestamp()) / 60"))
    for minute in range(61):
        swing = (1 + math.sin(minute / 9) / 2) * (begun if minute == 60 else 1)
        trouble = 25 if 38 <= minute <= 44 else 2
        for task, queue, rate in ((tasks.charge.path, "billing", 1300), (tasks.welcome.path, "mail", 800)):
            done = int(rate * swing)
            _sql(
                """INSERT INTO pgqueue_stat (minute, worker_id, queue_name, task, succeeded, retried, failed, dead,
                       expired, pickup_counts, pickup_seconds, run_counts, run_seconds)
                   SELECT date_trunc('minute', statement_timestamp()) - make_interval(mins => %s), 'an earlier worker',
                       %s, %s, %s, %s, %s, 0, 0, %s::bigint[], %s, %s::bigint[], %s""",
                *(60 - minute, queue, task, done, trouble, trouble),
                *(_lengths(done, 2 + trouble // 25), done * 0.006, _lengths(done, 5), done * 0.12),
            )
    return {}


def _lengths(count: int, middle: int) -> list[int]:
    """So many lengths of time, most of them in the bucket ``middle``."""
    counts = [0] * (len(stats.BOUNDS) + 1)
    for place, share in ((-1, 0.2), (0, 0.55), (1, 0.15), (2, 0.08), (3, 0.02)):
        counts[middle + place] = round(count * share)
    return counts


def hostile() -> dict[str, Any]:
    """Texts that would break a page or run in it, in every field that somebody may write."""
    told: dict[str, Any] = {}
    for number, text in enumerate(HOSTILE):
        worker = f"{text[:60]}-{number:08x}"
        shared: dict[str, Any] = {"concurrency": 1, "lease_seconds": 3600, "tasks": [text], "queues": [text]}
        _make(Worker, id=worker, name=text, host=text, version=text, pid=number, **shared)
        job: dict[str, Any] = {"label": text[:200], "args": [text], "kwargs": {text: text}}
        job |= {"idempotency_key": text[:200]}
        failure = Failure(
            Kind.ERROR, text[:200], text, f'Traceback\n  File "{text}", line 1, in {text}\n{text}: {text}'
        )
        pk = transitions.enqueue("default", new(tasks.charge.path, **job)).id
        told[f"hostile {number}"] = _ended(worker, pk, Failed(failure))
        pk = transitions.enqueue("default", new(text[:255], label=text[:200], queue_name=f"q{number}")).id
        progress = json.dumps({"fraction": 0.5, "message": text})
        heartbeat(claim_one(pk, worker_id=worker), lease=1800, progress={pk: progress})
        queues.pause("default", f"q{number}", reason=text[:200], actor=text[:100])
        _make(Schedule, name=f"{number} {text}", task=text, line=text, zone=text, error=text)
        Trail("default", actor=text, action="requeue", target=text, reason=text).add(1)
    return told


def _make(model: type[Model], **columns: Any) -> None:
    """A row whose texts are cut to what their columns hold."""
    for name, value in columns.items():
        if isinstance(value, str) and (longest := getattr(model._meta.get_field(name), "max_length", None)):
            columns[name] = value[:longest]
    model._base_manager.create(**columns)


def audited() -> dict[str, Any]:
    """What people have done."""
    for number in range(3):
        trail = Trail("default", actor="ana", action="requeue", target=f"{number + 1} jobs", reason="the bank is back")
        trail.add(number + 1, skipped=number)
    return {"entry": AuditEntry.objects.latest("pk").pk}


def mailed() -> dict[str, Any]:
    """One job of the queue that a test is to pause."""
    return {"mailed": tasks.welcome.using(queue_name="letters").enqueue("ada@mail.example").id}


def exporting(gate: str) -> dict[str, Any]:
    """One job that runs until the file ``gate`` is there."""
    return {"exporting": tasks.export.using(queue_name="exports", label="sales of today").enqueue(gate).id}


def migrated() -> dict[str, Any]:
    call_command("migrate", verbosity=0)
    return {}


def _moment(distance: str) -> Any:
    return _sql("SELECT statement_timestamp() + %s::interval", distance)


def _sql(query: str, *values: object) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return cursor.fetchone()[0] if cursor.description else None


if __name__ == "__main__":
    told: dict[str, Any] = {}
    for scene in sys.argv[1:]:
        name, _, argument = scene.partition("=")
        told |= globals()[name](*filter(None, [argument]))
    print(json.dumps(told))

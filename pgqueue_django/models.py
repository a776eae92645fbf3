"""The tables: one for jobs, and small companions.

Nothing here writes a job: that is ``transitions.py`` alone. The querysets only read. The database repeats the
law as CHECKs, and every column says in the database what it holds. No column is compared with a clock other
than the database's ``statement_timestamp()``.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, TypeVar

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import models, router
from django.db.models import BooleanField, F, Q, Value
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from .options import MAX_PRIORITY
from .states import FINISHED, WAITING, State

if not apps.is_installed("pgqueue_django"):
    # Django would say that Job has no app_label.
    raise ImproperlyConfigured(
        'pgqueue_django is not installed: add "pgqueue_django" to INSTALLED_APPS, and run manage.py migrate.'
    )

M = TypeVar("M", bound=models.Model, covariant=True)
MAX_WORKER_TASKS = 500
"""Names of tasks in a worker's row: who has so many may know more."""
MOMENTS = (datetime(1900, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC))


class PrimaryQuerySet(models.QuerySet[M]):
    """Reads where is written, whatever the router says of readings: on a replica a new job would be missing."""

    @property
    def db(self) -> str:
        return self._db or router.db_for_write(self.model)  # type: ignore[attr-defined]


# The index that each of them has.
_INDEXED = {
    State.QUEUED: ("queue_name", "-priority", "run_after", "id"),
    State.SCHEDULED: ("run_after",),
    State.RETRYING: ("run_after",),
    State.RUNNING: ("worker_id", "id"),
    State.FAILED: ("state", "-id"),
    State.DEAD: ("state", "-id"),
}


class JobQuerySet(PrimaryQuerySet["Job"]):
    """Readings of the job table, each along one index."""

    def ready(self, queue_name: str) -> JobQuerySet:
        """The queued jobs of one queue, in the order in which they are claimed."""
        return self.filter(queue_name=queue_name, state=State.QUEUED).order_by(F("priority").desc(), "run_after", "id")

    def ready_after(self, queue_name: str, place: tuple[int, float, int]) -> JobQuerySet:
        """Those of them that have the same priority and come after ``place``: priority, run_after (epoch), id."""
        priority, run_after, id = place
        behind = RawSQL("(run_after, id) > (to_timestamp(%s), %s)", [run_after, id], BooleanField())
        return self.ready(queue_name).filter(behind, priority=priority)

    def waiting(self) -> JobQuerySet:
        """Jobs whose time has not come, or has just come; the earliest first."""
        return self.filter(state__in=WAITING).order_by("run_after")

    def due(self) -> JobQuerySet:
        """Jobs that wait although their time has come."""
        return self.waiting().filter(run_after__lte=Now())

    def running(self) -> JobQuerySet:
        return self.filter(state=State.RUNNING)

    def in_state(self, state: State) -> JobQuerySet:
        """All that are in one state, but for succeeded and cancelled ones, in the order of the index that has them."""
        # Failed and dead share an index and are told apart by a range: an equal state the planner would drop from the
        # order, and by old statistics walk the primary key over all jobs.
        only = {State.FAILED: Q(state__gte=State.FAILED), State.DEAD: Q(state__lte=State.DEAD)}
        chosen = Q(state__in=only) & only[state] if state in only else Q(state=state)
        return self.filter(chosen).order_by(*_INDEXED[state])


class PayloadField(models.JSONField):
    """PostgreSQL's ``json``: the very text that was written.

    ``jsonb`` is taken apart at enqueue and put together again at claim (2 KiB to text: 15 us, of ``json`` 6), and
    it forgets the order of keys and how a float was written. Lookups into it need a cast, in SQL ``args::jsonb``.
    """

    def db_type(self, connection: object) -> str:
        return "json"

    def select_format(self, compiler: object, sql: str, params: Any) -> tuple[str, Any]:
        # As text, whatever a project has told psycopg to make of json; and what is text can be distinct.
        return f"({sql})::text", params

    def from_db_value(self, value: Any, expression: object, connection: object) -> Any:
        # RETURNING knows no select_format, and psycopg has read what it returns.
        return json.loads(value) if isinstance(value, str) else value


class Job(models.Model):
    """One request to run a task: a row that the verbs of ``transitions`` move from state to state."""

    id = models.BigAutoField(primary_key=True)
    task = models.CharField(
        pgettext_lazy("queue", "task"), max_length=255, db_comment="Import path of the task, e.g. shop.tasks.charge"
    )
    queue_name = models.CharField(
        pgettext_lazy("queue", "queue"), max_length=63, db_default="default", db_comment="Its queue"
    )
    priority = models.SmallIntegerField(
        pgettext_lazy("queue", "priority"), db_default=0, db_comment="-100 to 100, higher is claimed first"
    )
    state = models.CharField(
        pgettext_lazy("queue", "state"),
        max_length=9,
        choices=[(s.value, s.value) for s in State],
        db_default=State.QUEUED.value,
        db_comment="scheduled, queued, running, retrying, succeeded, failed, dead or cancelled",
    )
    args = PayloadField(
        pgettext_lazy("queue", "arguments"),
        db_default=Value([], models.JSONField()),
        db_comment="Positional arguments, a JSON array",
    )
    kwargs = PayloadField(
        pgettext_lazy("queue", "keywords"),
        db_default=Value({}, models.JSONField()),
        db_comment="Keyword arguments, a JSON object",
    )
    run_after = models.DateTimeField(
        _("run after"),
        db_default=Now(),
        db_comment="Not before this moment. Of a job cancelled while it ran: when its lease would have ended",
    )
    enqueued_at = models.DateTimeField(_("enqueued at"), db_default=Now(), db_comment="When the job was made")
    started_at = models.DateTimeField(_("started at"), null=True, db_comment="When the latest attempt was claimed")
    finished_at = models.DateTimeField(
        _("finished at"), null=True, db_comment="When it reached a final state, else null"
    )
    prune_after = models.DateTimeField(
        _("prune after"), null=True, db_comment="When the finished row may be deleted; null: never"
    )
    attempts = models.PositiveIntegerField(
        pgettext_lazy("queue", "attempts"),
        db_default=0,
        db_comment="Attempts charged since it was enqueued or requeued",
    )
    max_attempts = models.PositiveIntegerField(
        _("max attempts"), db_default=5, db_comment="After so many failed attempts it is dead"
    )
    backoff = models.JSONField(
        pgettext_lazy("queue", "backoff"),
        db_default=Value({}, models.JSONField()),
        db_comment="base, factor and cap, in seconds, of the wait between attempts",
    )
    fencing_token = models.BigIntegerField(
        _("fencing token"),
        db_default=0,
        db_comment="Plus one at every claim; a write with an older one is void",
    )
    lease_expires_at = models.DateTimeField(
        _("lease expires at"),
        null=True,
        db_comment="The running attempt is given up after this; null: not running",
    )
    worker_id = models.CharField(
        pgettext_lazy("queue", "worker"),
        max_length=120,
        null=True,
        db_comment="Worker of the latest attempt",
    )
    idempotency_key = models.CharField(
        _("idempotency key"), max_length=200, null=True, db_comment="At most one row per task and key"
    )
    parked_at = models.DateTimeField(
        _("parked at"),
        null=True,
        db_comment="When a worker first gave it back because it does not know the task; null: known",
    )
    progress = models.JSONField(
        pgettext_lazy("queue", "progress"), null=True, db_comment="fraction and message, as of the last heartbeat"
    )
    result = PayloadField(pgettext_lazy("queue", "result"), null=True, db_comment="What the handler returned")
    history = models.JSONField(
        pgettext_lazy("queue", "history"),
        db_default=Value([], models.JSONField()),
        db_comment="One object per failed attempt: attempt, worker, started_at, ended_at, kind, error_type, "
        "message, traceback. The first and the newest are kept",
    )
    past_worker_ids = models.JSONField(
        _("past workers"),
        null=True,
        db_comment="Workers of the charged attempts that are over, the newest 999; not of the one that succeeded",
    )
    first_started_at = models.DateTimeField(
        _("first started at"), null=True, db_comment="When the first of these attempts was claimed; null: there is none"
    )
    label = models.CharField(
        pgettext_lazy("queue", "label"),
        max_length=200,
        db_default="",
        db_comment="A short text for people, made at enqueue",
    )

    error_type = models.CharField(
        _("error type"), max_length=200, null=True, db_comment="Exception of the newest attempt, if that failed"
    )
    error_fingerprint = models.CharField(
        _("error fingerprint"),
        max_length=16,
        null=True,
        db_comment="The same for errors that look alike: hash of the type, the place and the message without numbers",
    )
    copy_of = models.BigIntegerField(
        _("copy of"), null=True, db_comment="The job that it was made of with changed arguments; that may be gone"
    )
    trace = models.JSONField(
        pgettext_lazy("queue", "trace"), null=True, db_comment="Trace context of who enqueued it, as W3C headers"
    )

    objects: ClassVar[models.Manager[Job]] = JobQuerySet.as_manager()

    class Meta:
        db_table = "pgqueue_job"
        verbose_name = pgettext_lazy("queue", "job")
        verbose_name_plural = pgettext_lazy("queue", "jobs")
        default_permissions = ("view", "delete")
        permissions = [
            ("view_job_payload", "Can view the arguments, result and errors of jobs"),
            ("enqueue_job", "Can enqueue jobs over HTTP"),
            ("requeue_job", "Can send finished jobs back to their queue"),
            ("run_job_now", "Can run waiting jobs now"),
            ("cancel_job", "Can cancel jobs"),
            ("copy_job", "Can enqueue copies of jobs with changed arguments"),
            ("pause_queue", "Can pause and resume queues"),
            ("view_dashboard", "Can view the dashboard and the metrics of the queue"),
        ]
        # Few, and each over the rows of some states only: a job that moves on leaves the index, so that none
        # of them grows with what is finished or far ahead. lease_expires_at is in none of them, neither as a
        # key nor in a predicate: heartbeats stay HOT (tests/verbs/test_plans.py).
        indexes = [
            models.Index(
                F("queue_name"),
                F("priority").desc(),
                F("run_after"),
                F("id"),
                condition=Q(state=State.QUEUED.value),
                name="pgqueue_job_ready",
            ),
            models.Index(
                fields=["run_after"],
                condition=Q(state__in=[s.value for s in WAITING]),
                name="pgqueue_job_waiting",
            ),
            models.Index(
                fields=["worker_id", "id"],
                condition=Q(state=State.RUNNING.value),
                name="pgqueue_job_running",
            ),
            models.Index(
                fields=["task", "id"],
                condition=Q(parked_at__isnull=False),
                name="pgqueue_job_parked",
            ),
            models.Index(
                fields=["state", "-id"],
                condition=Q(state__in=[State.FAILED.value, State.DEAD.value]),
                name="pgqueue_job_broken",
            ),
            models.Index(
                fields=["error_fingerprint", "-id"],
                condition=Q(state__in=[State.FAILED.value, State.DEAD.value]),
                name="pgqueue_job_error",
            ),
            models.Index(fields=["copy_of"], condition=Q(copy_of__isnull=False), name="pgqueue_job_copy"),
            models.Index(
                fields=["prune_after"],
                condition=Q(prune_after__isnull=False),
                name="pgqueue_job_prunable",
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["task", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="pgqueue_job_key",
            ),
            models.CheckConstraint(condition=Q(state__in=[s.value for s in State]), name="pgqueue_job_state_known"),
            models.CheckConstraint(
                condition=Q(state=State.RUNNING.value, lease_expires_at__isnull=False)
                | (~Q(state=State.RUNNING.value) & Q(lease_expires_at__isnull=True)),
                name="pgqueue_job_running_is_leased",
            ),
            models.CheckConstraint(
                condition=Q(state__in=[s.value for s in FINISHED], finished_at__isnull=False)
                | (~Q(state__in=[s.value for s in FINISHED]) & Q(finished_at__isnull=True)),
                name="pgqueue_job_finished_at",
            ),
            models.CheckConstraint(
                condition=Q(priority__gte=-MAX_PRIORITY, priority__lte=MAX_PRIORITY),
                name="pgqueue_job_priority_range",
            ),
            # One row with a moment that Python cannot hold would stop the claims and the pages of all.
            models.CheckConstraint(
                condition=Q(run_after__gte=MOMENTS[0], run_after__lt=MOMENTS[1]), name="pgqueue_job_run_after_range"
            ),
            models.CheckConstraint(condition=Q(attempts__gte=0, max_attempts__gte=1), name="pgqueue_job_attempts"),
        ]

    def __str__(self) -> str:
        return f"{self.task} #{self.pk}"


class WorkerQuerySet(PrimaryQuerySet["Worker"]):
    def alive(self) -> WorkerQuerySet:
        """Whose last heartbeat is younger than its lease, by the database's clock."""
        lease = models.ExpressionWrapper(
            models.F("lease_seconds") * models.Value(timedelta(seconds=1)), output_field=models.DurationField()
        )
        return self.filter(heartbeat_at__gt=Now() - lease)


class Worker(models.Model):
    """One worker process, for people to look at. Recovery never depends on this row."""

    id = models.CharField(primary_key=True, max_length=120, db_comment="Its name and eight random hex digits")
    name = models.CharField(pgettext_lazy("queue", "name"), max_length=100, db_comment="--name, or host:pid")
    host = models.CharField(pgettext_lazy("queue", "host"), max_length=255, db_comment="Host name")
    pid = models.BigIntegerField(pgettext_lazy("queue", "process"), db_comment="Process id on that host")
    queues = models.JSONField(
        pgettext_lazy("queue", "queues"), default=list, db_comment="Queues that it was told to take; []: all"
    )
    concurrency = models.PositiveIntegerField(
        pgettext_lazy("queue", "slots"), db_comment="Jobs that it runs at the same time"
    )
    running = models.PositiveIntegerField(
        pgettext_lazy("queue", "running"), db_default=0, db_comment="Jobs that it ran at the last heartbeat"
    )
    lease_seconds = models.FloatField(pgettext_lazy("queue", "lease"), db_comment="Length of its leases")
    version = models.CharField(
        pgettext_lazy("queue", "version"),
        max_length=40,
        default="",
        db_default="",
        db_comment="Of pgqueue_django, as it started",
    )
    tasks = models.JSONField(
        pgettext_lazy("queue", "tasks"),
        default=list,
        db_default=Value([], models.JSONField()),
        db_comment="That it knew as it started",
    )
    memory_bytes = models.BigIntegerField(
        pgettext_lazy("queue", "memory"), null=True, db_comment="Of its process, at the last heartbeat"
    )
    skew_seconds = models.FloatField(
        _("clock skew"), null=True, db_comment="Its host's clock less the database's, at the last heartbeat"
    )
    started_at = models.DateTimeField(_("started at"), db_default=Now(), db_comment="When it registered")
    heartbeat_at = models.DateTimeField(_("heartbeat at"), db_default=Now(), db_comment="Its last heartbeat")

    objects: ClassVar[models.Manager[Worker]] = WorkerQuerySet.as_manager()

    class Meta:
        db_table = "pgqueue_worker"
        verbose_name = pgettext_lazy("queue", "worker")
        verbose_name_plural = pgettext_lazy("queue", "workers")
        default_permissions = ("view",)
        indexes = [models.Index(fields=["heartbeat_at"], name="pgqueue_worker_heartbeat")]

    def __str__(self) -> str:
        return self.id


class Chore(models.Model):
    """Housekeeping that some worker does when it is due: whoever advances ``due_at`` does it once."""

    name = models.CharField(primary_key=True, max_length=40, db_comment="reap, promote, ...")
    due_at = models.DateTimeField(db_default=Now(), db_comment="When it is to be done next")

    objects: ClassVar[models.Manager[Chore]] = PrimaryQuerySet.as_manager()

    class Meta:
        db_table = "pgqueue_chore"
        default_permissions = ()

    def __str__(self) -> str:
        return self.name


class Queue(models.Model):
    """A queue of which there is something to say: that it is paused. Others have no row."""

    name = models.CharField(pgettext_lazy("queue", "name"), primary_key=True, max_length=63, db_comment="Its name")
    paused_at = models.DateTimeField(_("paused at"), null=True, db_comment="Since when nothing of it is claimed")
    resume_at = models.DateTimeField(
        _("resume at"), null=True, blank=True, db_comment="When it goes on by itself; null: when a person says so"
    )
    reason = models.CharField(
        pgettext_lazy("queue", "reason"),
        max_length=200,
        blank=True,
        default="",
        db_default="",
        db_comment="Why it was paused",
    )
    actor = models.CharField(pgettext_lazy("queue", "actor"), max_length=150, db_default="", db_comment="Who paused it")

    objects: ClassVar[models.Manager[Queue]] = PrimaryQuerySet.as_manager()

    class Meta:
        db_table = "pgqueue_queue"
        verbose_name = pgettext_lazy("queue", "queue")
        verbose_name_plural = pgettext_lazy("queue", "queues")
        default_permissions = ("view",)  # to pause one is a right of its own: pause_queue

    def __str__(self) -> str:
        return self.name


class AuditEntry(models.Model):
    """One action of somebody who operates the queue: what, who, why, and how much it changed."""

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField(pgettext_lazy("queue", "when"), db_default=Now(), db_comment="When it began")
    actor = models.CharField(
        pgettext_lazy("queue", "who"),
        max_length=150,
        db_comment="User name, token:NAME of the JSON API, or cli:USER@HOST; a text, so that it outlives the user",
    )
    action = models.CharField(
        pgettext_lazy("queue", "action"), max_length=40, db_comment="requeue, cancel, pause, run_schedule, ..."
    )
    target = models.CharField(
        pgettext_lazy("queue", "what"), max_length=500, db_comment="What was chosen: job 7, queue mail, or a filter"
    )
    reason = models.CharField(
        pgettext_lazy("queue", "reason"), max_length=200, blank=True, db_default="", db_comment="Why, if it was said"
    )
    changed = models.BigIntegerField(pgettext_lazy("queue", "changed"), db_default=0, db_comment="Rows it changed")
    skipped = models.BigIntegerField(
        pgettext_lazy("queue", "skipped"), db_default=0, db_comment="Chosen ones that it left as they were"
    )

    objects: ClassVar[models.Manager[AuditEntry]] = PrimaryQuerySet.as_manager()

    class Meta:
        db_table = "pgqueue_audit"
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit log")
        default_permissions = ("view",)
        indexes = [models.Index(fields=["at"], name="pgqueue_audit_at")]

    def __str__(self) -> str:
        return f"{self.actor}: {self.action} {self.target}"


class Count(models.Model):
    """How many jobs of one queue were in one state when all of them were last counted, of states with very many."""

    queue_name = models.CharField(max_length=63, db_comment="Queue of the jobs")
    state = models.CharField(max_length=9, db_comment="Their state")
    jobs = models.BigIntegerField(db_comment="How many there were")
    counted_at = models.DateTimeField(db_comment="When they were counted")

    objects: ClassVar[models.Manager[Count]] = PrimaryQuerySet.as_manager()

    class Meta:
        db_table = "pgqueue_count"
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["state", "queue_name"], name="pgqueue_count_cell")]

    def __str__(self) -> str:
        return f"{self.queue_name} {self.state}"


class ScheduleQuerySet(PrimaryQuerySet["Schedule"]):
    def due(self) -> ScheduleQuerySet:
        """Those whose next tick has come; the ones that failed the last time behind the others."""
        return self.filter(is_enabled=True, retired_at=None, next_at__lte=Now()).order_by(
            models.Case(models.When(error="", then=0), default=1), "next_at", "id"
        )

    def planned(self) -> ScheduleQuerySet:
        """Those that are to fire, the next one first."""
        return self.filter(is_enabled=True, retired_at=None).order_by("next_at", "id")


class Schedule(models.Model):
    """When a task is enqueued by itself: from code (``@periodic``) or a row that a person has made."""

    class Missed(models.TextChoices):
        NONE = "none", _("leave them out")
        ONE = "one", _("once for all of them")

    class Overlap(models.TextChoices):
        ALLOW = "allow", _("enqueue all the same")
        SKIP = "skip", _("skip the tick")

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(
        pgettext_lazy("queue", "name"), max_length=100, unique=True, db_comment="Part of the keys of its jobs"
    )
    is_code = models.BooleanField(
        _("from code"),
        default=False,
        db_default=False,
        editable=False,
        db_comment="Declared with @periodic, not by a person",
    )
    task = models.CharField(pgettext_lazy("queue", "task"), max_length=255, db_comment="Import path of the task")
    line = models.CharField(
        pgettext_lazy("queue", "line"), max_length=200, db_comment="minute hour day-of-month month day-of-week [second]"
    )
    zone = models.CharField(
        _("time zone"), max_length=64, default="UTC", db_default="UTC", db_comment="Whose clocks it goes by"
    )
    args = PayloadField(
        pgettext_lazy("queue", "arguments"), default=list, blank=True, db_comment="Positional arguments, a JSON array"
    )
    kwargs = PayloadField(
        pgettext_lazy("queue", "keywords"), default=dict, blank=True, db_comment="Keyword arguments, a JSON object"
    )
    missed = models.CharField(
        _("missed ticks"),
        max_length=4,
        choices=Missed.choices,
        default=Missed.ONE,
        db_comment="none or one: what becomes of ticks that passed while no worker ran and later ones are due, too",
    )
    overlap = models.CharField(
        _("while the last is unfinished"),
        max_length=5,
        choices=Overlap.choices,
        default=Overlap.ALLOW,
        db_comment="allow or skip: at a tick while the job of the one before is not finished",
    )
    is_enabled = models.BooleanField(pgettext_lazy("queue", "enabled"), default=True, db_comment="A person's switch")
    skip_next = models.BooleanField(_("skip next"), default=False, db_comment="Leave the next tick out, once")
    next_at = models.DateTimeField(_("next tick"), null=True, editable=False, db_comment="The next tick")
    declared_at = models.DateTimeField(
        null=True, editable=False, db_comment="When a worker with this code said so for the last time"
    )
    retired_at = models.DateTimeField(
        _("retired at"), null=True, editable=False, db_comment="No worker has had it in its code for a while"
    )
    error = models.CharField(
        pgettext_lazy("queue", "error"),
        max_length=500,
        db_default="",
        default="",
        editable=False,
        db_comment="Why it does not fire",
    )
    last_tick = models.DateTimeField(_("last tick"), null=True, editable=False, db_comment="The tick that fired last")
    last_fired_at = models.DateTimeField(_("fired at"), null=True, editable=False, db_comment="And when that was")
    last_job_id = models.BigIntegerField(_("last job"), null=True, editable=False, db_comment="The job of that tick")

    objects: ClassVar[models.Manager[Schedule]] = ScheduleQuerySet.as_manager()

    class Meta:
        db_table = "pgqueue_schedule"
        verbose_name = pgettext_lazy("queue", "schedule")
        verbose_name_plural = pgettext_lazy("queue", "schedules")
        permissions = [
            ("run_schedule", "Can run schedules now"),
            ("switch_schedule", "Can skip the next tick of schedules, disable and enable them"),
        ]
        indexes = [
            models.Index(
                fields=["next_at"], name="pgqueue_schedule_due", condition=Q(is_enabled=True, retired_at__isnull=True)
            )
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def late_seconds(self) -> float | None:
        """How long after its tick the last one fired."""
        if self.last_tick is None or self.last_fired_at is None:
            return None
        return (self.last_fired_at - self.last_tick).total_seconds()


class CountsField(models.Field):  # type: ignore[type-arg]
    """A PostgreSQL ``bigint[]``: the bucket counts of a histogram.

    Django's ArrayField asks for django.contrib.postgres in INSTALLED_APPS; nobody should have to add an app
    for two columns that only ``stats.py`` reads and writes.
    """

    def db_type(self, connection: object) -> str:
        return "bigint[]"


class Counters(models.Model):
    """What attempts of one task ended in, and how long they took."""

    id = models.BigAutoField(primary_key=True)
    queue_name = models.CharField(max_length=63, db_comment="Queue of the jobs")
    task = models.CharField(max_length=255, db_comment="Task of the jobs")
    succeeded = models.BigIntegerField(db_default=0, db_comment="Attempts that succeeded")
    retried = models.BigIntegerField(db_default=0, db_comment="Failed attempts that will be tried again")
    failed = models.BigIntegerField(db_default=0, db_comment="Failed attempts that left the job failed")
    dead = models.BigIntegerField(db_default=0, db_comment="Failed attempts that left the job dead")
    expired = models.BigIntegerField(db_default=0, db_comment="Of the failed attempts, those whose lease expired")
    pickup_counts = CountsField(db_comment="Pickup times per bucket of stats.BOUNDS, the last one beyond them")
    pickup_seconds = models.FloatField(db_default=0, db_comment="Sum of the pickup times")
    run_counts = CountsField(db_comment="Run times per bucket of stats.BOUNDS, the last one beyond them")
    run_seconds = models.FloatField(db_default=0, db_comment="Sum of the run times")

    objects: ClassVar[models.Manager[Any]] = PrimaryQuerySet.as_manager()

    class Meta:
        abstract = True


class Stat(Counters):
    """What one worker's attempts of one task ended in during one minute; and, without a minute, all before that.

    A row per worker: 32 clients that share one row fall from 11,220 to 2,597 transactions/s.
    """

    minute = models.DateTimeField(db_comment="Start of the minute in which the attempts were settled")
    worker_id = models.CharField(max_length=120, db_comment="Who wrote it")

    class Meta:
        db_table = "pgqueue_stat"
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["minute", "worker_id", "queue_name", "task"], name="pgqueue_stat_cell")
        ]

    def __str__(self) -> str:
        return f"{self.minute} {self.queue_name} {self.task}"


class StatHistory(Counters):
    """What all workers' attempts of one task ended in during one minute or one hour: how it was, not how many."""

    begin = models.DateTimeField(db_comment="Start of the minute or hour")
    seconds = models.IntegerField(db_comment="60 or 3600")

    class Meta:
        db_table = "pgqueue_stat_history"
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["seconds", "begin", "queue_name", "task"], name="pgqueue_stat_history_cell")
        ]

    def __str__(self) -> str:
        return f"{self.begin} {self.seconds} {self.queue_name} {self.task}"

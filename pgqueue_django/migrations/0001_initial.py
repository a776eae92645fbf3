import datetime

import django.db.models.functions.datetime
from django.db import migrations, models

import pgqueue_django.models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Chore",
            fields=[
                (
                    "name",
                    models.CharField(db_comment="reap, promote, ...", max_length=40, primary_key=True, serialize=False),
                ),
                (
                    "due_at",
                    models.DateTimeField(
                        db_comment="When it is to be done next", db_default=django.db.models.functions.datetime.Now()
                    ),
                ),
            ],
            options={
                "db_table": "pgqueue_chore",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "task",
                    models.CharField(
                        db_comment="Import path of the task, e.g. shop.tasks.charge",
                        max_length=255,
                        verbose_name="task",
                    ),
                ),
                (
                    "queue_name",
                    models.CharField(db_comment="Its queue", db_default="default", max_length=63, verbose_name="queue"),
                ),
                (
                    "priority",
                    models.SmallIntegerField(
                        db_comment="-100 to 100, higher is claimed first", db_default=0, verbose_name="priority"
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("scheduled", "scheduled"),
                            ("queued", "queued"),
                            ("running", "running"),
                            ("retrying", "retrying"),
                            ("succeeded", "succeeded"),
                            ("failed", "failed"),
                            ("dead", "dead"),
                            ("cancelled", "cancelled"),
                        ],
                        db_comment="scheduled, queued, running, retrying, succeeded, failed, dead or cancelled",
                        db_default="queued",
                        max_length=9,
                        verbose_name="state",
                    ),
                ),
                (
                    "args",
                    pgqueue_django.models.PayloadField(
                        db_comment="Positional arguments, a JSON array",
                        db_default=models.Value([], models.JSONField()),
                        verbose_name="arguments",
                    ),
                ),
                (
                    "kwargs",
                    pgqueue_django.models.PayloadField(
                        db_comment="Keyword arguments, a JSON object",
                        db_default=models.Value({}, models.JSONField()),
                        verbose_name="keywords",
                    ),
                ),
                (
                    "run_after",
                    models.DateTimeField(
                        db_comment="Not before this moment. Of a job cancelled while it ran: when its lease would have ended",
                        db_default=django.db.models.functions.datetime.Now(),
                        verbose_name="run after",
                    ),
                ),
                (
                    "enqueued_at",
                    models.DateTimeField(
                        db_comment="When the job was made",
                        db_default=django.db.models.functions.datetime.Now(),
                        verbose_name="enqueued at",
                    ),
                ),
                (
                    "started_at",
                    models.DateTimeField(
                        db_comment="When the latest attempt was claimed", null=True, verbose_name="started at"
                    ),
                ),
                (
                    "finished_at",
                    models.DateTimeField(
                        db_comment="When it reached a final state, else null", null=True, verbose_name="finished at"
                    ),
                ),
                (
                    "prune_after",
                    models.DateTimeField(
                        db_comment="When the finished row may be deleted; null: never",
                        null=True,
                        verbose_name="prune after",
                    ),
                ),
                (
                    "attempts",
                    models.PositiveIntegerField(
                        db_comment="Attempts charged since it was enqueued or requeued",
                        db_default=0,
                        verbose_name="attempts",
                    ),
                ),
                (
                    "max_attempts",
                    models.PositiveIntegerField(
                        db_comment="After so many failed attempts it is dead", db_default=5, verbose_name="max attempts"
                    ),
                ),
                (
                    "backoff",
                    models.JSONField(
                        db_comment="base, factor and cap, in seconds, of the wait between attempts",
                        db_default=models.Value({}, models.JSONField()),
                        verbose_name="backoff",
                    ),
                ),
                (
                    "fencing_token",
                    models.BigIntegerField(
                        db_comment="Plus one at every claim; a write with an older one is void",
                        db_default=0,
                        verbose_name="fencing token",
                    ),
                ),
                (
                    "lease_expires_at",
                    models.DateTimeField(
                        db_comment="The running attempt is given up after this; null: not running",
                        null=True,
                        verbose_name="lease expires at",
                    ),
                ),
                (
                    "worker_id",
                    models.CharField(
                        db_comment="Worker of the latest attempt", max_length=120, null=True, verbose_name="worker"
                    ),
                ),
                (
                    "idempotency_key",
                    models.CharField(
                        db_comment="At most one row per task and key",
                        max_length=200,
                        null=True,
                        verbose_name="idempotency key",
                    ),
                ),
                (
                    "parked_at",
                    models.DateTimeField(
                        db_comment="When a worker first gave it back because it does not know the task; null: known",
                        null=True,
                        verbose_name="parked at",
                    ),
                ),
                (
                    "progress",
                    models.JSONField(
                        db_comment="fraction and message, as of the last heartbeat", null=True, verbose_name="progress"
                    ),
                ),
                (
                    "result",
                    pgqueue_django.models.PayloadField(
                        db_comment="What the handler returned", null=True, verbose_name="result"
                    ),
                ),
                (
                    "history",
                    models.JSONField(
                        db_comment="One object per failed attempt: attempt, worker, started_at, ended_at, kind, error_type, message, traceback. The first and the newest are kept",
                        db_default=models.Value([], models.JSONField()),
                        verbose_name="history",
                    ),
                ),
                (
                    "label",
                    models.CharField(
                        db_comment="A short text for people, made at enqueue",
                        db_default="",
                        max_length=200,
                        verbose_name="label",
                    ),
                ),
            ],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "db_table": "pgqueue_job",
                "permissions": [
                    ("view_job_payload", "Can view the arguments, result and errors of jobs"),
                    ("requeue_job", "Can send finished jobs back to their queue"),
                    ("cancel_job", "Can cancel jobs"),
                    ("view_dashboard", "Can view the dashboard and the metrics of the queue"),
                ],
                "default_permissions": ("view", "delete"),
                "indexes": [
                    models.Index(
                        models.F("queue_name"),
                        models.OrderBy(models.F("priority"), descending=True),
                        models.F("run_after"),
                        models.F("id"),
                        condition=models.Q(("state", "queued")),
                        name="pgqueue_job_ready",
                    ),
                    models.Index(
                        condition=models.Q(("state__in", ["scheduled", "retrying"])),
                        fields=["run_after"],
                        name="pgqueue_job_waiting",
                    ),
                    models.Index(
                        condition=models.Q(("state", "running")), fields=["worker_id", "id"], name="pgqueue_job_running"
                    ),
                    models.Index(
                        condition=models.Q(("parked_at__isnull", False)),
                        fields=["task", "id"],
                        name="pgqueue_job_parked",
                    ),
                    models.Index(
                        condition=models.Q(("state__in", ["failed", "dead"])),
                        fields=["state", "-id"],
                        name="pgqueue_job_broken",
                    ),
                    models.Index(
                        condition=models.Q(("prune_after__isnull", False)),
                        fields=["prune_after"],
                        name="pgqueue_job_prunable",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("idempotency_key__isnull", False)),
                        fields=("task", "idempotency_key"),
                        name="pgqueue_job_key",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "state__in",
                                [
                                    "scheduled",
                                    "queued",
                                    "running",
                                    "retrying",
                                    "succeeded",
                                    "failed",
                                    "dead",
                                    "cancelled",
                                ],
                            )
                        ),
                        name="pgqueue_job_state_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("lease_expires_at__isnull", False), ("state", "running")),
                            models.Q(models.Q(("state", "running"), _negated=True), ("lease_expires_at__isnull", True)),
                            _connector="OR",
                        ),
                        name="pgqueue_job_running_is_leased",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("finished_at__isnull", False),
                                ("state__in", ["succeeded", "failed", "dead", "cancelled"]),
                            ),
                            models.Q(
                                models.Q(("state__in", ["succeeded", "failed", "dead", "cancelled"]), _negated=True),
                                ("finished_at__isnull", True),
                            ),
                            _connector="OR",
                        ),
                        name="pgqueue_job_finished_at",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("priority__gte", -100), ("priority__lte", 100)),
                        name="pgqueue_job_priority_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("run_after__gte", datetime.datetime(1900, 1, 1, 0, 0, tzinfo=datetime.UTC)),
                            ("run_after__lt", datetime.datetime(9000, 1, 1, 0, 0, tzinfo=datetime.UTC)),
                        ),
                        name="pgqueue_job_run_after_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("attempts__gte", 0), ("max_attempts__gte", 1)), name="pgqueue_job_attempts"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Stat",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("minute", models.DateTimeField(db_comment="Start of the minute in which the attempts were settled")),
                ("worker_id", models.CharField(db_comment="Who wrote it", max_length=120)),
                ("queue_name", models.CharField(db_comment="Queue of the jobs", max_length=63)),
                ("task", models.CharField(db_comment="Task of the jobs", max_length=255)),
                ("succeeded", models.BigIntegerField(db_comment="Attempts that succeeded", db_default=0)),
                (
                    "retried",
                    models.BigIntegerField(db_comment="Failed attempts that will be tried again", db_default=0),
                ),
                ("failed", models.BigIntegerField(db_comment="Failed attempts that left the job failed", db_default=0)),
                ("dead", models.BigIntegerField(db_comment="Failed attempts that left the job dead", db_default=0)),
                (
                    "pickup_counts",
                    pgqueue_django.models.CountsField(
                        db_comment="Pickup times per bucket of stats.BOUNDS, the last one beyond them"
                    ),
                ),
                ("pickup_seconds", models.FloatField(db_comment="Sum of the pickup times", db_default=0)),
                (
                    "run_counts",
                    pgqueue_django.models.CountsField(
                        db_comment="Run times per bucket of stats.BOUNDS, the last one beyond them"
                    ),
                ),
                ("run_seconds", models.FloatField(db_comment="Sum of the run times", db_default=0)),
            ],
            options={
                "db_table": "pgqueue_stat",
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("minute", "worker_id", "queue_name", "task"), name="pgqueue_stat_cell"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                (
                    "id",
                    models.CharField(
                        db_comment="Its name and eight random hex digits",
                        max_length=120,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("name", models.CharField(db_comment="--name, or host:pid", max_length=100, verbose_name="name")),
                ("host", models.CharField(db_comment="Host name", max_length=255, verbose_name="host")),
                ("pid", models.BigIntegerField(db_comment="Process id on that host", verbose_name="process")),
                (
                    "queues",
                    models.JSONField(
                        db_comment="Queues that it was told to take; []: all", default=list, verbose_name="queues"
                    ),
                ),
                (
                    "concurrency",
                    models.PositiveIntegerField(db_comment="Jobs that it runs at the same time", verbose_name="slots"),
                ),
                (
                    "running",
                    models.PositiveIntegerField(
                        db_comment="Jobs that it ran at the last heartbeat", db_default=0, verbose_name="running"
                    ),
                ),
                ("lease_seconds", models.FloatField(db_comment="Length of its leases", verbose_name="lease")),
                (
                    "started_at",
                    models.DateTimeField(
                        db_comment="When it registered",
                        db_default=django.db.models.functions.datetime.Now(),
                        verbose_name="started at",
                    ),
                ),
                (
                    "heartbeat_at",
                    models.DateTimeField(
                        db_comment="Its last heartbeat",
                        db_default=django.db.models.functions.datetime.Now(),
                        verbose_name="heartbeat at",
                    ),
                ),
            ],
            options={
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
                "db_table": "pgqueue_worker",
                "default_permissions": ("view",),
                "indexes": [models.Index(fields=["heartbeat_at"], name="pgqueue_worker_heartbeat")],
            },
        ),
        migrations.RunSQL(
            # Room on each page for the heartbeats' new row versions (HOT), and vacuum by the rows that moved
            # rather than by the size of what is kept: a queue has many dead rows and few live ones.
            # Rows over 2 KB are shortened to 512 bytes, so that payloads go out of line and are not written again
            # by each claim and settle (2.5 KB of payload: 1.3 KB of WAL for a job's life instead of 5.3, and half
            # the disk space). Without compression the disk space is that of before, and the rate no other.
            """
            ALTER TABLE pgqueue_job SET (fillfactor = 50, toast_tuple_target = 512, autovacuum_vacuum_scale_factor = 0.02,
                autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.05);
            ALTER TABLE pgqueue_worker SET (fillfactor = 50);
            ALTER TABLE pgqueue_stat SET (fillfactor = 50);
            """,
            reverse_sql=migrations.RunSQL.noop,
            hints={"model_name": "job"},
        ),
    ]

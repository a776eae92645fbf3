from django.db import migrations, models

import pgqueue_django.models


class Migration(migrations.Migration):
    dependencies = [
        ("pgqueue_django", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Queue",
            fields=[
                (
                    "name",
                    models.CharField(
                        db_comment="Its name", max_length=63, primary_key=True, serialize=False, verbose_name="name"
                    ),
                ),
                (
                    "paused_at",
                    models.DateTimeField(
                        db_comment="Since when nothing of it is claimed", null=True, verbose_name="paused at"
                    ),
                ),
                (
                    "resume_at",
                    models.DateTimeField(
                        blank=True,
                        db_comment="When it goes on by itself; null: when a person says so",
                        null=True,
                        verbose_name="resume at",
                    ),
                ),
                (
                    "reason",
                    models.CharField(
                        blank=True,
                        db_comment="Why it was paused",
                        db_default="",
                        default="",
                        max_length=200,
                        verbose_name="reason",
                    ),
                ),
                (
                    "actor",
                    models.CharField(db_comment="Who paused it", db_default="", max_length=150, verbose_name="actor"),
                ),
            ],
            options={
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "db_table": "pgqueue_queue",
                "default_permissions": ("add", "view", "change"),
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "name",
                    models.CharField(
                        db_comment="Part of the keys of its jobs", max_length=100, unique=True, verbose_name="name"
                    ),
                ),
                (
                    "is_code",
                    models.BooleanField(
                        db_comment="Declared with @periodic, not by a person",
                        db_default=False,
                        default=False,
                        editable=False,
                        verbose_name="from code",
                    ),
                ),
                ("task", models.CharField(db_comment="Import path of the task", max_length=255, verbose_name="task")),
                (
                    "line",
                    models.CharField(
                        db_comment="minute hour day-of-month month day-of-week [second]",
                        max_length=200,
                        verbose_name="line",
                    ),
                ),
                (
                    "zone",
                    models.CharField(
                        db_comment="Whose clocks it goes by",
                        db_default="UTC",
                        default="UTC",
                        max_length=64,
                        verbose_name="time zone",
                    ),
                ),
                (
                    "args",
                    pgqueue_django.models.PayloadField(
                        blank=True,
                        db_comment="Positional arguments, a JSON array",
                        default=list,
                        verbose_name="arguments",
                    ),
                ),
                (
                    "kwargs",
                    pgqueue_django.models.PayloadField(
                        blank=True, db_comment="Keyword arguments, a JSON object", default=dict, verbose_name="keywords"
                    ),
                ),
                (
                    "missed",
                    models.CharField(
                        choices=[("none", "leave them out"), ("one", "once for all of them")],
                        db_comment="none or one: what becomes of ticks that passed while no worker ran and later ones are due, too",
                        default="one",
                        max_length=4,
                        verbose_name="missed ticks",
                    ),
                ),
                (
                    "overlap",
                    models.CharField(
                        choices=[("allow", "enqueue all the same"), ("skip", "skip the tick")],
                        db_comment="allow or skip: at a tick while the job of the one before is not finished",
                        default="allow",
                        max_length=5,
                        verbose_name="while the last is unfinished",
                    ),
                ),
                (
                    "is_enabled",
                    models.BooleanField(db_comment="A person's switch", default=True, verbose_name="enabled"),
                ),
                (
                    "skip_next",
                    models.BooleanField(
                        db_comment="Leave the next tick out, once", default=False, verbose_name="skip next"
                    ),
                ),
                (
                    "next_at",
                    models.DateTimeField(
                        db_comment="The next tick", editable=False, null=True, verbose_name="next tick"
                    ),
                ),
                (
                    "declared_at",
                    models.DateTimeField(
                        db_comment="When a worker with this code said so for the last time", editable=False, null=True
                    ),
                ),
                (
                    "retired_at",
                    models.DateTimeField(
                        db_comment="No worker has had it in its code for a while",
                        editable=False,
                        null=True,
                        verbose_name="retired at",
                    ),
                ),
                (
                    "error",
                    models.CharField(
                        db_comment="Why it does not fire",
                        db_default="",
                        default="",
                        editable=False,
                        max_length=500,
                        verbose_name="error",
                    ),
                ),
                (
                    "last_tick",
                    models.DateTimeField(
                        db_comment="The tick that fired last", editable=False, null=True, verbose_name="last tick"
                    ),
                ),
                (
                    "last_fired_at",
                    models.DateTimeField(
                        db_comment="And when that was", editable=False, null=True, verbose_name="fired at"
                    ),
                ),
                (
                    "last_job_id",
                    models.BigIntegerField(
                        db_comment="The job of that tick", editable=False, null=True, verbose_name="last job"
                    ),
                ),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
                "db_table": "pgqueue_schedule",
                "indexes": [
                    models.Index(
                        condition=models.Q(("is_enabled", True), ("retired_at__isnull", True)),
                        fields=["next_at"],
                        name="pgqueue_schedule_due",
                    )
                ],
            },
        ),
    ]

from django.db import migrations, models

import pgqueue_django.models


class Migration(migrations.Migration):
    dependencies = [
        ("pgqueue_django", "0003_worker_facts"),
    ]

    operations = [
        migrations.CreateModel(
            name="StatHistory",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
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
                ("begin", models.DateTimeField(db_comment="Start of the minute or hour")),
                ("seconds", models.IntegerField(db_comment="60 or 3600")),
            ],
            options={
                "db_table": "pgqueue_stat_history",
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("seconds", "begin", "queue_name", "task"), name="pgqueue_stat_history_cell"
                    )
                ],
            },
        ),
    ]

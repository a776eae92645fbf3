from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pgqueue_django", "0002_schedules_and_queues"),
    ]

    operations = [
        migrations.AddField(
            model_name="worker",
            name="memory_bytes",
            field=models.BigIntegerField(
                db_comment="Of its process, at the last heartbeat", null=True, verbose_name="memory"
            ),
        ),
        migrations.AddField(
            model_name="worker",
            name="skew_seconds",
            field=models.FloatField(
                db_comment="Its host's clock less the database's, at the last heartbeat",
                null=True,
                verbose_name="clock skew",
            ),
        ),
        migrations.AddField(
            model_name="worker",
            name="tasks",
            field=models.JSONField(
                db_comment="That it knew as it started",
                db_default=models.Value([], models.JSONField()),
                default=list,
                verbose_name="tasks",
            ),
        ),
        migrations.AddField(
            model_name="worker",
            name="version",
            field=models.CharField(
                db_comment="Of pgqueue_django, as it started",
                db_default="",
                default="",
                max_length=40,
                verbose_name="version",
            ),
        ),
    ]

"""``manage.py pgqueue_jobs``: list jobs, or show one."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from pgqueue_django.management import selection
from pgqueue_django.management.arguments import SuggestingCommand
from pgqueue_django.models import Job
from pgqueue_django.states import State

_COLUMNS = ("id", "state", "task", "queue_name", "priority", "attempts", "max_attempts", "run_after", "finished_at")
_PAYLOAD = ("args", "kwargs", "result")


class Command(SuggestingCommand):
    help = "List jobs, the newest first, or show one with its history. Arguments and results only with --payload."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("id", nargs="?", type=int, metavar="ID", help="show this job")
        parser.add_argument("--state", choices=[str(state) for state in State], help="in this state")
        parser.add_argument("--queue", help="of this queue")
        parser.add_argument("--task", help="of this task (import path)")
        parser.add_argument("--limit", type=int, default=20, help="at most so many (20, up to 1,000)")
        parser.add_argument("--payload", action="store_true", help="with arguments and result")
        parser.add_argument("--json", action="store_true", help="a JSON object on each line")
        selection.add_database(parser)

    def handle(self, **given: Any) -> None:
        using = selection.alias(given)
        if not 1 <= given["limit"] <= 1000:
            raise CommandError("--limit: give 1 to 1,000.", returncode=2)
        columns = [*_COLUMNS, *(_PAYLOAD if given["payload"] else ())]
        if given["id"] is not None:
            columns += ["enqueued_at", "started_at", "worker_id", "idempotency_key", "label", "progress", "history"]
            job = Job.objects.using(using).filter(pk=given["id"]).values(*columns).first()
            if job is None:
                raise CommandError(f"Job {given['id']} does not exist: it was pruned or deleted, or never enqueued.")
            self.stdout.write(json.dumps(job, default=str, indent=None if given["json"] else 2, ensure_ascii=False))
            return
        jobs = Job.objects.using(using).order_by("-id")
        if given["state"]:
            jobs = jobs.filter(state=given["state"])
        if given["queue"]:
            jobs = jobs.filter(queue_name=selection.checked_queue(using, given["queue"]))
        if given["task"]:
            jobs = jobs.filter(task=given["task"])
        for row in jobs.values(*columns)[: given["limit"]]:
            if given["json"]:
                self.stdout.write(json.dumps(row, default=str, ensure_ascii=False))
                continue
            words = [f"#{row['id']}", row["state"], row["task"], row["queue_name"]]
            words.append(f"attempt {row['attempts']}/{row['max_attempts']}")
            if row["state"] in (State.SCHEDULED, State.RETRYING):
                words.append(f"due {row['run_after']:%Y-%m-%d %H:%M:%S %Z}")
            if row["finished_at"]:
                words.append(f"ended {row['finished_at']:%Y-%m-%d %H:%M:%S %Z}")
            if given["payload"]:
                words.append(json.dumps([row["args"], row["kwargs"], row["result"]], default=str, ensure_ascii=False))
            self.stdout.write("  ".join(words))

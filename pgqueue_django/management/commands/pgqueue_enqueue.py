"""``manage.py pgqueue_enqueue``: enqueue one job, and wait for its end if asked to."""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError

from pgqueue_django.exceptions import MAX_DELAY, PgQueueError, TaskNotFound
from pgqueue_django.management import selection
from pgqueue_django.management.arguments import SuggestingCommand
from pgqueue_django.models import Job
from pgqueue_django.states import State
from pgqueue_django.tasks import resolve, task_by_name

_POLL_SECONDS = 0.1
_OVER = (State.SUCCEEDED, State.FAILED, State.DEAD, State.CANCELLED)


class Command(SuggestingCommand):
    help = (
        "Enqueue one job. JSON: a list for positional arguments, an object for named ones. Exit codes: 0, with --wait "
        "1 if the job did not succeed; 2 wrong task, arguments or options."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("task", help="its import path: shop.tasks.charge")
        parser.add_argument("arguments", nargs="?", default="[]", metavar="JSON", help='[1, 2] or {"invoice_id": 1}')
        parser.add_argument("--queue", help="the task's own if not given")
        parser.add_argument("--priority", type=int, help="-100 to 100, higher first")
        parser.add_argument("--delay", type=float, metavar="SECONDS", help="not before so many seconds from now")
        parser.add_argument("--key", help="idempotency key")
        parser.add_argument("--max-attempts", type=int)
        parser.add_argument("--unknown", action="store_true", help="the task's code is elsewhere")
        parser.add_argument(
            "--wait", nargs="?", type=float, const=60.0, metavar="SECONDS", help="for its end, and show its result (60)"
        )
        selection.add_database(parser)

    def handle(self, **given: Any) -> None:
        using = selection.alias(given)
        try:
            arguments = json.loads(given["arguments"])
        except (ValueError, RecursionError) as error:
            raise CommandError(f"{given['arguments'][:100]!r} is no JSON: {error}", returncode=2) from error
        if not isinstance(arguments, list | dict):
            raise CommandError("Arguments are a JSON list or object.", returncode=2)
        for name in ("delay", "wait"):
            if given[name] is not None and not 0 <= given[name] <= MAX_DELAY:
                raise CommandError(f"--{name}: give 0 to {MAX_DELAY} seconds.", returncode=2)
        options = {
            "queue_name": given["queue"],
            "priority": given["priority"],
            "run_after": None if given["delay"] is None else timedelta(seconds=given["delay"]),
            "idempotency_key": given["key"],
            "max_attempts": given["max_attempts"],
        }
        try:
            task = task_by_name(given["task"]) if given["unknown"] else resolve(given["task"])
            task = task.using(database=using, **{name: value for name, value in options.items() if value is not None})
            enqueued = task.enqueue(*arguments) if isinstance(arguments, list) else task.enqueue(**arguments)
        except TaskNotFound as error:
            raise CommandError(f"{error} (--unknown enqueues it all the same.)", returncode=2) from error
        except (PgQueueError, TypeError) as error:
            raise CommandError(str(error), returncode=2) from error
        self.stdout.write(f"#{enqueued.id}" + ("" if enqueued.created else " (it has that key already)"))
        if given["wait"] is not None:
            self._wait(using, enqueued.id, given["wait"])

    def _wait(self, using: str, job_id: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            job = Job.objects.using(using).filter(pk=job_id).values("state", "result", "history").first()
            if job is None:
                raise CommandError(f"Job {job_id} was deleted.")
            if job["state"] in _OVER:
                break
            if time.monotonic() >= deadline:
                raise CommandError(f"Job {job_id} is still {job['state']} after {seconds:g} s.")
            time.sleep(_POLL_SECONDS)
        if job["state"] == State.SUCCEEDED:
            self.stdout.write(json.dumps(job["result"], ensure_ascii=False))
            return
        last = job["history"][-1] if job["history"] else {}
        self.stderr.write(f"{job['state']}: {last.get('error_type', '')} {last.get('message', '')}".strip())
        sys.exit(1)

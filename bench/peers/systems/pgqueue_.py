"""Ours."""

import django

ASYNC = False
django.setup()

from bench import tasks  # noqa: E402
from pgqueue_django import enqueue_many  # noqa: E402


def install():
    from django.core.management import call_command

    call_command("migrate", run_syncdb=True, verbosity=0)


def one(order):
    tasks.noop.enqueue(order)


def many(orders):
    enqueue_many([tasks.noop.call(order) for order in orders])


def stamped(order, number):
    tasks.started.enqueue(order, number)

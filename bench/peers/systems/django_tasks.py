"""The peers behind ``django.tasks``: django-tasks-db, django-ox and dj-queue. One task file, three settings."""

import os

import django
from django.apps import apps

ASYNC = False
if not apps.ready and not apps.apps_ready:
    django.setup()

from django.tasks import task  # noqa: E402

from bench import gate, stamps  # noqa: E402


@task
def noop(order):
    pass


@task
def started(order, number):
    stamps.stamp(number)


def install():
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


def one(order):
    noop.enqueue(order)


def stamped(order, number):
    started.enqueue(order, number)


if os.environ["BENCH_SYSTEM"] == "django-ox":

    def many(orders):
        from django_ox.bulk import enqueue_many

        enqueue_many(noop, [((order,), {}) for order in orders])

elif os.environ["BENCH_SYSTEM"] == "dj-queue":

    def many(orders):
        from django.tasks import default_task_backend

        default_task_backend.enqueue_all([(noop, (order,), {}) for order in orders])


gate.wait()

"""Celery on Redis: thread pool, early acks; with BENCH_DURABLE late acks (and a Redis that fsyncs every write)."""

import os

from celery import Celery

from bench import gate, stamps

ASYNC = False
app = Celery("bench", broker=os.environ["REDIS_URL"])
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=4,
    task_acks_late=os.environ.get("BENCH_DURABLE") == "1",
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=True,
)


@app.task(name="noop")
def noop(order):
    pass


@app.task(name="started")
def started(order, number):
    stamps.stamp(number)


def install():
    pass


def one(order):
    noop.delay(order)


def stamped(order, number):
    started.delay(order, number)


gate.wait()

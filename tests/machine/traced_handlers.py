"""Tasks that make spans of their own, and jobs."""

from __future__ import annotations

import asyncio

from asgiref.sync import sync_to_async
from opentelemetry import trace

from pgqueue_django import task
from tests.machine import handlers

tracer = trace.get_tracer("a project")


def _work() -> None:
    with tracer.start_as_current_span("work"):
        handlers.do_nothing.enqueue()


@task
def work() -> None:
    _work()


@task(atomic=True, timeout=60)
def work_atomic() -> None:
    _work()


@task
async def work_async() -> None:
    await asyncio.sleep(0)
    with tracer.start_as_current_span("work"):
        await handlers.do_nothing.aenqueue()


@task
async def work_in_thread() -> None:
    await sync_to_async(_work)()

"""Asynchronous views that enqueue, as an ASGI application: for the tests, and for a server of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

from asgiref.sync import sync_to_async
from django.core.asgi import get_asgi_application
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.machine.settings")
application = get_asgi_application()

from pgqueue_django import aenqueue_many  # noqa: E402 (after the set-up of Django)
from tests.machine import handlers  # noqa: E402


async def enqueue_one(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"ids": [(await handlers.do_nothing.aenqueue()).id]})


async def enqueue_thousand(request: HttpRequest) -> JsonResponse:
    enqueued = await asyncio.gather(*(handlers.do_nothing.aenqueue() for _ in range(1000)))
    return JsonResponse({"ids": [one.id for one in enqueued]})


async def enqueue_bulk(request: HttpRequest) -> JsonResponse:
    enqueued = await aenqueue_many(handlers.do_nothing.call() for _ in range(100))
    return JsonResponse({"ids": [one.id for one in enqueued]})


def _in_a_transaction(rolls_back: bool) -> int:
    with transaction.atomic():
        job_id = handlers.do_nothing.enqueue().id
        transaction.set_rollback(rolls_back)
    return job_id


async def enqueue_in_a_transaction(request: HttpRequest) -> JsonResponse:
    """As it is to be written: the transaction in one plain function. What is beside it is not part of it."""
    in_it, beside = await asyncio.gather(
        sync_to_async(_in_a_transaction)(request.GET["rolls_back"] == "1"), handlers.do_nothing.aenqueue()
    )
    return JsonResponse({"in_it": in_it, "beside": beside.id})


async def enqueue_and_fail(request: HttpRequest) -> JsonResponse:
    await handlers.do_nothing.aenqueue()
    raise ValueError("after the job was enqueued")


async def enqueue_without_await(request: HttpRequest) -> JsonResponse:
    handlers.do_nothing.enqueue()
    raise AssertionError("that should have been refused")


async def threads(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"threads": sorted(thread.name for thread in threading.enumerate())})


urlpatterns: list[Any] = [
    path("one/", enqueue_one),
    path("thousand/", enqueue_thousand),
    path("bulk/", enqueue_bulk),
    path("transaction/", enqueue_in_a_transaction),
    path("fail/", enqueue_and_fail),
    path("without-await/", enqueue_without_await),
    path("threads/", threads),
]

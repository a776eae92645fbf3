"""Chancy: async executor, eager polling (without it a full worker fetches 32 jobs each 5 s)."""

import logging
import os

from chancy import Chancy, Queue
from chancy.job import job

from bench import gate, stamps

ASYNC = True
chancy = Chancy(os.environ["DATABASE_URL"], log=logging.getLogger("chancy"))


@job(queue="default")
async def noop(*, order):
    pass


@job(queue="default")
async def started(*, order, number):
    stamps.stamp(number)


async def install():
    await open()
    await chancy.migrate()
    await chancy.declare(
        Queue(name="default", concurrency=32, executor=Chancy.Executor.Async, eager_polling=True), upsert=True
    )
    await close()


async def open():
    await chancy.__aenter__()


async def close():
    await chancy.__aexit__(None, None, None)


async def one(order):
    await chancy.push(noop.job.with_kwargs(order=order))


async def many(orders):
    async for _ in chancy.push_many([noop.job.with_kwargs(order=order) for order in orders]):
        pass


async def stamped(order, number):
    await chancy.push(started.job.with_kwargs(order=order, number=number))


gate.wait()

"""PgQueuer with asyncpg: the payload is bytes, so the handler decodes it, as a real one would."""

import json
import os
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from bench import gate, stamps

ASYNC = True


@asynccontextmanager
async def main():
    connection = await asyncpg.connect(os.environ["DATABASE_URL"])
    queue = PgQueuer(AsyncpgDriver(connection))

    @queue.entrypoint("noop")
    async def noop(job):
        json.loads(job.payload)

    @queue.entrypoint("started")
    async def started(job):
        stamps.stamp(json.loads(job.payload)["number"])

    yield queue
    await connection.close()


_connection = None
_queries = None


async def open():
    global _connection, _queries
    _connection = await asyncpg.connect(os.environ["DATABASE_URL"])
    _queries = Queries(AsyncpgDriver(_connection))


async def close():
    await _connection.close()


async def install():
    await open()
    await _queries.install()
    await close()


async def one(order):
    await _queries.enqueue("noop", json.dumps(order).encode())


async def many(orders):
    payloads = [json.dumps(order).encode() for order in orders]
    await _queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))


async def stamped(order, number):
    await _queries.enqueue("started", json.dumps({"order": order, "number": number}).encode())


gate.wait()

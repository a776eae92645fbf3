"""Oban: the producer is a client that was never started (a started one's loop may stop inside a transaction)."""

import os

from oban import Oban, job

from bench import gate, stamps

ASYNC = True


@job(queue="default")
async def noop(order):
    pass


@job(queue="default")
async def started(order, number):
    stamps.stamp(number)


_pool = None
_oban = None


async def open():
    global _pool, _oban
    _pool = await Oban.create_pool(os.environ["DATABASE_URL"], min_size=1, max_size=2)
    _oban = Oban(pool=_pool)


async def close():
    await _pool.close()


async def install():
    from oban.schema import install as install_schema

    await open()
    await install_schema(_pool)
    await close()


async def one(order):
    await _oban.enqueue(noop.new(order))


async def many(orders):
    await _oban.enqueue_many([noop.new(order) for order in orders])


async def stamped(order, number):
    await _oban.enqueue(started.new(order, number))


gate.wait()

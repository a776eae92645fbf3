"""Procrastinate: async tasks, its own pool; deferred synchronously, as a Django view or script does."""

import os

from procrastinate import App, PsycopgConnector

from bench import gate, stamps

ASYNC = False
app = App(connector=PsycopgConnector(conninfo=os.environ["DATABASE_URL"]))


@app.task(name="noop")
async def noop(order):
    pass


@app.task(name="started")
async def started(order, number):
    stamps.stamp(number)


def install():
    with app.open():
        app.schema_manager.apply_schema()


def open():
    app.open()  # not awaited: a synchronous pool with the same settings


def close():
    app.close()


def one(order):
    noop.defer(order=order)


def many(orders):
    noop.batch_defer(*({"order": order} for order in orders))


def stamped(order, number):
    started.defer(order=order, number=number)


gate.wait()

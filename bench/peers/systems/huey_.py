"""Huey on Redis: at most once, a popped job is gone."""

import os

from huey import RedisHuey

from bench import gate, stamps

ASYNC = False
huey = RedisHuey("bench", url=os.environ["REDIS_URL"], results=False)


@huey.task()
def noop(order):
    pass


@huey.task()
def started(order, number):
    stamps.stamp(number)


def install():
    pass


def one(order):
    noop(order)


def stamped(order, number):
    started(order, number)


gate.wait()

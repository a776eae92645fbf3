"""Dramatiq on Redis."""

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench import gate, stamps

ASYNC = False
dramatiq.set_broker(RedisBroker(url=os.environ["REDIS_URL"]))


@dramatiq.actor
def noop(order):
    pass


@dramatiq.actor
def started(order, number):
    stamps.stamp(number)


def install():
    pass


def one(order):
    noop.send(order)


def stamped(order, number):
    started.send(order, number)


gate.wait()

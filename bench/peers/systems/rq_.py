"""RQ: a process is forked for each job."""

import os

from redis import Redis
from rq import Queue

from bench import stamps

ASYNC = False
queue = Queue("default", connection=Redis.from_url(os.environ["REDIS_URL"]))


def noop(order):
    pass


def started(order, number):
    stamps.stamp(number)


def install():
    pass


def one(order):
    queue.enqueue("bench.peers.systems.rq_.noop", order)


def many(orders):
    queue.enqueue_many([Queue.prepare_data("bench.peers.systems.rq_.noop", args=(order,)) for order in orders])


def stamped(order, number):
    queue.enqueue("bench.peers.systems.rq_.started", order, number)

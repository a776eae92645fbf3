"""One module a system: its tasks, as its documentation writes them, and how one enqueues.

Each is imported in that system's own virtualenv, by its workers and by ``bench.peers.driver``. ``install()`` makes
the tables. ``ASYNC`` says whether the producer's calls are awaited. ``one(order)`` makes a job that does nothing,
``many(orders)`` makes them in bulk with the system's own call (absent: it has none), ``stamped(order, number)`` makes
a job that says when it started. ``open()`` and ``close()`` are called around them, where there is something to do.
"""

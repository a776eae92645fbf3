"""Telling workers that there is something to do, without making anybody wait for it.

A wake-up is a NOTIFY on one channel. It is a hint: it carries a queue name or one of two signals, never data;
it may be lost, and polling alone is always correct.

It never rides in the caller's transaction, because NOTIFY takes a database-wide lock at commit (32 clients
fell from 21,549 to 5,454 inserts/s with it inside): it is sent after the commit, on the same connection. And a
process spends at most a twentieth of its time on those of one queue: one that took t uses up 20 t, at most 2 s, of
which a process may be 40 ms ahead (with a strict pause of 20 t, 34 of 500 jobs at 100 a second waited 12 ms for a
poll); and two are 5 ms apart. Where they take many times as long as the fastest ones did, many producers compete for
the server, and each uses up to eight times less: 32 of them kept 90 % of their rate without that, now 94 to 99. What is
dropped, the workers' short polls after they ran dry pick up.
"""

from __future__ import annotations

import time

from django.db import connections, transaction

CHANNEL = "pgqueue"
# Queue names have no "!" in their alphabet.
CANCELLED = "!cancelled"  # a running job was cancelled: heartbeat now, and learn which
DUE = "!due"  # a waiting job is due before the next look at them

_GAP_SECONDS = 0.005
_SHARE = 20
_AHEAD_SECONDS = 0.04
_AT_MOST_SECONDS = 2.0  # one that hung for a minute must not silence its queue for twenty

_PATIENCE = 8  # at most so many times less where the server is busy
_USUAL = 4  # times as long as the fastest one is nothing unusual

# By database: how long the fastest NOTIFY took, and how long they take now, in seconds.
_pace: dict[str, tuple[float, float]] = {}
# By database and hint: when the last one was sent, and until when its share of the time is used up.
_spent: dict[tuple[str, str], tuple[float, float]] = {}


def send(using: str, hint: str, *, channel: str = CHANNEL) -> None:
    """NOTIFY at once, on this thread's connection."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [channel, hint])


def send_limited(using: str, hint: str) -> None:
    """NOTIFY, unless this process sent the same hint a moment ago."""
    began = time.monotonic()
    last, until = _spent.get((using, hint), (float("-inf"), began))
    if began < last + _GAP_SECONDS or began + _AHEAD_SECONDS < until:
        return
    if len(_spent) > 1000:  # queue names may be made up at run time
        _spent.clear()
    # Set before sending too, so that threads that come together send one.
    _spent[using, hint] = began, until
    send(using, hint)
    ended = time.monotonic()
    # Read again: other threads have sent meanwhile.
    _, until = _spent.get((using, hint), (began, until))
    cost = _SHARE * (ended - began) * _crowding(using, ended - began)
    _spent[using, hint] = ended, min(max(until, began) + cost, ended + _AT_MOST_SECONDS)


def _crowding(using: str, took: float) -> float:
    """From 1, where the server answers about as fast as it ever did to this process, to ``_PATIENCE``."""
    fastest, usual = _pace.get(using, (took, took))
    # The fastest one is forgotten in time (the server may have moved), and one slow answer says little.
    fastest, usual = min(took, 1.001 * fastest), 0.8 * usual + 0.2 * took
    _pace[using] = fastest, usual
    return min(_PATIENCE, max(1.0, usual / (_USUAL * fastest))) if fastest > 0 else 1.0


def send_after_commit(using: str, hint: str) -> None:
    """NOTIFY when the caller's transaction has committed; at once in autocommit.

    A failing NOTIFY is logged by Django and never reaches the caller. Under manual transactions there is no
    moment to send it: the job waits for a poll.
    """
    connection = connections[using]
    # Nothing polls for a cancel, and a person makes few of them.
    notify = send if hint == CANCELLED else send_limited
    # An atomic block inside a manual transaction does not commit, and would keep its hooks for ever.
    if connection.commit_on_exit if connection.in_atomic_block else connection.get_autocommit():
        # No partial: Django logs the __qualname__ of a hook that fails, and a partial has none.
        transaction.on_commit(lambda: notify(using, hint), using=using, robust=True)

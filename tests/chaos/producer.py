"""``python -m chaos.producer FILE``: enqueue what the orders on standard input say, and keep a ledger of it.

An order is one JSON object on a line: ``task`` (a name in ``chaos.tasks``), ``count``, ``prefix`` of the
idempotency keys, ``rate`` (jobs per second, null: as fast as it goes), ``milliseconds`` ([least, most] that each
handler takes), ``in_transaction`` (each enqueue in an atomic block of its own) and ``seed``. When the database
does not answer, the same key is tried again until it does. A line goes to FILE for each job once its COMMIT was
acknowledged, never before.
"""

from __future__ import annotations

import json
import random
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

_GIVE_UP_SECONDS = 60.0


def main(file: Path) -> None:
    import django

    django.setup()
    with file.open("a", buffering=1) as acknowledged:
        for line in sys.stdin:
            produce(json.loads(line), acknowledged)


def produce(order: dict[str, Any], acknowledged: Any) -> None:
    from chaos import tasks

    task = getattr(tasks, order["task"])
    dice = random.Random(order["seed"])
    began = time.monotonic()
    for number in range(order["count"]):
        if order["rate"]:
            time.sleep(max(0.0, began + number / order["rate"] - time.monotonic()))
        key = f"{order['prefix']}-{number}"
        ack = insist(task, key, dice.randint(*order["milliseconds"]), order["in_transaction"])
        acknowledged.write(json.dumps(ack) + "\n")


def insist(task: Any, key: str, milliseconds: int, in_transaction: bool) -> dict[str, Any]:
    """Enqueue until the answer comes, as a careful caller would."""
    from django.db import DatabaseError, InterfaceError, connection, transaction

    tries = 0
    deadline = time.monotonic() + _GIVE_UP_SECONDS
    while True:
        tries += 1
        try:
            with transaction.atomic() if in_transaction else nullcontext():
                enqueued = task.using(idempotency_key=key).enqueue(milliseconds)
            return {"id": enqueued.id, "created": enqueued.created, "key": key, "tries": tries}
        except (DatabaseError, InterfaceError):
            if time.monotonic() > deadline:
                raise
            connection.close()
            time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

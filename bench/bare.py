"""The handlers of ``bench.drain``'s ``orm`` without a queue: threads that call them. Started by ``bench.drain``."""

from __future__ import annotations

import argparse
import itertools
import threading

import django


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bare", description=__doc__)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--jobs", type=int, required=True)
    args = parser.parse_args()
    django.setup()
    from bench import orders, tasks  # the tasks wait at the gate

    variants = orders.variants()
    turn = itertools.count()  # next() of it is atomic under the GIL

    def work() -> None:
        while (number := next(turn)) < args.jobs:
            tasks.make_receipt(variants[number % len(variants)])

    threads = [threading.Thread(target=work) for _ in range(args.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()

"""``python -m bench``: every benchmark after the other, then the page. Arguments go to each (``--quick``, …)."""

from __future__ import annotations

import subprocess
import sys

from bench.lab import ROOT

# The longest last, so that an interrupted run has most of the page.
ALL = [
    *("drain", "limit", "latency", "enqueue", "memory", "crash", "restart", "snapshot", "pages", "dashboard", "prune"),
    *("growth", "modes", "peers"),
]


def main() -> int:
    failed = []
    for name in ALL:
        print(f"\n== bench.{name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"bench.{name}", *sys.argv[1:]], cwd=ROOT).returncode:
            failed.append(name)
    report = [sys.executable, "-m", "bench.report"]
    if "--quick" in sys.argv[1:]:
        # A look is not a measurement: it does not replace the page.
        report += ["--results", "bench/results/quick", "--page", "bench/results/quick/benchmarks.md"]
    subprocess.run(report, cwd=ROOT, check=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

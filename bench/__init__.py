"""The benchmarks: each module is one question and prints its answer as ratios (``python -m bench.drain --help``)."""

"""The machine: one process that claims jobs, runs them and settles them (``loop.py`` is the way in)."""

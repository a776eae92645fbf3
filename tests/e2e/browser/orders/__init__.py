"""The site under test: the demo's project and an app of small tasks. Its processes are started by ``sites.py``."""

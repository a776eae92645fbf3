"""A small shop that uses pgqueue_django: what the demo runs, the tests import and the docs quote."""

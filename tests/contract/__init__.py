"""Django's own tests of its tasks, against our backend. They are fetched (``python -m tests.contract.fetch``) and never
committed; run by ``tox -e contract-dj52,contract-dj60,contract-dj61``."""

"""Wagtail, whose indexes are kept up to date by tasks of Django's, on our backend: ``tox -e wagtail``."""

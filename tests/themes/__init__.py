"""The pages under django-unfold's theme: ``tox -e unfold``."""

"""The ASGI application of the shop: under it, a request to the JSON API can wait for a job."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")

application = get_asgi_application()

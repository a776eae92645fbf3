"""The site under ASGI, with its static files."""

import os

from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "orders.settings")

application = ASGIStaticFilesHandler(get_asgi_application())

"""A project that has nothing of Django's but what the status page needs: ``python -m doors.bare_project wsgi 8000``.

No sessions, users, admin, messages, static files; no middleware; a context processor that no page may call.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import django
from django.conf import settings
from django.http import HttpRequest
from django.urls import include, path


def fails(request: HttpRequest) -> dict[str, Any]:
    raise AssertionError("a context processor was called")


if __name__ != "__main__":
    urlpatterns = [path("status/", include("pgqueue_django.public_urls"))]
else:
    settings.configure(
        SECRET_KEY="bare",
        ALLOWED_HOSTS=["127.0.0.1"],
        ROOT_URLCONF="doors.bare_project",
        INSTALLED_APPS=["pgqueue_django"],
        DATABASES={"default": json.loads(os.environ["BARE_DATABASE"])},
        STATIC_URL="static/",
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {"context_processors": ["doors.bare_project.fails"]},
            }
        ],
    )
    django.setup()
    interface, port = sys.argv[1], int(sys.argv[2])
    if interface == "asgi":
        import uvicorn
        from django.core.asgi import get_asgi_application

        uvicorn.run(get_asgi_application(), port=port, lifespan="off")
    else:
        from wsgiref.simple_server import make_server

        from django.core.wsgi import get_wsgi_application

        make_server("127.0.0.1", port, get_wsgi_application()).serve_forever()

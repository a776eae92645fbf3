"""``path("pgqueue/", include("pgqueue_django.urls"))``: the JSON API, metrics and health.

``PUBLIC`` and ``READ_ONLY`` are read here once, as the URLs of the project are: what is not mounted cannot be opened by
anything later.
"""

from typing import Any

from django.urls import include, path, re_path

from . import conf, public_urls, views
from .api import urls as api_urls
from .api import views as api_views

app_name = "pgqueue_django"

urlpatterns: list[Any]
if conf.is_public():
    urlpatterns = public_urls.urlpatterns
else:
    # With and without the last slash: a probe must not depend on APPEND_SLASH.
    urlpatterns = [
        re_path(r"^metrics/?$", views.metrics, name="metrics"),
        re_path(r"^livez/?$", views.livez, name="livez"),
        re_path(r"^healthz/?$", views.healthz, name="healthz"),
        re_path(r"^healthz/queues/?$", views.queues, name="healthz_queues"),
        path("api/v1/", include(api_urls.urlpatterns)),
        re_path(r"^api/v1\Z", api_views.nothing, name="api"),
    ]

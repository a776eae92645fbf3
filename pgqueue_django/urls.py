"""``path("pgqueue/", include("pgqueue_django.urls"))``: metrics and health."""

from django.urls import re_path

from . import views

app_name = "pgqueue_django"

# With and without the last slash: a probe must not depend on APPEND_SLASH.
urlpatterns = [
    re_path(r"^metrics/?$", views.metrics, name="metrics"),
    re_path(r"^livez/?$", views.livez, name="livez"),
    re_path(r"^healthz/?$", views.healthz, name="healthz"),
    re_path(r"^healthz/queues/?$", views.queues, name="healthz_queues"),
]

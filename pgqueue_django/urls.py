"""``path("pgqueue/", include("pgqueue_django.urls"))``: the metrics and the health of the queue."""

from django.urls import re_path

from . import views

app_name = "pgqueue_django"

# With and without the last slash: a probe must not depend on APPEND_SLASH.
urlpatterns = [
    re_path(r"^metrics/?$", views.metrics, name="metrics"),
    re_path(r"^healthz/?$", views.healthz, name="healthz"),
]

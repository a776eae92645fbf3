"""Orders, and the pages of metrics: one for both where there is django-prometheus, and ours."""

from django.conf import settings
from django.urls import include, path
from kitchen.views import order

urlpatterns = [
    path("order/<int:count>", order),
    path("pgqueue/", include("pgqueue_django.urls")),
]

if "django_prometheus" in settings.INSTALLED_APPS:
    from django_prometheus.exports import ExportToDjangoView

    from pgqueue_django.prometheus import beside

    urlpatterns.append(path("metrics", beside(ExportToDjangoView)))

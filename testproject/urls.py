"""The URLs of the shop."""

from importlib.util import find_spec

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("testproject.shop.urls")),
    path("admin/", admin.site.urls),
]
if find_spec("pgqueue_django.urls"):  # TEMPORARY
    urlpatterns.append(path("pgqueue/", include("pgqueue_django.urls")))

"""The URLs of the shop."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("testproject.shop.urls")),
    path("admin/", admin.site.urls),
    path("pgqueue/", include("pgqueue_django.urls")),
    path("status/", include("pgqueue_django.public_urls")),
]

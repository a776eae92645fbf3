"""The URLs that every Django project has."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls), path("pgqueue/", include("pgqueue_django.urls"))]

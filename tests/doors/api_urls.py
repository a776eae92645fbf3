"""The URLs of the package and nothing else: where other apps are not there."""

from django.urls import include, path

urlpatterns = [path("pgqueue/", include("pgqueue_django.urls"))]

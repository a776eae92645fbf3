"""``path("status/", include("pgqueue_django.public_urls"))``: the status page for everybody, and nothing else."""

from django.urls import path

from .dashboard import public

app_name = "pgqueue_status"
urlpatterns = [path("", public.status, name="status")]

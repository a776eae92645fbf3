"""The jobs in a site of Unfold's: what docs/operating.md tells such a project to write."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path
from unfold.admin import ModelAdmin

from pgqueue_django.admin import JobAdminMixin
from pgqueue_django.models import Job

admin.site.unregister(Job)


@admin.register(Job)
class JobAdmin(JobAdminMixin, ModelAdmin):
    class Media:
        css = {"all": ["pgqueue_django/unfold.css"]}


urlpatterns = [path("admin/", admin.site.urls)]

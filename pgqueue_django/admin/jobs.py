"""The admin of jobs, put together."""

from __future__ import annotations

from django.contrib import admin
from django.forms import Media

from pgqueue_django.models import Job

from .dashboard import DashboardPageMixin
from .detail import JobPageMixin
from .listing import JobListMixin
from .problems import ProblemsPageMixin
from .rights import ReadOnlyMixin


class JobAdminMixin(ReadOnlyMixin, JobListMixin, DashboardPageMixin, ProblemsPageMixin, JobPageMixin):
    """Lists and shows jobs; sends back and cancels by ``transitions``. To be put before a ModelAdmin."""

    @property
    def media(self) -> Media:
        # Not a class Media: one of whoever derives from this would take its place.
        return super().media + Media(css={"all": ["pgqueue_django/admin.css"]})


@admin.register(Job)
class JobAdmin(JobAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """The jobs."""

"""The jobs in Django's admin: to look at, to send back, to cancel.

It writes nothing but by the verbs of ``transitions``, and each action has a permission of its own, asked for in
the view and not only in the template. Arguments, results and what errors said are for people with
``view_job_payload``; for all others they never reach a template. Those of a schedule are also for people who may
change it. No page counts or scans the table of jobs: a listing is a walk of at most ``LISTED`` rows along one index,
and what is asked of those rows.

``JobAdminMixin`` has all of it without a base class, for admins with another one::

    class JobAdmin(JobAdminMixin, unfold.admin.ModelAdmin): ...
"""

from .audit_log import AuditEntryAdmin
from .jobs import JobAdmin, JobAdminMixin
from .queues import QueueAdmin
from .schedules import ScheduleAdmin
from .workers import WorkerAdmin

__all__ = ["AuditEntryAdmin", "JobAdmin", "JobAdminMixin", "QueueAdmin", "ScheduleAdmin", "WorkerAdmin"]

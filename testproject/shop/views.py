"""The pages of the shop. A job is enqueued in the transaction that writes what it is about."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.contrib.admin.views.decorators import staff_member_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from pgqueue_django import enqueue_many
from pgqueue_django.models import Job

from . import tasks
from .forms import CampaignForm, OrderForm
from .models import Campaign, Delivery, Export, Invoice, Order

UNFINISHED = ("queued", "running", "retrying")


@require_http_methods(["GET", "POST"])
def catalogue(request: HttpRequest) -> HttpResponse:
    """Everything that the shop sells; a POST places an order."""
    form = OrderForm(request.POST or None)
    if not form.is_valid():
        return render(request, "shop/catalogue.html", {"form": form}, status=400 if form.is_bound else 200)
    with transaction.atomic():
        order = form.save()
        order.remember(
            tasks.charge_card.using(idempotency_key=f"order-{order.pk}").enqueue(
                tasks.CardCharge(order.pk, order.total_cents)
            ),
            tasks.book_stock.enqueue(order.pk),
            tasks.send_receipt.enqueue(order.pk),
            tasks.make_invoice.enqueue(order.pk),
            # The customer may think again for a moment.
            tasks.tell_warehouse.using(run_after=timedelta(seconds=2)).enqueue(order.pk),
            tasks.ask_for_review.using(run_after=timedelta(days=3)).enqueue(order.pk),
        )
    return redirect(order)


@require_GET
def show_order(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """An order, its jobs and what became of them."""
    order = get_object_or_404(Order, public_id=public_id)
    jobs = list(Job.objects.filter(pk__in=order.jobs.values("job_id")).order_by("pk"))
    context = {
        "order": order,
        "lines": order.lines.select_related("product"),
        "jobs": _described(jobs),
        "unfinished": any(job.state in UNFINISHED for job in jobs),
        "has_invoice": Invoice.objects.filter(order=order).exists(),
    }
    return render(request, "shop/order.html", context)


@require_GET
def invoice(request: HttpRequest, public_id: UUID) -> HttpResponse:
    document = get_object_or_404(Invoice, order__public_id=public_id)
    headers = {"Content-Disposition": f'inline; filename="invoice-{document.order_id}.pdf"'}
    return HttpResponse(bytes(document.pdf), content_type="application/pdf", headers=headers)


@staff_member_required
@require_GET
def office(request: HttpRequest) -> HttpResponse:
    """Where the people of the shop send newsletters and make exports."""
    return _office(request, CampaignForm())


@staff_member_required
@require_POST
def send_campaign(request: HttpRequest) -> HttpResponse:
    """Enqueue one job for every recipient, all of them in a few round trips."""
    form = CampaignForm(request.POST)
    if not form.is_valid():
        return _office(request, form)
    with transaction.atomic():
        campaign = form.save()
        readers = range(campaign.recipients)
        jobs = enqueue_many([tasks.send_newsletter.call(campaign.pk, reader) for reader in readers])
        Delivery.objects.bulk_create(
            Delivery(campaign=campaign, recipient=reader, job_id=job.id)
            for reader, job in zip(readers, jobs, strict=True)
        )
    return redirect(f"{reverse('shop:office')}?campaign={campaign.pk}")


@staff_member_required
@require_POST
def start_export(request: HttpRequest) -> HttpResponse:
    with transaction.atomic():
        export = Export.objects.create()
        export.job_id = tasks.export_sales.enqueue(export.pk).id
        export.save(update_fields=["job_id"])
    return redirect(f"{reverse('shop:office')}?export={export.pk}")


@staff_member_required
@require_GET
def download_export(request: HttpRequest, export_id: int) -> HttpResponse:
    export = get_object_or_404(Export, pk=export_id, finished_at__isnull=False)
    headers = {"Content-Disposition": f'attachment; filename="sales-{export.pk}.csv"'}
    return HttpResponse(export.content, content_type="text/csv; charset=utf-8", headers=headers)


def _office(request: HttpRequest, form: CampaignForm) -> HttpResponse:
    exports = list(Export.objects.all()[:5])
    jobs = Job.objects.in_bulk([export.job_id for export in exports if export.job_id])
    context = {
        "form": form,
        "campaigns": Campaign.objects.all()[:5],
        "exports": [(export, jobs.get(export.job_id)) for export in exports],
        "unfinished": any(job.state in UNFINISHED for job in jobs.values()),
    }
    return render(request, "shop/office.html", context, status=400 if form.is_bound else 200)


def _described(jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """What a customer may know of each job: not its arguments, and of an error only the message."""
    return [
        {
            "name": job.task.rpartition(".")[2].replace("_", " "),
            "state": job.state,
            "attempts": job.attempts,
            "max_attempts": job.max_attempts,
            "run_after": job.run_after if job.state in ("scheduled", "retrying") else None,
            "finished_at": job.finished_at,
            "error": job.history[-1]["message"] if job.history and job.state != "succeeded" else "",
            "tries_that_failed": len(job.history),
        }
        for job in jobs
    ]

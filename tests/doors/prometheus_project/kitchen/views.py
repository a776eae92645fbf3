"""What guests do."""

from django.db import transaction
from django.http import HttpRequest, HttpResponse

from .tasks import cook


def order(request: HttpRequest, count: int) -> HttpResponse:
    with transaction.atomic():
        for _ in range(count):
            cook.enqueue("soup")
    return HttpResponse("ordered\n")

"""What the kitchen does."""

from asgiref.sync import sync_to_async
from django.db import connection
from prometheus_client import Counter

from pgqueue_django import task

COOKED = Counter("kitchen_cooked", "What has left the kitchen.", ["dish"])


def _look_up(dish: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s", [dish])
    COOKED.labels(dish).inc()


@task
def cook(dish: str) -> None:
    _look_up(dish)


@task(atomic=True, timeout=30)
def cook_atomic(dish: str) -> None:
    _look_up(dish)


@task
async def cook_async(dish: str) -> None:
    await sync_to_async(_look_up)(dish)

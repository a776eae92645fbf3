"""An app whose ``ready`` queries the database, as many do: whoever starts other processes has a connection then."""

from django.apps import AppConfig
from django.db import connection


class Early(AppConfig):
    name = "tests.machine.early"

    def ready(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")

"""A project of somebody's who has django-prometheus; test_beside_django_prometheus.py starts its processes.

``manage.py`` and a command of Django's, or ``manage.py serve``: its web process, on a port that it prints.
"""

import os
import sys
from wsgiref.simple_server import make_server


def serve() -> None:
    from django.core.wsgi import get_wsgi_application

    with make_server("127.0.0.1", 0, get_wsgi_application()) as server:
        print(f"on port {server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    from django.core.management import execute_from_command_line

    serve() if sys.argv[1:] == ["serve"] else execute_from_command_line(sys.argv)

"""The queue's metrics on a page that the project has already, such as django-prometheus'.

``path("metrics", beside(ExportToDjangoView))``. In its multiprocess mode that page knows files alone, so what is
registered would be missing from it: ours is appended to the answer. Their page comes whatever ours has to say.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import add_never_cache_headers, patch_vary_headers

from . import answers, views
from . import metrics as exposition

logger = logging.getLogger("pgqueue_django")

_END = b"# EOF\n"  # the last line of OpenMetrics


def beside(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """``view`` with ours at the end, for who may see ``/pgqueue/metrics``; for others it is as it was.

    ``view``: a plain one that answers in a text format of Prometheus. Where the database does not answer,
    ``pgqueue_up 0`` is all that there is of ours.
    """

    @wraps(view)
    def both(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        answer = view(request, *args, **kwargs)
        content_type = answer.headers.get("Content-Type", "")
        kind = content_type.partition(";")[0].strip()
        if (
            not isinstance(answer, HttpResponse)
            or answer.status_code != 200
            or kind not in ("text/plain", "application/openmetrics-text")
            or answer.has_header("Content-Encoding")
        ):
            return answer
        # What there is depends on who asks.
        patch_vary_headers(answer, ("Authorization", "Cookie"))
        ours = _ours(request, content_type)
        if ours is None:
            return answer
        theirs = answer.content.removesuffix(_END)
        end = _END if kind != "text/plain" else b""
        answer.content = (
            theirs + (b"" if theirs.endswith(b"\n") or not theirs else b"\n") + ours.removesuffix(_END) + end
        )
        if answer.has_header("Content-Length"):
            answer.headers["Content-Length"] = str(len(answer.content))
        add_never_cache_headers(answer)
        return answer

    return both


def _ours(request: HttpRequest, content_type: str) -> bytes | None:
    """In the format of that content type; None: not for who asks."""
    until = answers.until()
    taken = None
    try:
        if views.metrics_refusal(request, until):
            return None
        taken = answers.shared.reading(until)
    except answers.Unanswered as error:
        logger.warning("metrics: %s", error)
    except Exception:  # sessions that cannot be read, a backend of somebody's: theirs comes all the same
        logger.exception("metrics: nobody can say who asks")
        return None
    return exposition.render(taken, content_type)[0]

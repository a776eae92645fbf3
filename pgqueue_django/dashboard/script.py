"""What the dashboard's script is given: its file, and the words for what changes between two frames."""

from __future__ import annotations

from django.forms import Media
from django.forms.widgets import Script
from django.utils.translation import gettext, pgettext

# Later than the page, which is whole without it.
MEDIA = Media(
    css={"all": ["pgqueue_django/dashboard.css"]},
    js=[Script("pgqueue_django/dashboard.js", defer=True)],  # type: ignore[list-item]
)


def words() -> dict[str, str]:
    """The script's texts in the language of who looks, by the names that it has for them."""
    return {
        "ms": gettext("%(n)s ms"),
        "s": gettext("%(n)s s"),
        "min": gettext("%(n)s min"),
        "h": gettext("%(n)s h"),
        "d": gettext("%(n)s d"),
        "ago": gettext("%(time)s ago"),
        "ahead": gettext("in %(time)s"),
        "expired": gettext("lease expired, waiting for a worker to take it back"),
        "live": gettext("Live: as of %(time)s"),
        "paused": gettext("Paused: as of %(time)s"),
        "pause": gettext("Pause updates"),
        "resume": gettext("Go on"),
        "away": gettext("Database unreachable since %(time)s, data is %(age)s old."),
        "silent": gettext("The server has not answered since %(time)s, data is %(age)s old."),
        "login": gettext("You are logged out, or may not see this any more."),
        "again": gettext("Log in again"),
        "clock": gettext("The clock of this computer and that of the database differ by %(time)s."),
        "problems": gettext("Problems: %(count)s."),
        "well": gettext("Nothing is wrong."),
        "moment": pgettext("queue", "Time"),
        "none": pgettext("queue", "no value"),
        "reason": pgettext("queue", "Reason"),
    }

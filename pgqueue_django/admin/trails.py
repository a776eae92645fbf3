"""What the admin's pages tell the audit log: who acted, on what, and why if it was said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.contrib.admin.views.main import SEARCH_VAR
from django.http import HttpRequest
from django.utils.translation import pgettext_lazy

from pgqueue_django.audit import MAX_REASON, Action, Trail

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = object


class TrailMixin(_ModelAdmin):
    """Beside the actions of the list there is a field for the reason; nobody has to fill it in."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

        # Of whatever base class there is: another admin theme has a form of its own.
        class ActionForm(self.action_form):  # type: ignore[misc,name-defined]
            # Not longer is the browser's part and Trail's: Django would take a wrong form for one without an action.
            reason = forms.CharField(
                required=False,
                label=pgettext_lazy("queue", "Reason:"),
                widget=forms.TextInput(attrs={"maxlength": MAX_REASON, "class": "pgq-reason"}),
            )

        self.action_form = ActionForm  # type: ignore[misc]

    def trail(self, request: HttpRequest, using: str, action: Action, target: str) -> Trail:
        """Of the user who asks, with the reason that came with the request, if one did."""
        return Trail(
            using,
            actor=request.user.get_username(),
            action=action,
            target=target,
            # A list that has its actions above and below has two fields.
            reason=next(filter(str.strip, request.POST.getlist("reason")), "").replace("\0", ""),
        )

    def among(self, request: HttpRequest) -> str:
        """The filter and the search of the list that somebody chose from."""
        filters = [one[0] if isinstance(one, list | tuple) else one for one in self.list_filter]
        known = {getattr(one, "parameter_name", one) for one in filters}
        chosen = [f"{name}={value}" for name, value in request.GET.items() if {name, name.split("__")[0]} & known]
        words = request.GET.get(SEARCH_VAR, "").strip()
        return ", ".join([*chosen, *([self.search_told(words)] if words else [])])

    def search_told(self, words: str) -> str:
        return words

"""A page that is searched for and that refers to an image."""

from __future__ import annotations

from django.db import models
from wagtail.admin.panels import FieldPanel
from wagtail.fields import RichTextField
from wagtail.models import Page
from wagtail.search import index


class Recipe(Page):
    body = RichTextField(blank=True)
    photo = models.ForeignKey("wagtailimages.Image", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")

    content_panels = [*Page.content_panels, FieldPanel("body"), FieldPanel("photo")]
    search_fields = [*Page.search_fields, index.SearchField("body")]

    class Meta:
        app_label = "cms"

    def __str__(self) -> str:
        return self.title

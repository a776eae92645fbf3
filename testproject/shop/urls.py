"""The URLs of the shop's pages."""

from django.urls import path

from . import views

app_name = "shop"
urlpatterns = [
    path("", views.catalogue, name="catalogue"),
    path("orders/<uuid:public_id>/", views.show_order, name="order"),
    path("orders/<uuid:public_id>/invoice.pdf", views.invoice, name="invoice"),
    path("office/", views.office, name="office"),
    path("office/campaigns/", views.send_campaign, name="campaigns"),
    path("office/exports/", views.start_export, name="exports"),
    path("office/exports/<int:export_id>.csv", views.download_export, name="export"),
]

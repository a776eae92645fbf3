"""The URLs of the shop."""

from django.contrib import admin
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("", include("testproject.shop.urls")),
    path("admin/", admin.site.urls),
    path("pgqueue/", include("pgqueue_django.urls")),
    path("status/", include("pgqueue_django.public_urls")),
    # Browsers ask for it on pages that name no icon, such as the admin's.
    path("favicon.ico", RedirectView.as_view(url=static("shop/icon.svg"))),
]

"""The shop's tables in the admin."""

from __future__ import annotations

from django.contrib import admin

from .models import Order, OrderLine, Product


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("name", "price")
    search_fields = ("name",)


class OrderLineInline(admin.TabularInline):  # type: ignore[type-arg]
    model = OrderLine
    extra = 0


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("pk", "customer", "total", "placed_at")
    ordering = ("-pk",)
    inlines = (OrderLineInline,)

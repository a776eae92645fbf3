"""The forms of the shop's pages."""

from __future__ import annotations

from typing import Any

from django import forms

from .models import Campaign, Order, OrderLine, Product


class OrderForm(forms.Form):
    """A quantity of every product, and who wants them."""

    customer = forms.CharField(label="Your name", max_length=80)
    email = forms.EmailField(label="E-mail")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.products = list(Product.objects.all())
        for product in self.products:
            self.fields[f"quantity_{product.pk}"] = forms.IntegerField(
                label=f"Quantity of {product.name}", min_value=0, max_value=20, required=False, initial=0
            )

    def shelf(self) -> list[tuple[Product, forms.BoundField]]:
        """Every product with the field of its quantity."""
        return [(product, self[f"quantity_{product.pk}"]) for product in self.products]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if not self.errors and not any(cleaned[f"quantity_{product.pk}"] for product in self.products):
            raise forms.ValidationError("Choose at least one thing.")
        return cleaned

    def save(self) -> Order:
        """Write the order and its lines."""
        wanted = [
            (product, quantity)
            for product in self.products
            if (quantity := self.cleaned_data[f"quantity_{product.pk}"])
        ]
        order = Order.objects.create(
            customer=self.cleaned_data["customer"],
            email=self.cleaned_data["email"],
            total_cents=sum(product.price_cents * quantity for product, quantity in wanted),
        )
        OrderLine.objects.bulk_create(
            OrderLine(order=order, product=product, quantity=quantity, price_cents=product.price_cents)
            for product, quantity in wanted
        )
        return order


class CampaignForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = Campaign
        fields = ("subject", "recipients")

    recipients = forms.IntegerField(min_value=1, max_value=10_000, initial=200)

"""Pages of spend caps and quotes."""

from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest
from unfold.widgets import UnfoldAdminDecimalFieldWidget

from control.billing.spending.models import SpendCap
from control.billing.spending.schemas import MAX_USD, nanousd
from control.billing.spending.selectors import month_start, spent_nanousd
from control.billing.spending.services import spend_cap_create, spend_cap_delete, spend_cap_update
from control.operations.console.base import CreatableAdmin, service_action
from control.operations.console.form_pages import FormAdmin, form_action
from control.operations.console.rendering import duration, link, table, usd
from control.operations.console.sidebar import SidebarEntry
from control.workflows.batches.caps import batches_paused, quote_spent_nanousd
from control.workflows.quotes.models import Quote
from control.workflows.quotes.requests import CHANGE_CAP, CREATE_QUOTE
from control.workflows.quotes.services import quote_settle


class SpendCapForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable at run time
    usd = forms.DecimalField(
        label="USD a month",
        min_value=0,
        max_value=MAX_USD,
        max_digits=19,
        decimal_places=9,
        widget=UnfoldAdminDecimalFieldWidget,
    )

    class Meta:
        model = SpendCap
        fields = ("organization", "project")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.nanousd is not None:
            self.fields["usd"].initial = Decimal(self.instance.nanousd).scaleb(-9)  # exact; the function `usd` rounds

    def clean_project(self) -> Any:
        project, organization = self.cleaned_data["project"], self.cleaned_data.get("organization")
        if project is not None and project.organization != organization:
            raise forms.ValidationError("This project belongs to another organization.")
        return project


@admin.register(SpendCap)
class SpendCapAdmin(CreatableAdmin):
    scope = "spend_caps"
    sidebar = SidebarEntry("Tenants", 4, "Spend caps", "savings")
    form = SpendCapForm
    list_display = ["organization", "project", "monthly_limit", "spent", "created_at"]
    list_filter = ["organization"]
    list_select_related = ["organization", "project"]
    actions_detail = ["remove"]

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        form_fields = ["organization", "project", "usd"]
        return form_fields if obj is None else [*form_fields, "spent", "paused_batches", "created_at"]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        return [] if obj is None else ["organization", "project", "spent", "paused_batches", "created_at"]

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.has_operate_permission(request)

    def save_model(self, request: HttpRequest, obj: SpendCap, form: Any, change: bool) -> None:
        amount = nanousd(form.cleaned_data["usd"])
        if change:
            spend_cap_update(cap=obj, nanousd=amount)
            return
        created = spend_cap_create(organization=obj.organization, project=obj.project, nanousd=amount)
        obj.__dict__.update(created.__dict__)

    @admin.display(description="USD a month", ordering="nanousd")
    def monthly_limit(self, row: SpendCap) -> str:
        return usd(row.nanousd)

    @admin.display
    def spent(self, row: SpendCap) -> str:
        return f"{usd(spent_nanousd(row))} since {month_start():%Y-%m-%d}"

    @admin.display(description="paused batches")
    def paused_batches(self, row: SpendCap) -> Any:
        paused = batches_paused().filter(organization=row.organization_id, job__paused__cap_id=row.pk)
        return table(row, "paused-batches", ["batch", "job"], [(link(batch), link(batch.job)) for batch in paused])

    @service_action("Remove", "Batches that were paused by this cap continue.", icon="money_off")
    def remove(self, row: SpendCap) -> str:
        spend_cap_delete(cap=row)
        return "The cap is removed."


@admin.register(Quote)
class QuoteAdmin(FormAdmin):
    scope = "pipelines"
    sidebar = SidebarEntry("Tenants", 5, "Quotes", "request_quote")
    create_form = CREATE_QUOTE
    list_display = ["id", "organization", "basis", "status", "cap", "spent", "created_at"]
    list_filter = ["status", "organization"]
    search_fields = ["id"]
    list_select_related = ["organization"]
    actions_detail = ["change_cap"]
    fields = [
        "id", "organization", "dataset", "basis", "status", "the_pilot", "output_tokens", "output_tokens_low",
        "output_tokens_high", "stage_costs", "cap", "spent", "created_at",
    ]  # fmt: skip

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Quote | None:
        """Completes the quote if its pilot has ended, as the API does when it returns a quote."""
        row: Quote | None = super().get_object(request, object_id, from_field)
        return None if row is None else quote_settle(quote=row)

    change_cap = form_action("change_cap", CHANGE_CAP, icon="savings", when=lambda row: True)

    @admin.display(description="cap, USD")
    def cap(self, row: Quote) -> str:
        return "–" if row.cap_nanousd is None else usd(row.cap_nanousd)

    @admin.display(description="spent, USD")
    def spent(self, row: Quote) -> str:
        return usd(quote_spent_nanousd(row.pk))

    @admin.display(description="cost of a pipeline, USD")
    def stage_costs(self, row: Quote) -> Any:
        header = ["stage", "low", "expected", "high", "device time, expected", "rests on"]
        lines = [
            [
                stage["name"],
                *map(usd, stage["nanousd"]),
                duration(stage["device_seconds"][1]),
                "; ".join(stage["rests_on"]),
            ]
            for stage in row.stages or []
        ]
        return table(row, "stage-costs", header, lines)

    @admin.display(description="pilot")
    def the_pilot(self, row: Quote) -> Any:
        return link(row.pilot)

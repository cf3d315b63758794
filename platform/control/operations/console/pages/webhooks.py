"""Pages of webhook endpoints and of the deliveries to them."""

from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString

from control.operations.console.base import RowsAdmin, service_action
from control.operations.console.rendering import badge, link, table
from control.operations.console.sidebar import SidebarEntry
from control.tenants.webhooks.models import WebhookDelivery, WebhookEndpoint
from control.tenants.webhooks.selectors import deliveries_list
from control.tenants.webhooks.services import delivery_replay, endpoint_test, endpoint_update

LATEST = 50


def _is_enabled(row: WebhookEndpoint) -> bool:
    return not row.disabled


def _is_disabled(row: WebhookEndpoint) -> bool:
    return bool(row.disabled)


@admin.register(WebhookEndpoint)
class WebhookEndpointAdmin(RowsAdmin):
    scope = "webhooks"
    sidebar = SidebarEntry("Tenants", 6, "Webhooks", "webhook")
    list_display = ["url", "organization", "patterns", "disabled", "failing_since", "created_at"]
    list_filter = ["disabled", "organization"]
    search_fields = ["url", "id"]
    list_select_related = ["organization"]
    actions_detail = ["test", "enable", "disable"]
    fields = [
        "id", "organization", "url", "description", "patterns", "disabled", "failing_since", "deliveries", "created_at",
    ]  # fmt: skip

    @admin.display(description="events")
    def patterns(self, row: WebhookEndpoint) -> str:
        return ", ".join(row.events)

    @admin.display
    def deliveries(self, row: WebhookEndpoint) -> SafeString:
        """The latest deliveries, newest first."""
        latest = deliveries_list(row).order_by("-created_at", "-pk")[:LATEST]
        lines = [
            (link(sent, sent.event.type), _badge(sent), sent.created_at, _latest_result(sent.history), sent.object_id)
            for sent in latest
        ]
        return table(row, "deliveries", ["event", "status", "created", "last response", "object"], lines)

    @service_action("Send a test", "Sends a test event to this endpoint only.", icon="send", when=_is_enabled)
    def test(self, row: WebhookEndpoint) -> str:
        return f"The delivery {endpoint_test(endpoint=row).pk} is queued."

    @service_action("Enable", "Pending deliveries are sent from now on.", icon="play_arrow", when=_is_disabled)
    def enable(self, row: WebhookEndpoint) -> str:
        return f"{endpoint_update(endpoint=row, changes={'enabled': True}).url} is enabled."

    @service_action(
        "Disable", "Deliveries wait until the endpoint is enabled again.", icon="pause", danger=True, when=_is_enabled
    )
    def disable(self, row: WebhookEndpoint) -> str:
        return f"{endpoint_update(endpoint=row, changes={'enabled': False}).url} is disabled."


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(RowsAdmin):
    scope = "webhooks"
    sidebar = SidebarEntry("Tenants", 7, "Deliveries", "outbox")
    list_display = ["id", "organization", "endpoint", "kind", "state", "attempt", "next_attempt_at", "created_at"]
    list_filter = ["status", "organization"]
    search_fields = ["id", "object_id"]
    ordering = ["-created_at", "-id"]
    list_select_related = ["organization", "endpoint", "event"]
    actions_detail = ["replay"]
    fields = [
        "id", "organization", "the_endpoint", "kind", "object_id", "state", "attempt", "next_attempt_at", "attempts",
        "created_at", "finished_at",
    ]  # fmt: skip

    @admin.display(description="event")
    def kind(self, row: WebhookDelivery) -> str:
        return row.event.type

    @admin.display(description="status", ordering="status")
    def state(self, row: WebhookDelivery) -> SafeString:
        return _badge(row)

    @admin.display(description="endpoint")
    def the_endpoint(self, row: WebhookDelivery) -> SafeString | str:
        return link(row.endpoint)

    @admin.display
    def attempts(self, row: WebhookDelivery) -> SafeString:
        lines = [
            (attempt.get("at"), attempt.get("status_code") or "–", attempt.get("error") or "–")
            for attempt in reversed(row.history)
        ]
        return table(row, "attempts", ["at", "status code", "error"], lines)

    @service_action("Replay", "Sends the event again, with the same webhook-id.", icon="replay")
    def replay(self, row: WebhookDelivery) -> str:
        return f"The delivery {delivery_replay(delivery=row).pk} is queued."


def _badge(row: WebhookDelivery) -> SafeString:
    return badge(row, row.status, active=row.status == WebhookDelivery.Status.PENDING)


def _latest_result(history: list[dict[str, Any]]) -> str:
    if not history:
        return "–"
    return str(history[-1].get("status_code") or history[-1].get("error") or "–")

"""The page of an organization: its usage, limits, API keys, projects, members, webhooks and audit log."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.db.models import Model, Q
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from control.billing.ledger.months import is_closed, month_of, previous_month
from control.billing.spending.selectors import spend_caps_list, spent_nanousd, spent_this_month
from control.billing.thresholds.models import Threshold
from control.billing.usage.schemas import Amount
from control.billing.usage.selectors import WIDTHS, Sums, Window, usage_buckets, usage_total
from control.operations.console.base import CreatableAdmin, read_once, service_action
from control.operations.console.form_pages import form_action
from control.operations.console.rendering import link, number, page_url, table, usd
from control.operations.console.sidebar import SidebarEntry
from control.operations.console.visitors import member_may, member_of
from control.queue.jobs.models import Job
from control.serving.deployments.quota import devices_occupied
from control.serving.deployments.selectors import deployments_list
from control.tenants.accounts.models import ApiKey, Member, Organization, Project
from control.tenants.accounts.scopes import ADMIN
from control.tenants.administration.services import organization_create, organization_two_factor_set
from control.tenants.audit.selectors import audit_events_list
from control.tenants.quotas.models import Limits
from control.tenants.quotas.quota import quota_of
from control.tenants.quotas.storage import stored_bytes
from control.tenants.webhooks.selectors import endpoints_list
from control.workflows.offboarding.requests import DELETE_ORGANIZATION
from control.workflows.offboarding.services import organization_deletion_cancel, organization_export_create

USAGE_DAYS = 14
INVOICE_MONTHS = 12
LATEST = 20
ADMIN_SECTIONS = ("keys", "projects", "members", "webhooks", "audit")


@admin.register(Organization)
class OrganizationAdmin(CreatableAdmin):
    scope = "usage"
    sidebar = SidebarEntry("Tenants", 1, "Organizations", "domain")
    list_display = ["name", "id", "created_at"]
    search_fields = ["name", "id"]
    fields = ["name"]
    actions_detail = ["require_two_factor", "allow_password_only", "export", "delete", "cancel_deletion"]
    delete = form_action("delete", DELETE_ORGANIZATION, icon="delete_forever", when=lambda row: not _is_leaving(row))

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        if obj is None:
            return ["name"]
        member = member_of(request)
        shown = ["name", "id", "created_at", "two_factor", "deletion"]
        shown += ["usage", "invoices", "quota"]
        if member is None:
            return [*shown, "change_limits", *ADMIN_SECTIONS]
        return [*shown, *ADMIN_SECTIONS] if member_may(member, ADMIN, "GET") else shown

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        return [] if obj is None else self.get_fields(request, obj)

    def visible_to(self, organization: Organization) -> Q:
        return Q(pk=organization.pk)

    def changeable_by(self, organization: Organization) -> Q:
        return Q(pk=organization.pk)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return member_of(request) is None and super().has_add_permission(request)

    def has_operate_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        member = member_of(request)
        return member_may(member, ADMIN, "POST") if member else super().has_operate_permission(request, object_id)

    def create(self, request: HttpRequest, values: dict[str, Any]) -> Organization:
        return organization_create(name=values["name"])

    @admin.display(description=f"usage of the last {USAGE_DAYS} days")
    def usage(self, row: Organization) -> SafeString:
        today = timezone.now().astimezone(dt.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        end = today + dt.timedelta(days=1)
        start = end - dt.timedelta(days=USAGE_DAYS)
        days = usage_buckets(row, window=Window(start=start, end=end, width=WIDTHS["1d"]))
        lines = [(f"{day.start:%Y-%m-%d}", *_figures(sums)) for day in reversed(days) for sums in day.sums]
        total = ("total", *_figures(usage_total(row, start=start, end=end)))
        return table(row, "usage", ["day (UTC)", "requests", "input", "cached", "output", "USD"], [total, *lines])

    @admin.display
    def invoices(self, row: Organization) -> SafeString:
        """Links to the latest monthly invoices, newest first, back to the month in which the row was created."""
        month, lines = month_of(timezone.now()), list[tuple[object, str]]()
        while len(lines) < INVOICE_MONTHS and month >= month_of(row.created_at):
            name = f"{month:%Y-%m}"
            file = format_html(
                '<a class="console-link" href="{}">{}.csv</a>',
                reverse("organization-invoice", args=[row.pk, name]),
                name,
            )
            lines.append((file, "final" if is_closed(month) else "may still change"))
            month = previous_month(month)
        return table(row, "invoices", ["month (UTC)", ""], lines)

    @admin.display(description="limits")
    @read_once
    def quota(self, row: Organization) -> SafeString:
        quota, jobs, stored = quota_of(row.pk), Job.objects.filter(organization=row), stored_bytes(row.pk)
        lines = [
            ("queued jobs", number(jobs.filter(status=Job.Status.QUEUED).count()), number(quota.queued_jobs)),
            ("running jobs", number(jobs.filter(status=Job.Status.RUNNING).count()), number(quota.running_jobs)),
            ("deployments", number(deployments_list(row).count()), number(quota.deployments)),
            ("devices of endpoints", number(devices_occupied(row.pk)), number(quota.devices)),
            ("storage", filesizeformat(sum(stored.values())), filesizeformat(quota.storage_bytes)),
            *((f"storage: {part}", filesizeformat(num_bytes), "–") for part, num_bytes in stored.items()),
            ("requests a minute", "–", number(quota.requests_per_minute)),
        ]
        for cap in spend_caps_list(row).select_related("project"):
            title = f"USD this month, {cap.project or 'all projects'}"
            lines.append((link(cap, title), usd(spent_nanousd(cap)), usd(cap.nanousd)))
        for threshold in Threshold.objects.filter(organization=row).select_related("project").order_by("unit", "value"):
            title = f"threshold of {threshold.project or 'all projects'}"
            lines.append((title, usd(spent_this_month(row.pk, threshold.project_id)), str(threshold)))
        return table(row, "limits", ["", "current", "limit"], lines)

    @admin.display(description="")
    def change_limits(self, row: Organization) -> SafeString:
        limits = Limits.objects.filter(pk=row.pk).first()
        page = page_url(limits) if limits else f"{reverse('admin:tenancy_limits_add')}?organization={row.pk}"
        return format_html('<a class="console-link" href="{}">Change limits</a>', page)

    @admin.display(description="second factor")
    def two_factor(self, row: Organization) -> str:
        return "required of all members" if row.requires_two_factor else "optional"

    @service_action(
        "Require a second factor",
        "Members without an authenticator app must set one up before they see anything.",
        icon="phonelink_lock",
        when=lambda row: not row.requires_two_factor,
    )
    def require_two_factor(self, row: Organization) -> str:
        organization_two_factor_set(organization=row, required=True)
        return "All members now need a second factor."

    @service_action(
        "Make the second factor optional",
        "Members may then sign in with a password only.",
        icon="lock_open",
        danger=True,
        when=lambda row: row.requires_two_factor,
    )
    def allow_password_only(self, row: Organization) -> str:
        organization_two_factor_set(organization=row, required=False)
        return "The second factor is optional now."

    @admin.display(description="deletion")
    def deletion(self, row: Organization) -> str:
        if row.erase_after is None:
            return "not requested"
        return f"requested; it can be cancelled until {row.erase_after:%Y-%m-%d %H:%M} UTC"

    @service_action("Export everything", "Makes an archive of all objects and files.", icon="archive")
    def export(self, row: Organization) -> str:
        return f"{organization_export_create(organization=row)} is being made; see the page of exports."

    @service_action(
        "Cancel the deletion",
        "API keys work again. Jobs and deployments that were stopped stay stopped.",
        icon="undo",
        when=lambda row: _is_leaving(row),
    )
    def cancel_deletion(self, row: Organization) -> str:
        organization_deletion_cancel(organization=row)
        return "The deletion is cancelled."

    @admin.display(description="API keys")
    def keys(self, row: Organization) -> SafeString:
        keys = ApiKey.objects.filter(organization=row).order_by("-created_at")[:LATEST]
        lines = [(link(key), ", ".join(key.scopes), key.last_used_at or "–", _validity(key)) for key in keys]
        return table(row, "keys", ["key", "scopes", "last used", ""], lines)

    @admin.display
    def projects(self, row: Organization) -> str:
        return ", ".join(Project.objects.filter(organization=row).values_list("name", flat=True)) or "–"

    @admin.display
    def members(self, row: Organization) -> SafeString:
        members = Member.objects.filter(organization=row).select_related("user", "organization")
        return table(row, "members", ["user", "role"], [(link(member), member.role) for member in members])

    @admin.display(description="webhook endpoints")
    def webhooks(self, row: Organization) -> SafeString:
        lines = [
            (link(endpoint), ", ".join(endpoint.events), endpoint.disabled.replace("_", " ") or "enabled")
            for endpoint in endpoints_list(row)
        ]
        return table(row, "webhooks", ["URL", "events", ""], lines)

    @admin.display(description="latest audit events")
    def audit(self, row: Organization) -> SafeString:
        events = audit_events_list(row).order_by("-created_at", "-pk")[:LATEST]
        keys = ApiKey.objects.in_bulk({event.actor_id for event in events})
        lines = [(event.created_at, event.action, event.object_id, _actor(event.actor_id, keys)) for event in events]
        return table(row, "audit", ["at", "action", "object", "by"], lines)


def _is_leaving(row: Organization) -> bool:
    return row.deletion_requested_at is not None


def _actor(identity: str, keys: Mapping[str, ApiKey]) -> SafeString | str:
    """Links to an API key; a console user's identity is already a readable name."""
    return link(keys[identity]) if identity in keys else identity


def _figures(sums: Sums) -> tuple[str, ...]:
    counts = sums.counts
    cost = Amount.of(counts["input_nanousd"] + counts["output_nanousd"]).value
    names = ("requests", "input_tokens", "cached_tokens", "output_tokens")
    return (*(number(counts[name]) for name in names), f"{cost:,.2f}")


def _validity(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None:
        return f"{'expired' if key.expires_at <= timezone.now() else 'until'} {key.expires_at:%Y-%m-%d %H:%M} UTC"
    return "valid"

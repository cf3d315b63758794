"""Pages of the exports of organizations. The page of an organization has the button that requests one."""

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from control.operations.console.base import RowsAdmin, service_action
from control.operations.console.rendering import badge
from control.operations.console.sidebar import SidebarEntry
from control.operations.console.visitors import member_of
from control.tenants.accounts.scopes import EVERYTHING
from control.workflows.offboarding.models import OrganizationExport
from control.workflows.offboarding.services import organization_export_delete


@admin.register(OrganizationExport)
class OrganizationExportAdmin(RowsAdmin):
    scope = EVERYTHING
    sidebar = SidebarEntry("Tenants", 9, "Exports", "archive")
    list_display = ["id", "organization", "state", "created_at"]
    list_filter = ["organization"]
    search_fields = ["id"]
    list_select_related = ["organization"]
    actions_detail = ["remove"]
    fields = ["id", "organization", "state", "size", "archive", "created_at", "finished_at", "expires_at"]

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        """Operators do not download archives, because these contain text of customers."""
        return [name for name in self.fields if member_of(request) is not None or name != "archive"]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        return self.get_fields(request, obj)

    @admin.display(description="status")
    def state(self, row: OrganizationExport) -> SafeString:
        return badge(row, row.status, active=row.status == OrganizationExport.Status.RUNNING)

    @admin.display
    def size(self, row: OrganizationExport) -> str:
        return filesizeformat(row.size_bytes)

    @admin.display
    def archive(self, row: OrganizationExport) -> SafeString | str:
        if row.status != OrganizationExport.Status.COMPLETED:
            return "–"
        url = reverse("organization-export", args=[row.pk])
        return format_html('<a class="console-link" href="{}">{}.tar</a>', url, row.pk)

    @service_action("Delete", "The archive is deleted, even if it is incomplete.", icon="delete", danger=True)
    def remove(self, row: OrganizationExport) -> str:
        organization_export_delete(export=row)
        return "The archive is being deleted."

"""Pages of LoRA adapters."""

from django.contrib import admin
from django.utils.safestring import SafeString

from control.models.adapters.models import Adapter
from control.models.adapters.requests import CREATE_ADAPTER
from control.models.adapters.services import adapter_delete
from control.operations.console.base import service_action
from control.operations.console.form_pages import FormAdmin
from control.operations.console.rendering import link, table
from control.operations.console.sidebar import SidebarEntry
from control.serving.deployments.models import Deployment


@admin.register(Adapter)
class AdapterAdmin(FormAdmin):
    scope = "models"
    sidebar = SidebarEntry("Serving", 6, "Adapters", "extension")
    create_form = CREATE_ADAPTER
    list_display = ["name", "organization", "base_model", "rank", "created_at"]
    list_filter = ["organization"]
    search_fields = ["name", "id"]
    list_select_related = ["organization", "base_model"]
    actions_detail = ["remove"]
    fields = [
        "id",
        "name",
        "organization",
        "base_model",
        "rank",
        "target_modules",
        "size_bytes",
        "served",
        "created_at",
    ]

    @admin.display(description="served by")
    def served(self, row: Adapter) -> SafeString:
        serving = Deployment.objects.filter(adapters=row, deleted_at=None)
        return table(
            row, "served", ["deployment", "state"], [(link(deployment), deployment.state) for deployment in serving]
        )

    @service_action(
        "Delete",
        "The adapter's files are deleted. An adapter that a deployment serves cannot be deleted.",
        icon="delete",
        danger=True,
    )
    def remove(self, row: Adapter) -> str:
        adapter_delete(adapter=row)
        return "The adapter is deleted."

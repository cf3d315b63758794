"""Pages of captures, which keep requests to a deployment."""

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString

from control.operations.console.base import RowsAdmin, service_action
from control.operations.console.form_pages import add_form_action
from control.operations.console.pages.serving import DeploymentAdmin, is_not_deleted
from control.operations.console.rendering import link, number
from control.operations.console.sidebar import SidebarEntry
from control.serving.captures.models import Capture, CapturedRequest
from control.serving.captures.requests import SET_CAPTURE
from control.serving.captures.services import capture_end, capture_export


@admin.register(Capture)
class CaptureAdmin(RowsAdmin):
    scope = "deployments"
    sidebar = SidebarEntry("Serving", 3, "Captures", "save")
    list_display = ["deployment", "organization", "hours", "kept", "created_at"]
    list_filter = ["organization"]
    search_fields = ["deployment__id", "deployment__name"]
    list_select_related = ["organization", "deployment"]
    actions_detail = ["make_file", "end"]
    fields = [
        "the_deployment",
        "organization",
        "hours",
        "sample_percent",
        "redact",
        "redact_patterns",
        "kept",
        "created_at",
    ]

    @admin.display(description="deployment")
    def the_deployment(self, row: Capture) -> SafeString | str:
        return link(row.deployment)

    @admin.display(description="requests kept")
    def kept(self, row: Capture) -> str:
        return number(CapturedRequest.objects.filter(deployment=row.deployment_id).count())

    @service_action(
        "Make a file", "Creates a file of all distinct requests that are kept, for use as prompts.", icon="draft"
    )
    def make_file(self, row: Capture) -> str:
        return format_html("The file {} is created.", link(capture_export(capture=row)))

    @service_action(
        "End",
        "No more requests are kept, and those that were kept are deleted. Files made from them stay.",
        icon="delete",
        danger=True,
    )
    def end(self, row: Capture) -> str:
        capture_end(capture=row)
        return "The capture has ended, and its requests are deleted."


add_form_action(DeploymentAdmin, "capture", SET_CAPTURE, icon="save", when=is_not_deleted, before="stop")

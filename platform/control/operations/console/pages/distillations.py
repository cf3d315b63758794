"""Pages of distillations."""

from django.contrib import admin
from django.utils.safestring import SafeString

from control.operations.console.base import service_action
from control.operations.console.form_pages import FormAdmin
from control.operations.console.rendering import badge, link, progress_bar
from control.operations.console.sidebar import SidebarEntry
from control.workflows.batches.state import TERMINAL
from control.workflows.distillations.models import Distillation
from control.workflows.distillations.requests import CREATE_DISTILLATION
from control.workflows.distillations.services import distillation_cancel


def _is_active(row: Distillation) -> bool:
    return row.batch.status not in TERMINAL


@admin.register(Distillation)
class DistillationAdmin(FormAdmin):
    scope = "pipelines"
    sidebar = SidebarEntry("Work", 3, "Distillations", "water_drop")
    create_form = CREATE_DISTILLATION
    list_display = ["id", "organization", "state", "created_at"]
    list_filter = ["organization"]
    search_fields = ["id"]
    list_select_related = ["organization", "batch__job"]
    actions_detail = ["cancel"]
    fields = ["id", "organization", "state", "progress", "the_batch", "created_at"]

    @admin.display(description="status")
    def state(self, row: Distillation) -> SafeString:
        return badge(row, row.batch.status, active=_is_active(row))

    @admin.display
    def progress(self, row: Distillation) -> SafeString:
        return progress_bar(row, row.batch.job.progress_done, row.batch.job.progress_total, "rows")

    @admin.display(description="batch")
    def the_batch(self, row: Distillation) -> SafeString | str:
        return link(row.batch)

    @service_action("Cancel", "Finished answers are kept.", icon="cancel", danger=True, when=_is_active)
    def cancel(self, row: Distillation) -> str:
        distillation_cancel(distillation=row)
        return "The distillation will end within seconds."

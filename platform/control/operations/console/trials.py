"""Distillations, adapters and rollouts."""

from django.contrib import admin
from django.utils.safestring import SafeString

from control.models.adapters.models import Adapter
from control.models.adapters.services import adapter_delete
from control.operations.console.asking import AskingAdmin
from control.operations.console.base import RowsAdmin, service_action
from control.operations.console.rendering import badge, error_text, link, number, progress_bar, table
from control.operations.console.serving_asks import CREATE_ADAPTER
from control.serving.deployments.models import Deployment
from control.serving.rollouts.models import Rollout
from control.serving.rollouts.services import rollout_cancel
from control.workflows.batches.state import TERMINAL
from control.workflows.distillations.models import Distillation
from control.workflows.distillations.requests import CREATE_DISTILLATION
from control.workflows.distillations.services import distillation_cancel

UNDER_WAY = (Rollout.Status.STARTING, Rollout.Status.CANARY)


def _is_active(row: Distillation) -> bool:
    return row.batch.status not in TERMINAL


@admin.register(Distillation)
class DistillationAdmin(AskingAdmin):
    asks = CREATE_DISTILLATION
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

    @service_action("Cancel", "Answers that are finished are kept.", icon="cancel", danger=True, when=_is_active)
    def cancel(self, row: Distillation) -> str:
        distillation_cancel(distillation=row)
        return "It ends within seconds."


@admin.register(Adapter)
class AdapterAdmin(AskingAdmin):
    asks = CREATE_ADAPTER
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
        return table(row, "served", ["deployment", "state"], [(link(found), found.state) for found in serving])

    @service_action("Delete", "Its files are deleted. One that is served stays.", icon="delete", danger=True)
    def remove(self, row: Adapter) -> str:
        adapter_delete(adapter=row)
        return "The adapter is deleted."


def _is_under_way(row: Rollout) -> bool:
    return row.status in UNDER_WAY


@admin.register(Rollout)
class RolloutAdmin(RowsAdmin):
    list_display = ["id", "organization", "deployment", "speculator", "state", "created_at"]
    list_filter = ["status", "organization"]
    search_fields = ["id"]
    list_select_related = ["organization", "deployment", "speculator"]
    actions_detail = ["cancel"]
    fields = [
        "id", "organization", "the_deployment", "the_canary", "speculator", "previous", "state", "decision", "compared",
        "share_percent", "min_requests", "max_acceptance_drop", "max_error_rate", "max_seconds", "created_at",
        "started_at", "finished_at",
    ]  # fmt: skip

    @admin.display(description="status", ordering="status")
    def state(self, row: Rollout) -> SafeString:
        return badge(row, row.status, active=row.finished_at is None)

    @admin.display
    def decision(self, row: Rollout) -> SafeString | str:
        return error_text(row.reason)

    @admin.display(description="on what it was decided")
    def compared(self, row: Rollout) -> SafeString:
        names = ("num_requests", "num_failed", "error_rate", "acceptance_length")
        lines = [(who, *(number(found.get(name)) for name in names)) for who, found in row.figures.items()]
        return table(row, "compared", ["", "requests", "lost", "error rate", "acceptance length"], lines)

    @admin.display(description="deployment")
    def the_deployment(self, row: Rollout) -> SafeString | str:
        return link(row.deployment)

    @admin.display(description="canary")
    def the_canary(self, row: Rollout) -> SafeString | str:
        return link(row.canary)

    @service_action("Roll back", "What served before goes on.", icon="undo", danger=True, when=_is_under_way)
    def cancel(self, row: Rollout) -> str:
        rollout_cancel(rollout=row)
        return "The rollout is rolled back."

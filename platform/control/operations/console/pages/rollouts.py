"""Pages of rollouts."""

from django.contrib import admin
from django.utils.safestring import SafeString

from control.operations.console.base import RowsAdmin, service_action
from control.operations.console.form_pages import add_form_action
from control.operations.console.pages.serving import DeploymentAdmin, should_run
from control.operations.console.rendering import badge, error_text, link, number, table
from control.operations.console.sidebar import SidebarEntry
from control.serving.rollouts.models import Rollout
from control.serving.rollouts.requests import ROLL_OUT
from control.serving.rollouts.services import rollout_cancel

CANCELLABLE = (Rollout.Status.STARTING, Rollout.Status.CANARY)


def _is_cancellable(row: Rollout) -> bool:
    return row.status in CANCELLABLE


@admin.register(Rollout)
class RolloutAdmin(RowsAdmin):
    scope = "deployments"
    sidebar = SidebarEntry("Serving", 2, "Rollouts", "science")
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

    @admin.display(description="figures of the decision")
    def compared(self, row: Rollout) -> SafeString:
        names = ("num_requests", "num_failed", "error_rate", "acceptance_length")
        lines = [(process, *(number(figures.get(name)) for name in names)) for process, figures in row.figures.items()]
        return table(row, "compared", ["", "requests", "failed", "error rate", "acceptance length"], lines)

    @admin.display(description="deployment")
    def the_deployment(self, row: Rollout) -> SafeString | str:
        return link(row.deployment)

    @admin.display(description="canary")
    def the_canary(self, row: Rollout) -> SafeString | str:
        return link(row.canary)

    @service_action(
        "Roll back",
        "The previous speculator serves all requests again.",
        icon="undo",
        danger=True,
        when=_is_cancellable,
    )
    def cancel(self, row: Rollout) -> str:
        rollout_cancel(rollout=row)
        return "The rollout is rolled back."


add_form_action(DeploymentAdmin, "roll_out", ROLL_OUT, icon="science", when=should_run, before="stop")

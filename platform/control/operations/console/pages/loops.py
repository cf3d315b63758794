"""Pages of retraining loops and their rounds."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from control.billing.usage.schemas import Amount
from control.operations.console.base import RowsAdmin, read_once, service_action
from control.operations.console.form_pages import add_form_action
from control.operations.console.pages.serving import DeploymentAdmin, is_not_deleted
from control.operations.console.rendering import badge, error_text, link, number, pairs, table
from control.operations.console.sidebar import SidebarEntry
from control.workflows.loops.models import Loop, LoopRound
from control.workflows.loops.requests import SET_LOOP
from control.workflows.loops.selectors import month_spend, rounds_list, with_cost
from control.workflows.loops.services import loop_delete, loop_update

NUM_ROUNDS = 20
_HEADER = ["round", "status", "trigger", "old acceptance", "new acceptance", "cost in USD", "since"]


def _acceptance(row: LoopRound, which: str) -> str:
    return number(((row.figures or {}).get(which) or {}).get("acceptance_length"))


def _is_enabled(row: Loop) -> bool:
    return row.enabled


def _is_disabled(row: Loop) -> bool:
    return not row.enabled


@admin.register(Loop)
class LoopAdmin(RowsAdmin):
    scope = "deployments"
    sidebar = SidebarEntry("Serving", 2, "Retraining loops", "autorenew")
    list_display = ["id", "organization", "deployment", "enabled", "created_at"]
    list_filter = ["enabled", "organization"]
    search_fields = ["id", "deployment__id", "deployment__name"]
    list_select_related = ["organization", "deployment"]
    actions_detail = ["switch_on", "switch_off", "delete"]
    fields = [
        "id", "organization", "the_deployment", "enabled", "why_blocked", "spent", "rounds", "shown_triggers",
        "shown_limits", "shown_recipe", "shown_gate", "shown_rollout", "created_at",
    ]  # fmt: skip

    @admin.display(description="deployment")
    def the_deployment(self, row: Loop) -> SafeString | str:
        return link(row.deployment)

    @admin.display(description="blocked")
    def why_blocked(self, row: Loop) -> SafeString | str:
        return error_text(row.blocked)

    @admin.display(description="spent this month, in USD")
    @read_once
    def spent(self, row: Loop) -> str:
        budget = "no budget" if row.budget_nanousd is None else f"of {Amount.of(row.budget_nanousd).value:,.2f}"
        return f"{Amount.of(month_spend(row.deployment)).value:,.2f} ({budget})"

    @admin.display
    @read_once
    def rounds(self, row: Loop) -> SafeString:
        """The latest rounds, newest first."""
        lines = [
            (
                link(each), badge(each, each.status, active=each.finished_at is None), each.get_trigger_display(),
                _acceptance(each, "old"), _acceptance(each, "new"),
                f"{Amount.of(each.cost_nanousd).value:,.2f}",
                each.created_at,
            )
            for each in rounds_list(row.deployment).order_by("-pk")[:NUM_ROUNDS]
        ]  # fmt: skip
        return table(row, "rounds", _HEADER, lines)

    @admin.display(description="triggers")
    def shown_triggers(self, row: Loop) -> SafeString:
        return pairs(row, "triggers", row.triggers)

    @admin.display(description="limits")
    def shown_limits(self, row: Loop) -> SafeString:
        return pairs(row, "limits", row.limits)

    @admin.display(description="recipe")
    def shown_recipe(self, row: Loop) -> SafeString:
        return pairs(row, "recipe", row.recipe)

    @admin.display(description="gate")
    def shown_gate(self, row: Loop) -> SafeString:
        return pairs(row, "gate", row.gate)

    @admin.display(description="rollout")
    def shown_rollout(self, row: Loop) -> SafeString:
        return pairs(row, "rollout", row.rollout)

    @service_action("Switch on", "Rounds begin again when a trigger applies.", icon="play_arrow", when=_is_disabled)
    def switch_on(self, row: Loop) -> str:
        loop_update(loop=row, enabled=True)
        return "The loop is switched on."

    @service_action(
        "Switch off", "Stops the running round. No other begins.", icon="stop", danger=True, when=_is_enabled
    )
    def switch_off(self, row: Loop) -> str:
        loop_update(loop=row, enabled=False)
        return "The loop is switched off."

    @service_action(
        "Delete", "Stops the running round and deletes the settings. The rounds stay.", icon="delete", danger=True
    )
    def delete(self, row: Loop) -> str:
        loop_delete(loop=row)
        return "The loop is deleted."


@admin.register(LoopRound)
class LoopRoundAdmin(RowsAdmin):
    scope = "deployments"
    sidebar = SidebarEntry("Serving", 2, "Retraining rounds", "history")
    list_display = [
        "id", "organization", "deployment", "state", "trigger", "old_acceptance", "new_acceptance", "cost",
        "created_at",
    ]  # fmt: skip
    list_filter = ["status", "trigger", "organization"]
    search_fields = ["id"]
    list_select_related = ["organization", "deployment"]
    fields = [
        "id", "organization", "the_deployment", "state", "trigger", "why", "old_acceptance", "new_acceptance", "cost",
        "the_previous", "the_pipeline", "the_rollout", "steps", "created_at", "finished_at",
    ]  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[LoopRound]:
        return with_cost(super().get_queryset(request))

    @admin.display(description="status", ordering="status")
    def state(self, row: LoopRound) -> SafeString:
        return badge(row, row.status, active=row.finished_at is None)

    @admin.display(description="reason")
    def why(self, row: LoopRound) -> SafeString | str:
        return error_text(row.reason)

    @admin.display(description="old acceptance length")
    def old_acceptance(self, row: LoopRound) -> str:
        return _acceptance(row, "old")

    @admin.display(description="new acceptance length")
    def new_acceptance(self, row: LoopRound) -> str:
        return _acceptance(row, "new")

    @admin.display(description="cost in USD")
    def cost(self, row: LoopRound) -> str:
        return f"{Amount.of(row.cost_nanousd).value:,.2f}"

    @admin.display(description="deployment")
    def the_deployment(self, row: LoopRound) -> SafeString | str:
        return link(row.deployment)

    @admin.display(description="previous speculator")
    def the_previous(self, row: LoopRound) -> SafeString | str:
        return link(row.previous)

    @admin.display(description="pipeline")
    def the_pipeline(self, row: LoopRound) -> SafeString | str:
        return link(row.pipeline)

    @admin.display(description="rollout")
    def the_rollout(self, row: LoopRound) -> SafeString | str:
        return link(row.rollout)

    @admin.display
    def steps(self, row: LoopRound) -> SafeString:
        lines = [(step["status"], step["at"]) for step in row.timeline]
        return table(row, "steps", ["status", "since, in Unix seconds"], lines)


add_form_action(DeploymentAdmin, "retrain", SET_LOOP, icon="autorenew", when=is_not_deleted, before="stop")

"""Pages of rollouts."""

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString

from control.operations.console.base import RowsAdmin, service_action
from control.operations.console.form_pages import add_form_action
from control.operations.console.pages.serving import DeploymentAdmin, should_run
from control.operations.console.rendering import badge, error_text, link, number, table
from control.operations.console.sidebar import SidebarEntry
from control.serving.rollouts.models import Rollout
from control.serving.rollouts.requests import ROLL_OUT
from control.serving.rollouts.services import CANCELLABLE, rollout_cancel

_FIGURES = {
    "num_requests": "requests",
    "num_failed": "failed",
    "acceptance_length": "acceptance length",
    "num_slow_first_token": "slow first tokens",
    "num_slow_inter_token": "slow between tokens",
    "num_equal": "equal",
    "num_different": "different",
    "num_not_comparable": "not comparable",
    "num_dropped": "dropped",
}


def _is_cancellable(row: Rollout) -> bool:
    return row.status in CANCELLABLE


def _gates(row: Rollout, name: str, verdict: Mapping[str, Any] | None) -> SafeString | str:
    if not verdict:
        return ""
    lines = [
        (gate.get("name"), gate.get("outcome"), *(_interval(gate.get(side)) for side in ("candidate", "stable")))
        for gate in verdict.get("gates", [])
    ]
    return table(row, name, ["gate", "outcome", "new speculator", "current speculator"], lines)


def _interval(interval: Mapping[str, float] | None) -> str:
    return "" if not interval else f"{interval['low']:.4f} – {interval['high']:.4f}"


def _evidence(row: Rollout, name: str, verdict: Mapping[str, Any] | None) -> SafeString | str:
    if not verdict:
        return ""
    sides = verdict.get("evidence", {})
    lines = [(side, *(number(sides[side].get(figure)) for figure in _FIGURES)) for side in sides]
    return table(row, name, ["", *_FIGURES.values()], lines)


@admin.register(Rollout)
class RolloutAdmin(RowsAdmin):
    scope = "deployments"
    sidebar = SidebarEntry("Serving", 2, "Rollouts", "science")
    list_display = ["id", "organization", "deployment", "speculator", "mode", "state", "created_at"]
    list_filter = ["status", "mode", "organization"]
    search_fields = ["id"]
    list_select_related = ["organization", "deployment", "speculator"]
    actions_detail = ["cancel"]
    fields = [
        "id", "organization", "the_deployment", "the_canary", "speculator", "previous", "mode", "state", "decision",
        "compared", "gates", "measured", "watch_gates", "watch_measured", "share_percent", "min_requests",
        "max_acceptance_drop", "max_error_rate", "alpha", "first_token_seconds", "inter_token_seconds",
        "max_slow_increase", "max_seconds", "max_requests", "on_undecided", "watch_seconds", "created_at",
        "started_at", "watched_at", "finished_at",
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

    @admin.display(description="gates of the trial")
    def gates(self, row: Rollout) -> SafeString | str:
        return _gates(row, "gates", row.trial)

    @admin.display(description="evidence of the trial")
    def measured(self, row: Rollout) -> SafeString | str:
        return _evidence(row, "measured", row.trial)

    @admin.display(description="gates after the promotion")
    def watch_gates(self, row: Rollout) -> SafeString | str:
        return _gates(row, "watch-gates", row.watch)

    @admin.display(description="evidence after the promotion")
    def watch_measured(self, row: Rollout) -> SafeString | str:
        return _evidence(row, "watch-measured", row.watch)

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

"""The opening of a deployment's page: its state, figures of the last minutes and hours, replicas and rollouts."""

import datetime as dt
from collections.abc import Mapping

from django.http import HttpRequest
from django.middleware.csrf import get_token
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.safestring import SafeString

from control.billing.usage.selectors import WIDTHS, Window
from control.operations.console.base import rows_of
from control.operations.console.charts import charts, lines_of
from control.operations.console.rendering import badge, link, table
from control.operations.console.visitors import member_may, member_of
from control.serving.acceptance.schemas import DeploymentAcceptance
from control.serving.deployments.figures import PeriodFigures, figures_by_bucket
from control.serving.deployments.models import AVAILABLE, Deployment, Replica
from control.serving.rollouts.models import Rollout
from control.tenants.accounts.scopes import INFERENCE

NUM_ROLLOUTS = 5
CHARTED_HOURS = 3
LIVE_MINUTES = 5
_CHARTED = ("acceptance_length", "tokens_per_second", "latency_seconds")
# In these states, the page updates itself. A ready deployment is among them, because its process may die at any time.
REFRESHED_STATES = (
    Deployment.State.PROVISIONING, Deployment.State.READY, Deployment.State.SLEEPING, Deployment.State.DEGRADED,
    Deployment.State.STOPPING,
)  # fmt: skip
_SENTENCES = {
    Deployment.State.PROVISIONING: "It is starting. Requests are answered as soon as a replica is ready.",
    Deployment.State.READY: "It answers requests.",
    Deployment.State.SLEEPING: "It sleeps and uses no memory of a device. The next request wakes it.",
    Deployment.State.DEGRADED: "Some of its replicas do not answer.",
    Deployment.State.STOPPING: "It is stopping: it finishes the requests that it has, and refuses new ones.",
    Deployment.State.STOPPED: "It is stopped and answers no requests.",
    Deployment.State.FAILED: "It has failed and answers no requests.",
}
# What the chat says in addition, because a message cannot be answered at once.
_CHAT_NOTES = {
    Deployment.State.PROVISIONING: "No replica is ready yet, so messages are refused.",
    Deployment.State.SLEEPING: "The next message wakes the deployment. It waits for at most 60 seconds.",
    Deployment.State.STOPPING: "The deployment is stopping, so messages are refused.",
    Deployment.State.STOPPED: "The deployment is stopped, so messages are refused. Start it to try it.",
    Deployment.State.FAILED: "The deployment has failed, so messages are refused. Start it to try it again.",
}


def deployment_opening(request: HttpRequest, row: Deployment) -> SafeString:
    by_minute, replicas = _figures(row), list(row.replicas.order_by("number"))
    context = {
        "row": row,
        "is_active": row.state in REFRESHED_STATES,
        "sentence": "It is deleted." if row.deleted_at else _SENTENCES[Deployment.State(row.state)],
        "live_minutes": LIVE_MINUTES,
        "figures": _live(by_minute),
        "acceptance": DeploymentAcceptance.of(row),
        "num_open": sum(replica.num_open for replica in replicas if replica.state in AVAILABLE),
        "num_available": sum(replica.state in AVAILABLE for replica in replicas),
        "charted_hours": CHARTED_HOURS,
        "charts": _charts(row, by_minute),
        "replicas": _replica_table(row, replicas),
        "rollouts": _rollout_table(request, row),
        "blocked": next((replica.blocked for replica in replicas if replica.blocked is not None), None),
    }
    if _may_chat(request, row):
        context |= {"chat_token": get_token(request), "chat_note": _CHAT_NOTES.get(Deployment.State(row.state), "")}
    return render_to_string("console/openings/deployment.html", context)


def _may_chat(request: HttpRequest, row: Deployment) -> bool:
    """Only members chat, because a message costs their organization money. Requests cannot name a canary."""
    member = member_of(request)
    return (
        member is not None
        and member_may(member, INFERENCE, "POST")
        and row.deleted_at is None
        and row.canary_of_id is None
    )


def _figures(row: Deployment) -> Mapping[float, PeriodFigures]:
    """Returns the figures of each of the last minutes, oldest first.

    A key counts minutes from the end of the present minute, so it is negative.
    """
    minute = WIDTHS["1m"]
    end = timezone.now().astimezone(dt.UTC).replace(second=0, microsecond=0) + dt.timedelta(minutes=1)
    window = Window(start=end - dt.timedelta(hours=CHARTED_HOURS), end=end, width=minute)
    found = figures_by_bucket(row, window)
    return {(at - end).total_seconds() / minute.seconds: found[at] for at in sorted(found)}


def _live(by_minute: Mapping[float, PeriodFigures]) -> PeriodFigures:
    total = PeriodFigures()
    for minute, figures in by_minute.items():
        if minute >= -LIVE_MINUTES:
            total.add(figures.counts, figures.seconds)
    return total


def _charts(row: Deployment, by_minute: Mapping[float, PeriodFigures]) -> SafeString:
    entries = []
    for minute, figures in by_minute.items():
        values = {name: getattr(figures, name) for name in _CHARTED}
        entries.append((minute, {name: value for name, value in values.items() if value is not None}))
    return charts(f"{row.pk}-curves", lines_of(entries, _CHARTED), unit="minutes ago:")


def _replica_table(row: Deployment, replicas: list[Replica]) -> SafeString:
    """Lists the replicas without facts about the service's machines, because only operators see such facts."""
    lines = [
        (replica.number, replica.state, replica.num_open, replica.healthy_at or "–") for replica in replicas
    ]  # fmt: skip
    return table(row, "replicas", ["replica", "state", "requests in progress", "last seen healthy"], lines)


def _rollout_table(request: HttpRequest, row: Deployment) -> SafeString | str:
    """The latest rollouts, newest first; empty if there was none."""
    rollouts = rows_of(Rollout, request).filter(deployment=row).select_related("speculator").order_by("-pk")
    lines = [
        (link(rollout), link(rollout.speculator), badge(rollout, rollout.status, active=rollout.finished_at is None),
         f"{rollout.share_percent} %", rollout.created_at)
        for rollout in rollouts[:NUM_ROLLOUTS]
    ]  # fmt: skip
    header = ["rollout", "speculator", "status", "share of requests", "since"]
    return table(row, "rollouts", header, lines) if lines else ""

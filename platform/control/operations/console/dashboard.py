"""The overview page: counts of the main objects, the latest jobs, and the workers."""

from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from control.models.catalog.models import Speculator
from control.operations.console.base import rows_of
from control.operations.console.sidebar import navigation
from control.operations.console.visitors import member_of
from control.queue.jobs.models import Job, Worker
from control.queue.jobs.selectors import workers_alive
from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization
from control.tenants.accounts.people import memberships
from control.workflows.batches.models import Batch
from control.workflows.pipelines.models import Pipeline

NUM_LATEST_JOBS = 8


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Adds the contents of the overview page to the context, as Unfold's setting DASHBOARD_CALLBACK demands."""
    jobs = rows_of(Job, request).select_related("organization").order_by("-pk")[:NUM_LATEST_JOBS]
    if member_of(request) is not None:
        links = {item["link"] for section in navigation(request) for item in section["items"]}
        cards = [card for card in _cards(request) if card["link"] in links]
        return {**context, "cards": cards, "latest_jobs": jobs, "memberships": memberships(request.user)}
    shown = {"cards": [*_cards(request), _worker_card()], "workers": Worker.objects.order_by("role", "pk")}
    return {**context, **shown, "latest_jobs": jobs, "is_staff": True}


def _cards(request: HttpRequest) -> list[dict[str, Any]]:
    """Counts of the rows that the caller sees."""
    deployments = rows_of(Deployment, request).filter(deleted_at=None)
    jobs, pipelines = rows_of(Job, request), rows_of(Pipeline, request)
    ready = rows_of(Speculator, request).filter(status="ready")
    return [
        _card(
            "Deployments ready",
            deployments.filter(state="ready").count(),
            f"of {deployments.count()}",
            "deployments_deployment",
        ),
        _card("Jobs running", jobs.filter(status="running").count(), f"of {jobs.count()}", "jobs_job"),
        _card("Jobs failed", jobs.filter(status="failed").count(), f"of {jobs.count()}", "jobs_job"),
        _card(
            "Pipelines live", pipelines.filter(status="live").count(), f"of {pipelines.count()}", "pipelines_pipeline"
        ),
        _card("Speculators", ready.count(), "ready", "catalog_speculator"),
        _card("Batches", rows_of(Batch, request).count(), "in total", "batches_batch"),
        _card("Organizations", rows_of(Organization, request).count(), "in total", "accounts_organization"),
    ]


def _worker_card() -> dict[str, Any]:
    note = f"of {Worker.objects.count()}"
    return {"title": "Workers alive", "count": workers_alive().count(), "note": note, "link": reverse("queue")}


def _card(title: str, count: int, note: str, model: str) -> dict[str, Any]:
    return {"title": title, "count": count, "note": note, "link": reverse(f"admin:{model}_changelist")}

"""The overview page: counts of the main objects, the latest jobs, and the workers."""

from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from control.models.catalog.models import Speculator
from control.queue.jobs.models import Job, Worker
from control.queue.jobs.selectors import workers_alive
from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization
from control.workflows.batches.models import Batch
from control.workflows.pipelines.models import Pipeline

NUM_LATEST_JOBS = 8


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Unfold's DASHBOARD_CALLBACK."""
    jobs = Job.objects.select_related("organization").order_by("-pk")[:NUM_LATEST_JOBS]
    return {**context, "cards": _cards(), "latest_jobs": jobs, "workers": Worker.objects.order_by("role", "pk")}


def _cards() -> list[dict[str, Any]]:
    deployments = Deployment.objects.filter(deleted_at=None)
    jobs, pipelines, workers = Job.objects.all(), Pipeline.objects.all(), Worker.objects.all()
    queue = reverse("queue")
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
        {"title": "Workers alive", "count": workers_alive().count(), "note": f"of {workers.count()}", "link": queue},
        _card("Speculators", Speculator.objects.filter(status="ready").count(), "ready", "catalog_speculator"),
        _card("Batches", Batch.objects.count(), "in total", "batches_batch"),
        _card("Organizations", Organization.objects.count(), "in total", "accounts_organization"),
    ]


def _card(title: str, count: int, note: str, model: str) -> dict[str, Any]:
    return {"title": title, "count": count, "note": note, "link": reverse(f"admin:{model}_changelist")}

"""Pages of jobs: progress, history of events, charts of metrics, and the end of the log."""

from pathlib import Path
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.db.models import Model, Q
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from control.core.settings.config import get_config
from control.operations.console.base import RowsAdmin, read_once, service_action
from control.operations.console.charts import charts, lines_of
from control.operations.console.logs import log_tail
from control.operations.console.rendering import badge, error_text, link, pairs, position, progress_bar, table
from control.operations.console.sidebar import SidebarEntry
from control.queue.jobs.models import Job
from control.queue.jobs.selectors import job_events
from control.queue.jobs.services import job_cancel
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_cancel
from control.workflows.evaluations.models import Evaluation
from control.workflows.pipelines.models import Pipeline

MAX_TIMELINE = 200
MAX_POINTS = 500
ACTIVE_JOBS = (Job.Status.QUEUED, Job.Status.RUNNING, Job.Status.PAUSED)
CHARTED = ("loss", "validation_loss", "acceptance_length", "speedup")


def _is_active(row: Job) -> bool:
    return row.status in ACTIVE_JOBS and row.cancel_requested_at is None


@admin.register(Job)
class JobAdmin(RowsAdmin):
    scope = "jobs"
    staff_fields = ("log", "worker", "fence", "lease_until", "not_before")
    sidebar = SidebarEntry("Work", 4, "Jobs", "pending_actions")
    list_display = ["id", "organization", "kind", "state", "progress", "created_at"]
    list_filter = ["status", "kind", "organization"]
    search_fields = ["id"]
    ordering = ["-id"]
    list_select_related = ["organization"]
    actions_detail = ["cancel"]
    fields = [
        "id", "organization", "kind", "belongs_to", "state", "pause_message", "queue_position", "progress", "failure",
        "curves", "latest_metrics", "timeline", "log", "attempt", "stalled_attempts", "lost_attempts", "worker",
        "fence", "lease_until", "not_before", "created_at", "started_at", "finished_at", "memory", "parameters",
        "outcome",
    ]  # fmt: skip

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Answers a refresh by `live.js` with 304 while nothing on the page has changed."""
        row = self.get_queryset(request).filter(pk=unquote(object_id)).first()
        if request.method != "GET" or row is None or not self.has_view_permission(request, row):
            return super().change_view(request, object_id, form_url, extra_context)  # type: ignore[no-any-return]  # unfold
        etag = f'"{_version(row)}"'
        if request.headers.get("If-None-Match") == etag:
            return HttpResponse(status=304, headers={"ETag": etag})
        response: HttpResponse = super().change_view(request, object_id, form_url, extra_context)
        response.headers["ETag"] = etag
        return response

    @admin.display(description="status", ordering="status")
    def state(self, row: Job) -> SafeString:
        return badge(row, row.status, active=row.status in ACTIVE_JOBS)

    @admin.display(description="belongs to")
    @read_once
    def belongs_to(self, row: Job) -> SafeString | str:
        """The batch, evaluation or pipeline that the job works for."""
        batch = Batch.objects.filter(job=row).first()
        owners: list[Model | None] = [batch, Evaluation.objects.filter(job=row).first()]
        stages = Q(training_job=row) | Q(evaluation_job=row) | Q(batch__job=row)
        owners += Pipeline.objects.filter(organization=row.organization_id).filter(stages)[:1]
        links = [(owner._meta.verbose_name, link(owner)) for owner in owners if owner is not None]
        return format_html_join(", ", "{} {}", links) or "–"

    @admin.display
    def progress(self, row: Job) -> SafeString:
        return progress_bar(row, row.progress_done, row.progress_total, row.progress_unit)

    @admin.display(description="paused")
    def pause_message(self, row: Job) -> str:
        return row.paused["message"] if row.paused else "–"

    @admin.display(description="position in the queue")
    @read_once
    def queue_position(self, row: Job) -> str:
        return position(row)

    @admin.display(description="error")
    def failure(self, row: Job) -> SafeString | str:
        return error_text(row.error)

    @admin.display(description="charts, by step")
    @read_once
    def curves(self, row: Job) -> SafeString:
        """Draws charts of the metrics at committed checkpoints. A repeated step appears with its latest metrics."""
        events = job_events(row).filter(type="checkpoint_committed").order_by("-seq")[:MAX_POINTS]
        by_step = {event.data["step"]: event.data.get("metrics") or {} for event in reversed(events)}
        return charts(f"{row.pk}-curves", lines_of(sorted(by_step.items()), CHARTED), unit="steps")

    @admin.display(description="metrics")
    def latest_metrics(self, row: Job) -> SafeString:
        return pairs(row, "metrics", row.metrics)

    @admin.display(description="end of the log")
    def log(self, row: Job) -> SafeString:
        return log_tail(f"{row.pk}-log", _log_path(row))

    @admin.display(description="bytes of memory needed")
    def memory(self, row: Job) -> SafeString:
        return pairs(row, "memory", row.memory_needed or {})

    @admin.display(description="params")
    def parameters(self, row: Job) -> SafeString:
        return pairs(row, "params", row.params)

    @admin.display(description="result")
    def outcome(self, row: Job) -> SafeString:
        return pairs(row, "result", row.result)

    @admin.display
    @read_once
    def timeline(self, row: Job) -> SafeString:
        """Events of the job, newest first."""
        events = job_events(row).order_by("-seq")[:MAX_TIMELINE]
        lines = [(event.created_at.strftime("%m-%d %H:%M:%S"), event.type, _brief(event.data)) for event in events]
        return table(row, "timeline", ["time (UTC)", "event", "data"], lines)

    @service_action(
        "Cancel job",
        "Finished results are kept; the rest of the work is not done.",
        icon="cancel",
        danger=True,
        when=_is_active,
    )
    def cancel(self, row: Job) -> str:
        batch = Batch.objects.filter(job=row).first()
        if batch is not None:  # cancelling only the job would leave the batch's status unchanged
            batch_cancel(batch=batch)
        else:
            job_cancel(job=row)
        return "The job will end within seconds."


def _log_path(row: Job) -> Path:
    """Path of the log of the job's latest attempt."""
    return get_config().data_dir / "logs" / "jobs" / f"{row.pk}.{row.fence}.log"


def _version(row: Job) -> str:
    """Returns a version that changes with the job's state, history or log, but not when the lease is renewed."""
    moments = (row.progress_at, row.cancel_requested_at, row.finished_at)
    times = [f"{moment.timestamp():.6f}" if moment else "" for moment in moments]
    last = job_events(row).order_by("-seq").values_list("seq", flat=True).first()
    log = _log_path(row)
    return "-".join([row.status, str(row.fence), str(last), str(log.stat().st_size if log.exists() else 0), *times])


def _brief(data: dict[str, Any]) -> str:
    flat = {key: value for key, value in data.items() if not isinstance(value, dict)}
    return "  ".join(f"{key}={value}" for key, value in flat.items())

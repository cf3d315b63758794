"""Files, batches, jobs and pipelines: what customers asked for and how far it is."""

from typing import Any

from django.contrib import admin
from django.template.defaultfilters import filesizeformat
from django.utils.safestring import SafeString

from control.batches.models import Batch
from control.batches.services import batch_cancel
from control.console.base import RowsAdmin, service_action
from control.console.rendering import badge, error_text, link, pairs, progress_bar, table
from control.files.models import File
from control.jobs.models import Job
from control.jobs.selectors import job_events
from control.jobs.services import job_cancel
from control.pipelines.models import Pipeline
from control.pipelines.selectors import pipeline_fresh
from control.pipelines.serializers import pipeline_json
from control.pipelines.services import pipeline_cancel, pipeline_resume
from control.pipelines.state import ACTIVE, RESUMABLE

MAX_TIMELINE = 200
ACTIVE_JOBS = (Job.Status.QUEUED, Job.Status.RUNNING)
ENDED_BATCHES = (Batch.Status.FAILED, Batch.Status.COMPLETED, Batch.Status.EXPIRED, Batch.Status.CANCELLED)


def _is_job_active(row: Job) -> bool:
    return row.status in ACTIVE_JOBS


def _is_batch_active(row: Batch) -> bool:
    return row.status not in ENDED_BATCHES


def _is_pipeline_active(row: Pipeline) -> bool:
    return row.status in ACTIVE


def _is_resumable(row: Pipeline) -> bool:
    return row.status in RESUMABLE


@admin.register(File)
class FileAdmin(RowsAdmin):
    list_display = ["filename", "id", "organization", "purpose", "size", "created_at", "deleted_at"]
    list_filter = ["purpose", "organization"]
    search_fields = ["filename", "id"]
    fields = [
        "id", "filename", "organization", "purpose", "size", "sha256", "status", "created_at", "expires_at",
        "deleted_at",
    ]  # fmt: skip

    @admin.display(ordering="size_bytes")
    def size(self, row: File) -> str:
        return filesizeformat(row.size_bytes)


@admin.register(Job)
class JobAdmin(RowsAdmin):
    list_display = ["id", "organization", "kind", "state", "progress", "created_at"]
    list_filter = ["status", "kind", "organization"]
    search_fields = ["id"]
    ordering = ["-id"]
    actions_detail = ["cancel"]
    fields = [
        "id", "organization", "kind", "state", "progress", "failure", "latest_metrics", "timeline", "attempt",
        "stalled_attempts", "worker", "fence", "lease_until", "not_before", "created_at", "started_at", "finished_at",
        "parameters", "outcome",
    ]  # fmt: skip

    @admin.display(description="status", ordering="status")
    def state(self, row: Job) -> SafeString:
        return badge(row, row.status, active=_is_job_active(row))

    @admin.display
    def progress(self, row: Job) -> SafeString:
        return progress_bar(row, row.progress_done, row.progress_total, row.progress_unit)

    @admin.display(description="error")
    def failure(self, row: Job) -> SafeString | str:
        return error_text(row.error)

    @admin.display(description="metrics")
    def latest_metrics(self, row: Job) -> SafeString:
        return pairs(row, "metrics", row.metrics)

    @admin.display(description="params")
    def parameters(self, row: Job) -> SafeString:
        return pairs(row, "params", row.params)

    @admin.display(description="result")
    def outcome(self, row: Job) -> SafeString:
        return pairs(row, "result", row.result)

    @admin.display
    def timeline(self, row: Job) -> SafeString:
        """Newest first."""
        events = job_events(row).order_by("-seq")[:MAX_TIMELINE]
        lines = [(event.created_at.strftime("%H:%M:%S"), event.type, _brief(event.data)) for event in events]
        return table(row, "timeline", ["time (UTC)", "event", "data"], lines)

    @service_action(
        "Cancel job", "What is finished is kept; the rest is not done.", icon="cancel", danger=True, when=_is_job_active
    )
    def cancel(self, row: Job) -> str:
        batch = Batch.objects.filter(job=row).first()
        if batch is not None:  # the batch owns its job: its own state must follow
            batch_cancel(batch=batch)
        else:
            job_cancel(job=row)
        return "The job ends within seconds."


def _brief(data: dict[str, Any]) -> str:
    return "  ".join(f"{key}={value}" for key, value in data.items())


@admin.register(Batch)
class BatchAdmin(RowsAdmin):
    list_display = ["id", "organization", "base_model", "state", "progress", "failed", "created_at"]
    list_filter = ["status", "organization"]
    search_fields = ["id"]
    ordering = ["-id"]
    list_select_related = ["organization", "base_model", "job"]
    actions_detail = ["cancel"]
    fields = [
        "id", "organization", "base_model", "endpoint", "state", "progress", "the_job", "input", "output",
        "errors_file", "bad_lines", "tokens_used", "metadata", "created_at", "in_progress_at", "completed_at",
        "failed_at", "cancelled_at", "expires_at",
    ]  # fmt: skip

    @admin.display(description="status", ordering="status")
    def state(self, row: Batch) -> SafeString:
        return badge(row, row.status, active=_is_batch_active(row))

    @admin.display
    def progress(self, row: Batch) -> SafeString:
        if row.status in ENDED_BATCHES:
            return progress_bar(row, row.completed, row.total, "rows")
        return progress_bar(row, row.job.progress_done, row.job.progress_total, "rows")

    @admin.display(description="job")
    def the_job(self, row: Batch) -> SafeString | str:
        return link(row.job)

    @admin.display(description="input file")
    def input(self, row: Batch) -> SafeString | str:
        return link(row.input_file)

    @admin.display(description="output file")
    def output(self, row: Batch) -> SafeString | str:
        return link(row.output_file)

    @admin.display(description="error file")
    def errors_file(self, row: Batch) -> SafeString | str:
        return link(row.error_file)

    @admin.display(description="bad lines")
    def bad_lines(self, row: Batch) -> SafeString:
        lines = [(bad.get("line"), bad.get("code"), bad.get("message")) for bad in row.errors or []]
        return table(row, "bad-lines", ["line", "code", "message"], lines)

    @admin.display(description="usage")
    def tokens_used(self, row: Batch) -> SafeString:
        return pairs(row, "usage", row.usage)

    @service_action(
        "Cancel batch",
        "Finished rows are kept; the others are not answered.",
        icon="cancel",
        danger=True,
        when=_is_batch_active,
    )
    def cancel(self, row: Batch) -> str:
        return f"The batch is {batch_cancel(batch=row).status}."


@admin.register(Pipeline)
class PipelineAdmin(RowsAdmin):
    list_display = ["name", "organization", "base_model", "state", "created_at", "finished_at"]
    list_filter = ["status", "organization"]
    search_fields = ["name", "id"]
    ordering = ["-id"]
    list_select_related = ["organization", "base_model"]
    actions_detail = ["cancel", "resume"]
    fields = [
        "id", "name", "organization", "base_model", "state", "failure", "stages", "report", "the_batch",
        "the_speculator", "the_deployment", "training", "evaluation", "gate", "deploy", "created_at", "finished_at",
    ]  # fmt: skip

    @admin.display(description="status", ordering="status")
    def state(self, row: Pipeline) -> SafeString:
        return badge(row, row.status, active=_is_pipeline_active(row))

    @admin.display(description="error")
    def failure(self, row: Pipeline) -> SafeString | str:
        return error_text(row.error)

    @admin.display
    def stages(self, row: Pipeline) -> SafeString:
        lines = []
        for stage in pipeline_json(pipeline_fresh(row))["stages"]:
            progress = stage["progress"] or {}
            amount = f"{progress['done']} / {progress['total']} {progress['unit']}" if progress.get("total") else "–"
            seconds = (stage["finished_at"] or 0) - (stage["started_at"] or 0)
            lines.append((stage["name"], stage["status"], amount, f"{seconds} s" if seconds > 0 else "–"))
        return table(row, "stages", ["stage", "status", "progress", "time"], lines)

    @admin.display
    def report(self, row: Pipeline) -> SafeString:
        return pairs(row, "report", (row.evaluation_job.result if row.evaluation_job else {}) or {})

    @admin.display(description="batch")
    def the_batch(self, row: Pipeline) -> SafeString | str:
        return link(row.batch)

    @admin.display(description="speculator")
    def the_speculator(self, row: Pipeline) -> SafeString | str:
        return link(row.speculator)

    @admin.display(description="deployment")
    def the_deployment(self, row: Pipeline) -> SafeString | str:
        return link(row.deployment)

    @service_action(
        "Cancel pipeline",
        "Finished stages are kept; it can be resumed later.",
        icon="cancel",
        danger=True,
        when=_is_pipeline_active,
    )
    def cancel(self, row: Pipeline) -> str:
        return f"The pipeline is {pipeline_cancel(pipeline=row).status}."

    @service_action("Resume", "Goes on with the stage that failed or was cancelled.", icon="resume", when=_is_resumable)
    def resume(self, row: Pipeline) -> str:
        return f"The pipeline is {pipeline_resume(pipeline=row).status}."

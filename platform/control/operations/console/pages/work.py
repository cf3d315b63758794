"""Pages of files, batches and pipelines."""

from django.contrib import admin
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.utils.safestring import SafeString

from control.data.files.models import File
from control.data.files.requests import UPLOAD_FILE
from control.data.files.services import file_delete
from control.operations.console.base import read_once, service_action
from control.operations.console.form_pages import FormAdmin, form_action
from control.operations.console.lineage import lineage_link
from control.operations.console.openings.batches import batch_opening
from control.operations.console.openings.pipelines import pipeline_opening
from control.operations.console.rendering import badge, error_text, link, pairs, position, progress_bar, table, usd
from control.operations.console.sidebar import SidebarEntry
from control.queue.jobs.fair import level_of
from control.workflows.batches.estimates import with_progress
from control.workflows.batches.models import Batch
from control.workflows.batches.requests import CREATE_BATCH, REPAIR_BATCH
from control.workflows.batches.services import batch_cancel, batch_resume
from control.workflows.batches.state import RESUMABLE as RESUMABLE_BATCHES
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.requests import CREATE_PIPELINE
from control.workflows.pipelines.selectors import pipeline_fresh
from control.workflows.pipelines.services import pipeline_cancel, pipeline_resume
from control.workflows.pipelines.state import ACTIVE, RESUMABLE

ENDED_BATCHES = (Batch.Status.FAILED, Batch.Status.COMPLETED, Batch.Status.EXPIRED, Batch.Status.CANCELLED)


def _is_batch_active(row: Batch) -> bool:
    return row.status not in ENDED_BATCHES


def _is_batch_resumable(row: Batch) -> bool:
    return row.status in RESUMABLE_BATCHES and row.total > 0


def _is_batch_repairable(row: Batch) -> bool:
    return row.status in ENDED_BATCHES and row.total > 0


def _is_pipeline_active(row: Pipeline) -> bool:
    return row.status in ACTIVE


def _is_resumable(row: Pipeline) -> bool:
    return row.status in RESUMABLE


def _is_kept(row: File) -> bool:
    return row.deleted_at is None


@admin.register(File)
class FileAdmin(FormAdmin):
    scope = "files"
    sidebar = SidebarEntry("Work", 6, "Files", "description")
    create_form = UPLOAD_FILE
    list_display = ["filename", "id", "organization", "purpose", "size", "created_at", "deleted_at"]
    list_filter = ["purpose", "organization"]
    search_fields = ["filename", "id"]
    actions_detail = ["delete"]
    fields = [
        "id", "filename", "organization", "purpose", "size", "sha256", "status", "created_at", "expires_at",
        "deleted_at", "lineage",
    ]  # fmt: skip

    @admin.display
    def lineage(self, row: File) -> SafeString:
        return lineage_link(row.pk)

    @admin.display(ordering="size_bytes")
    def size(self, row: File) -> str:
        return filesizeformat(row.size_bytes)

    @service_action(
        "Delete",
        "The file cannot be used from now on, and its content is deleted.",
        icon="delete",
        danger=True,
        when=_is_kept,
    )
    def delete(self, row: File) -> str:
        file_delete(file=row)
        return f"{row.filename} is deleted."


@admin.register(Batch)
class BatchAdmin(FormAdmin):
    scope = "batches"
    sidebar = SidebarEntry("Work", 2, "Batches", "stacks")
    create_form = CREATE_BATCH
    list_display = ["id", "organization", "base_model", "state", "progress", "failed", "created_at"]
    list_filter = ["status", "organization"]
    search_fields = ["id"]
    ordering = ["-id"]
    list_select_related = ["organization", "base_model", "job"]
    actions_detail = ["cancel", "resume", "repair"]
    fields = [
        "id", "organization", "base_model", "endpoint", "state", "pause_message", "priority", "queue_position",
        "progress", "the_job", "input", "output", "errors_file", "bad_lines", "resumed_from_batch",
        "rows_repaired", "copied", "tokens_used", "cost", "metadata", "created_at", "in_progress_at", "completed_at",
        "failed_at", "cancelled_at", "expires_at",
    ]  # fmt: skip

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Batch | None:
        """Reads the batch together with its progress and its related rows, because the page shows them."""
        row = super().get_object(request, object_id, from_field)
        related = ("organization", "base_model", "job", "input_file", "output_file", "error_file", "resumed_from")
        return row and with_progress(Batch.objects.filter(pk=row.pk).select_related(*related)).get()

    def opening(self, request: HttpRequest, row: Batch) -> SafeString:
        return batch_opening(request, row, is_active=_is_batch_active(row))

    @admin.display(description="status", ordering="status")
    def state(self, row: Batch) -> SafeString:
        return badge(row, row.status, active=_is_batch_active(row))

    @admin.display
    def progress(self, row: Batch) -> SafeString:
        if row.status in ENDED_BATCHES:
            return progress_bar(row, row.completed, row.total, "rows")
        return progress_bar(row, row.job.progress_done, row.job.progress_total, "rows")

    @admin.display(description="paused")
    def pause_message(self, row: Batch) -> str:
        return row.job.paused["message"] if row.job.paused else "–"

    @admin.display
    def priority(self, row: Batch) -> str:
        return level_of(row.job)

    @admin.display(description="position in the queue")
    @read_once
    def queue_position(self, row: Batch) -> str:
        return position(row.job)

    @admin.display(description="cost so far, USD")
    def cost(self, row: Batch) -> str:
        return usd(row.cost_nanousd)

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

    @admin.display(description="resumed from")
    def resumed_from_batch(self, row: Batch) -> SafeString | str:
        return link(row.resumed_from)

    @admin.display(description="rows answered again")
    def rows_repaired(self, row: Batch) -> SafeString:
        return pairs(row, "repair", row.repair or {})

    @admin.display(description="bad lines")
    def bad_lines(self, row: Batch) -> SafeString:
        lines = [(bad.get("line"), bad.get("code"), bad.get("message")) for bad in row.errors or []]
        return table(row, "bad-lines", ["line", "code", "message"], lines)

    @admin.display(description="usage")
    def tokens_used(self, row: Batch) -> SafeString:
        return pairs(row, "usage", row.usage)

    @service_action(
        "Cancel batch",
        "The answers of finished rows are kept; the other rows are not answered.",
        icon="cancel",
        danger=True,
        when=_is_batch_active,
    )
    def cancel(self, row: Batch) -> str:
        return f"The batch is {batch_cancel(batch=row).status}."

    @service_action(
        "Resume",
        "Creates a new batch, which copies the finished rows and runs the others. This batch stays as it is.",
        icon="resume",
        when=_is_batch_resumable,
    )
    def resume(self, row: Batch) -> str:
        return f"Batch {batch_resume(batch=row).pk} continues this one."

    repair = form_action("repair", REPAIR_BATCH, icon="build", when=_is_batch_repairable)


@admin.register(Pipeline)
class PipelineAdmin(FormAdmin):
    scope = "pipelines"
    sidebar = SidebarEntry("Work", 1, "Pipelines", "conversion_path")
    create_form = CREATE_PIPELINE
    list_display = ["name", "organization", "base_model", "state", "created_at", "finished_at"]
    list_filter = ["status", "organization"]
    search_fields = ["name", "id"]
    ordering = ["-id"]
    list_select_related = ["organization", "base_model"]
    actions_detail = ["cancel", "resume"]
    fields = [
        "id", "name", "organization", "base_model", "state", "failure", "why_paused", "report", "the_batch",
        "the_speculator", "the_deployment", "answers", "training", "evaluation", "gate", "deploy",
        "created_at", "finished_at",
    ]  # fmt: skip

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Pipeline | None:
        """Reads the pipeline together with its related rows, because the page shows them."""
        row = super().get_object(request, object_id, from_field)
        return None if row is None else pipeline_fresh(row)

    def opening(self, request: HttpRequest, row: Pipeline) -> SafeString:
        return pipeline_opening(row)

    @admin.display(description="status", ordering="status")
    def state(self, row: Pipeline) -> SafeString:
        return badge(row, row.status, active=_is_pipeline_active(row))

    @admin.display(description="error")
    def failure(self, row: Pipeline) -> SafeString | str:
        return error_text(row.error)

    @admin.display(description="endpoint paused")
    def why_paused(self, row: Pipeline) -> str:
        return "–" if row.paused is None else str(row.paused["message"])

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
        "The results of finished stages are kept; the pipeline can be resumed later.",
        icon="cancel",
        danger=True,
        when=_is_pipeline_active,
    )
    def cancel(self, row: Pipeline) -> str:
        return f"The pipeline is {pipeline_cancel(pipeline=row).status}."

    @service_action("Resume", "Restarts the stage that failed or was cancelled.", icon="resume", when=_is_resumable)
    def resume(self, row: Pipeline) -> str:
        return f"The pipeline is {pipeline_resume(pipeline=row).status}."

"""Evaluations, datasets and captured requests: what was found out, and of what."""

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString

from control.operations.console.asking import AskingAdmin
from control.operations.console.base import RowsAdmin, service_action
from control.operations.console.rendering import badge, error_text, link, number, pairs, progress_bar, table
from control.queue.jobs.models import Job
from control.serving.captures.models import Capture, CapturedRequest
from control.serving.captures.services import capture_end, capture_export
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.requests import CREATE_DATASET
from control.workflows.evaluations.models import Evaluation
from control.workflows.evaluations.requests import CREATE_EVALUATION
from control.workflows.evaluations.services import evaluation_cancel

ACTIVE = (Job.Status.QUEUED, Job.Status.RUNNING, Job.Status.PAUSED)
MOST_ERRORS = 50


def _is_active(row: Evaluation) -> bool:
    return row.job.status in ACTIVE and row.job.cancel_requested_at is None


@admin.register(Evaluation)
class EvaluationAdmin(AskingAdmin):
    asks = CREATE_EVALUATION
    list_display = ["id", "organization", "speculator", "state", "progress", "outputs", "created_at"]
    list_filter = ["job__status", "organization"]
    search_fields = ["id"]
    ordering = ["-id"]
    list_select_related = ["organization", "speculator__base_model", "job"]
    actions_detail = ["cancel"]
    fields = [
        "id", "organization", "the_speculator", "state", "progress", "outputs", "failure", "report", "prompts",
        "asked", "the_job", "created_at",
    ]  # fmt: skip

    @admin.display(description="status", ordering="job__status")
    def state(self, row: Evaluation) -> SafeString:
        return badge(row, row.job.status, active=row.job.status in ACTIVE)

    @admin.display
    def progress(self, row: Evaluation) -> SafeString:
        return progress_bar(row, row.job.progress_done, row.job.progress_total, row.job.progress_unit)

    @admin.display(description="outputs, as certified")
    def outputs(self, row: Evaluation) -> str:
        return "–" if row.certificate is None else str(row.certificate["statement"]["result"])

    @admin.display(description="error")
    def failure(self, row: Evaluation) -> SafeString | str:
        return error_text(row.job.error)

    @admin.display
    def report(self, row: Evaluation) -> SafeString:
        return pairs(row, "report", row.job.result)

    @admin.display(description="asked for")
    def asked(self, row: Evaluation) -> SafeString:
        return pairs(row, "asked", row.settings)

    @admin.display(description="speculator")
    def the_speculator(self, row: Evaluation) -> SafeString | str:
        return link(row.speculator)

    @admin.display(description="prompts")
    def prompts(self, row: Evaluation) -> SafeString | str:
        return link(row.prompts_file)

    @admin.display(description="job")
    def the_job(self, row: Evaluation) -> SafeString | str:
        return link(row.job)

    @service_action("Cancel", "It ends without a report.", icon="cancel", danger=True, when=_is_active)
    def cancel(self, row: Evaluation) -> str:
        evaluation_cancel(evaluation=row)
        return "It ends within seconds."


@admin.register(Dataset)
class DatasetAdmin(AskingAdmin):
    asks = CREATE_DATASET
    list_display = ["id", "organization", "format", "state", "num_rows", "num_errors", "created_at"]
    list_filter = ["status", "organization"]
    search_fields = ["id", "file__id"]
    ordering = ["-id"]
    list_select_related = ["organization"]
    fields = [
        "id", "organization", "the_file", "counted_for", "format", "state", "num_rows", "num_answers", "num_tokens",
        "by_code", "bad_lines", "created_at",
    ]  # fmt: skip

    @admin.display(description="status", ordering="status")
    def state(self, row: Dataset) -> SafeString:
        return badge(row, row.status, active=False)

    @admin.display(description="file")
    def the_file(self, row: Dataset) -> SafeString | str:
        return link(row.file)

    @admin.display
    def counted_for(self, row: Dataset) -> SafeString | str:
        return link(row.base_model)

    @admin.display(description="bad lines by code")
    def by_code(self, row: Dataset) -> SafeString:
        return pairs(row, "by-code", row.errors_by_code)

    @admin.display(description=f"bad lines, the first {MOST_ERRORS}")
    def bad_lines(self, row: Dataset) -> SafeString:
        """By number and code alone: the message could quote a customer's text."""
        lines = [(bad.get("line"), bad.get("column"), bad.get("code")) for bad in row.errors[:MOST_ERRORS]]
        return table(row, "bad-lines", ["line", "column", "code"], lines)


@admin.register(Capture)
class CaptureAdmin(RowsAdmin):
    list_display = ["deployment", "organization", "hours", "kept", "created_at"]
    list_filter = ["organization"]
    search_fields = ["deployment__id", "deployment__name"]
    list_select_related = ["organization", "deployment"]
    actions_detail = ["make_file", "end"]
    fields = ["the_deployment", "organization", "hours", "kept", "created_at"]

    @admin.display(description="deployment")
    def the_deployment(self, row: Capture) -> SafeString | str:
        return link(row.deployment)

    @admin.display(description="requests kept")
    def kept(self, row: Capture) -> str:
        return number(CapturedRequest.objects.filter(deployment=row.deployment_id).count())

    @service_action("Make a file", "Of all different requests that are kept, as prompts of a pipeline.", icon="draft")
    def make_file(self, row: Capture) -> str:
        return format_html("{} is made.", link(capture_export(capture=row)))

    @service_action(
        "End", "Nothing is kept any more, and what was is deleted. Files made of it stay.", icon="delete", danger=True
    )
    def end(self, row: Capture) -> str:
        capture_end(capture=row)
        return "What was kept is deleted."

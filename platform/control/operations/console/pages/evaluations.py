"""Pages of evaluations."""

from django.contrib import admin
from django.utils.safestring import SafeString

from control.operations.console.base import service_action
from control.operations.console.form_pages import FormAdmin
from control.operations.console.rendering import badge, error_text, link, pairs, progress_bar
from control.operations.console.sidebar import SidebarEntry
from control.queue.jobs.models import Job
from control.workflows.evaluations.models import Evaluation
from control.workflows.evaluations.requests import CREATE_EVALUATION
from control.workflows.evaluations.services import evaluation_cancel

ACTIVE = (Job.Status.QUEUED, Job.Status.RUNNING, Job.Status.PAUSED)


def _is_active(row: Evaluation) -> bool:
    return row.job.status in ACTIVE and row.job.cancel_requested_at is None


@admin.register(Evaluation)
class EvaluationAdmin(FormAdmin):
    scope = "speculators"
    sidebar = SidebarEntry("Serving", 5, "Evaluations", "speed")
    create_form = CREATE_EVALUATION
    list_display = ["id", "organization", "speculator", "state", "progress", "outputs", "created_at"]
    list_filter = ["job__status", "organization"]
    search_fields = ["id"]
    ordering = ["-id"]
    list_select_related = ["organization", "speculator__base_model", "job"]
    actions_detail = ["cancel"]
    fields = [
        "id", "organization", "the_speculator", "state", "progress", "outputs", "failure", "report", "prompts",
        "settings", "the_job", "created_at",
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

    @admin.display
    def settings(self, row: Evaluation) -> SafeString:
        return pairs(row, "settings", row.settings)

    @admin.display(description="speculator")
    def the_speculator(self, row: Evaluation) -> SafeString | str:
        return link(row.speculator)

    @admin.display(description="prompts")
    def prompts(self, row: Evaluation) -> SafeString | str:
        return link(row.prompts_file)

    @admin.display(description="job")
    def the_job(self, row: Evaluation) -> SafeString | str:
        return link(row.job)

    @service_action("Cancel", "The evaluation ends without a report.", icon="cancel", danger=True, when=_is_active)
    def cancel(self, row: Evaluation) -> str:
        evaluation_cancel(evaluation=row)
        return "The evaluation will end within seconds."

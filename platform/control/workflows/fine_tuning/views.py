"""Routes of OpenAI's fine-tuning."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.metadata import MAX_PAIRS
from control.core.api.paging import paginate, paginate_list
from control.data.files.upload_view import nested
from control.tenants.authentication.views import OrganizationView
from control.workflows.fine_tuning.requests import JobInput
from control.workflows.fine_tuning.selectors import (
    CHECKPOINT,
    TOLD,
    fine_tuning_job_get,
    fine_tuning_jobs_list,
    with_metadata,
    work_events,
)
from control.workflows.fine_tuning.serializers import checkpoint_body, events_body, fine_tuning_job_body
from control.workflows.fine_tuning.services import (
    fine_tuning_job_cancel,
    fine_tuning_job_create,
    fine_tuning_job_pause,
    fine_tuning_job_resume,
)
from control.workflows.pipelines.models import PipelineEvent


class FineTuningJobsView(OrganizationView):
    scope = "fine_tuning"

    def get(self, request: Request) -> Response:
        wanted = nested(request.query_params, "metadata") or {}
        if len(wanted) > MAX_PAIRS:
            raise ApiError(400, f"metadata: at most {MAX_PAIRS} pairs, got {len(wanted)}", "invalid_value", "metadata")
        jobs = with_metadata(fine_tuning_jobs_list(self.organization), wanted)
        return paginate(jobs, request, fine_tuning_job_body)

    def post(self, request: Request) -> Response:
        form = JobInput(data=request.data)
        form.is_valid(raise_exception=True)
        job = fine_tuning_job_create(organization=self.organization, values=form.validated_data)
        return Response(fine_tuning_job_body(fine_tuning_job_get(self.organization, job.pk)))


class FineTuningJobView(OrganizationView):
    scope = "fine_tuning"

    def get(self, request: Request, job_id: str) -> Response:
        return Response(fine_tuning_job_body(fine_tuning_job_get(self.organization, job_id)))


class FineTuningCancelView(OrganizationView):
    scope = "fine_tuning"

    def post(self, request: Request, job_id: str) -> Response:
        fine_tuning_job_cancel(job=fine_tuning_job_get(self.organization, job_id))
        return Response(fine_tuning_job_body(fine_tuning_job_get(self.organization, job_id)))


class FineTuningPauseView(OrganizationView):
    scope = "fine_tuning"

    def post(self, request: Request, job_id: str) -> Response:
        fine_tuning_job_pause(job=fine_tuning_job_get(self.organization, job_id))
        return Response(fine_tuning_job_body(fine_tuning_job_get(self.organization, job_id)))


class FineTuningResumeView(OrganizationView):
    scope = "fine_tuning"

    def post(self, request: Request, job_id: str) -> Response:
        fine_tuning_job_resume(job=fine_tuning_job_get(self.organization, job_id))
        return Response(fine_tuning_job_body(fine_tuning_job_get(self.organization, job_id)))


class FineTuningEventsView(OrganizationView):
    scope = "fine_tuning"

    def get(self, request: Request, job_id: str) -> Response:
        job = fine_tuning_job_get(self.organization, job_id)
        moves = PipelineEvent.objects.filter(pipeline=job.pipeline).order_by("-pk")
        return paginate_list(events_body(job, list(moves), list(work_events(job, *TOLD))), request)


class FineTuningCheckpointsView(OrganizationView):
    scope = "fine_tuning"

    def get(self, request: Request, job_id: str) -> Response:
        job = fine_tuning_job_get(self.organization, job_id)
        return paginate_list([checkpoint_body(job, event) for event in work_events(job, CHECKPOINT)], request)

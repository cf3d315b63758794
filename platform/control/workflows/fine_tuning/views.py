"""Routes of OpenAI's fine-tuning API."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.metadata import MAX_PAIRS
from control.core.api.operation import PAGING, operation
from control.core.api.paging import paginate, paginate_list
from control.core.api.schemas import Deleted, Page
from control.data.files.upload_view import nested
from control.models.adapters.schemas import AdapterObject
from control.tenants.authentication.views import OrganizationView
from control.workflows.fine_tuning.adapters import adapter_training_plan, checkpoint_adapter_create
from control.workflows.fine_tuning.checkpoints import checkpoint_delete
from control.workflows.fine_tuning.history import (
    CheckpointAdapterInput,
    FineTuningCheckpointObject,
    FineTuningEventObject,
)
from control.workflows.fine_tuning.memory import FineTuningPlan
from control.workflows.fine_tuning.schemas import FineTuningJobObject, JobInput
from control.workflows.fine_tuning.selectors import (
    CHECKPOINT,
    LISTED_JOB_EVENTS,
    LISTED_WITHOUT_PIPELINE,
    checkpoint_get,
    fine_tuning_job_get,
    fine_tuning_jobs_list,
    job_events_list,
    with_metadata,
)
from control.workflows.fine_tuning.services import (
    fine_tuning_job_cancel,
    fine_tuning_job_create,
    fine_tuning_job_pause,
    fine_tuning_job_resume,
)
from control.workflows.pipelines.models import PipelineEvent


class FineTuningJobsView(OrganizationView):
    scope = "fine_tuning"

    @operation("fine_tuning.jobs.list", response=Page[FineTuningJobObject], query=PAGING)
    def get(self, request: Request) -> Response:
        wanted = nested(request.query_params, "metadata") or {}
        if len(wanted) > MAX_PAIRS:
            raise ApiError(400, f"metadata: at most {MAX_PAIRS} pairs, got {len(wanted)}", "invalid_value", "metadata")
        jobs = with_metadata(fine_tuning_jobs_list(self.organization), wanted)
        return paginate(jobs, request, FineTuningJobObject.of)

    @operation("fine_tuning.jobs.create", request=JobInput, response=FineTuningJobObject, plan=FineTuningPlan)
    def post(self, request: Request, body: JobInput) -> FineTuningJobObject | FineTuningPlan:
        if body.validate_only:
            body.check_plannable()
            return adapter_training_plan(organization=self.organization, request=body)
        job = fine_tuning_job_create(organization=self.organization, request=body)
        return FineTuningJobObject.of(fine_tuning_job_get(self.organization, job.pk))


class FineTuningJobView(OrganizationView):
    scope = "fine_tuning"

    @operation("fine_tuning.jobs.retrieve", response=FineTuningJobObject)
    def get(self, request: Request, job_id: str) -> FineTuningJobObject:
        return FineTuningJobObject.of(fine_tuning_job_get(self.organization, job_id))


class FineTuningCancelView(OrganizationView):
    scope = "fine_tuning"

    @operation("fine_tuning.jobs.cancel", response=FineTuningJobObject)
    def post(self, request: Request, job_id: str) -> FineTuningJobObject:
        fine_tuning_job_cancel(job=fine_tuning_job_get(self.organization, job_id))
        return FineTuningJobObject.of(fine_tuning_job_get(self.organization, job_id))


class FineTuningPauseView(OrganizationView):
    scope = "fine_tuning"

    @operation("fine_tuning.jobs.pause", response=FineTuningJobObject)
    def post(self, request: Request, job_id: str) -> FineTuningJobObject:
        fine_tuning_job_pause(job=fine_tuning_job_get(self.organization, job_id))
        return FineTuningJobObject.of(fine_tuning_job_get(self.organization, job_id))


class FineTuningResumeView(OrganizationView):
    scope = "fine_tuning"

    @operation("fine_tuning.jobs.resume", response=FineTuningJobObject)
    def post(self, request: Request, job_id: str) -> FineTuningJobObject:
        fine_tuning_job_resume(job=fine_tuning_job_get(self.organization, job_id))
        return FineTuningJobObject.of(fine_tuning_job_get(self.organization, job_id))


class FineTuningEventsView(OrganizationView):
    scope = "fine_tuning"

    @operation(
        "fine_tuning.jobs.events",
        summary="List the events of a fine-tuning job",
        response=Page[FineTuningEventObject],
        query=PAGING,
    )
    def get(self, request: Request, job_id: str) -> Response:
        job = fine_tuning_job_get(self.organization, job_id)
        types = LISTED_WITHOUT_PIPELINE if job.pipeline is None else LISTED_JOB_EVENTS
        transitions = PipelineEvent.objects.filter(pipeline=job.pipeline_id).order_by("-pk")
        job_events = job_events_list(job, *types)
        return paginate_list(FineTuningEventObject.all_of(job, list(transitions), list(job_events)), request)


class FineTuningCheckpointsView(OrganizationView):
    scope = "fine_tuning"

    @operation(
        "fine_tuning.jobs.checkpoints",
        summary="List the checkpoints of a fine-tuning job",
        response=Page[FineTuningCheckpointObject],
        query=PAGING,
    )
    def get(self, request: Request, job_id: str) -> Response:
        job = fine_tuning_job_get(self.organization, job_id)
        return paginate_list(
            [FineTuningCheckpointObject.of(job, event) for event in job_events_list(job, CHECKPOINT)], request
        )


class FineTuningCheckpointView(OrganizationView):
    scope = "fine_tuning"

    @operation(
        "fine_tuning.jobs.checkpoints.delete",
        summary="Delete the files of a checkpoint",
        response=Deleted,
    )
    def delete(self, request: Request, job_id: str, checkpoint_id: str) -> Deleted:
        """Only for jobs that train an adapter, after their end. Adapters that were created from it are not deleted."""
        job = fine_tuning_job_get(self.organization, job_id)
        checkpoint_delete(job=job, checkpoint=checkpoint_get(job, checkpoint_id))
        return Deleted(id=checkpoint_id, object="fine_tuning.job.checkpoint")


class FineTuningCheckpointAdapterView(OrganizationView):
    scope = "fine_tuning"

    @operation(
        "fine_tuning.jobs.checkpoints.adapter",
        summary="Create an adapter from a checkpoint",
        request=CheckpointAdapterInput,
        response=AdapterObject,
        status=201,
    )
    def post(self, request: Request, job_id: str, checkpoint_id: str, body: CheckpointAdapterInput) -> AdapterObject:
        """Requires a job that trains an adapter, because a checkpoint of a speculator's training cannot be served."""
        job = fine_tuning_job_get(self.organization, job_id)
        checkpoint = checkpoint_get(job, checkpoint_id)
        return AdapterObject.of(checkpoint_adapter_create(job=job, checkpoint=checkpoint, name=body.name))

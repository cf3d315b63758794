"""GET and POST /v1/pipelines, GET /v1/pipelines/{id}, POST /v1/pipelines/{id}/cancel and /resume."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.operation import PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Page
from control.tenants.authentication.views import OrganizationView
from control.workflows.pipelines.requests import create_from, plan_from
from control.workflows.pipelines.schemas import PipelineObject, PipelinePlan, PipelineRequest
from control.workflows.pipelines.selectors import pipeline_get, pipelines_list
from control.workflows.pipelines.services import pipeline_cancel, pipeline_resume


class PipelineListView(OrganizationView):
    scope = "pipelines"

    @operation("pipelines.list", response=Page[PipelineObject], query=PAGING)
    def get(self, request: Request) -> Response:
        return paginate(pipelines_list(self.organization), request, PipelineObject.of)

    @operation("pipelines.create", request=PipelineRequest, response=PipelineObject, status=201, plan=PipelinePlan)
    def post(self, request: Request, body: PipelineRequest) -> PipelineObject | PipelinePlan:
        if body.validate_only:
            return plan_from(self.organization, body)
        pipeline = create_from(self.organization, body)
        return PipelineObject.of(pipeline_get(self.organization, pipeline.pk))


class PipelineView(OrganizationView):
    scope = "pipelines"

    @operation("pipelines.retrieve", response=PipelineObject)
    def get(self, request: Request, pipeline_id: str) -> PipelineObject:
        return PipelineObject.of(pipeline_get(self.organization, pipeline_id))


class PipelineCancelView(OrganizationView):
    scope = "pipelines"

    @operation("pipelines.cancel", response=PipelineObject)
    def post(self, request: Request, pipeline_id: str) -> PipelineObject:
        """Finished stages and partial results are kept, and the pipeline can be resumed."""
        pipeline_cancel(pipeline=pipeline_get(self.organization, pipeline_id))
        return PipelineObject.of(pipeline_get(self.organization, pipeline_id))


class PipelineResumeView(OrganizationView):
    scope = "pipelines"

    @operation("pipelines.resume", response=PipelineObject)
    def post(self, request: Request, pipeline_id: str) -> PipelineObject:
        """Restarts the stage that failed or was cancelled. Finished stages are kept."""
        pipeline_resume(pipeline=pipeline_get(self.organization, pipeline_id))
        return PipelineObject.of(pipeline_get(self.organization, pipeline_id))

"""GET and POST /v1/pipelines, GET /v1/pipelines/{id}, POST /v1/pipelines/{id}/cancel and /resume."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.paging import paginate
from control.tenants.authentication.views import OrganizationView
from control.workflows.pipelines.requests import parse_pipeline_request
from control.workflows.pipelines.selectors import pipeline_get, pipelines_list
from control.workflows.pipelines.serializers import pipeline_json
from control.workflows.pipelines.services import pipeline_cancel, pipeline_create, pipeline_resume


class PipelineListView(OrganizationView):
    scope = "pipelines"

    def get(self, request: Request) -> Response:
        return paginate(pipelines_list(self.organization), request, pipeline_json)

    def post(self, request: Request) -> Response:
        pipeline = pipeline_create(organization=self.organization, request=parse_pipeline_request(request.data))
        return Response(pipeline_json(pipeline_get(self.organization, pipeline.pk)), status=201)


class PipelineView(OrganizationView):
    scope = "pipelines"

    def get(self, request: Request, pipeline_id: str) -> Response:
        return Response(pipeline_json(pipeline_get(self.organization, pipeline_id)))


class PipelineCancelView(OrganizationView):
    scope = "pipelines"

    def post(self, request: Request, pipeline_id: str) -> Response:
        pipeline_cancel(pipeline=pipeline_get(self.organization, pipeline_id))
        return Response(pipeline_json(pipeline_get(self.organization, pipeline_id)))


class PipelineResumeView(OrganizationView):
    scope = "pipelines"

    def post(self, request: Request, pipeline_id: str) -> Response:
        pipeline_resume(pipeline=pipeline_get(self.organization, pipeline_id))
        return Response(pipeline_json(pipeline_get(self.organization, pipeline_id)))

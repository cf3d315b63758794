"""/v1/deployments/{id}/capture: keep requests for some hours, and make them the prompts of a pipeline."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.data.files.schemas import FileObject
from control.serving.captures.selectors import capture_of
from control.serving.captures.serializers import CaptureInput, capture_body
from control.serving.captures.services import capture_end, capture_export, capture_set
from control.serving.deployments.models import Deployment
from control.serving.deployments.selectors import deployment_get
from control.tenants.authentication.views import OrganizationView


class _OneDeployment(OrganizationView):
    scope = "deployments"

    def deployment(self, deployment_id: str) -> Deployment:
        return deployment_get(self.organization, deployment_id, only=self.key.deployment_ids)


class CaptureView(_OneDeployment):
    def get(self, request: Request, deployment_id: str) -> Response:
        return Response(capture_body(capture_of(self.deployment(deployment_id))))

    def post(self, request: Request, deployment_id: str) -> Response:
        """Requests that are answered from now on are kept for `hours`, without their answers."""
        deployment = self.deployment(deployment_id)
        form = CaptureInput(data=request.data)
        form.is_valid(raise_exception=True)
        return Response(capture_body(capture_set(deployment=deployment, hours=form.validated_data["hours"])))

    def delete(self, request: Request, deployment_id: str) -> Response:
        """Nothing is kept any more, and what was is deleted at once. Files made of it stay."""
        capture_end(capture=capture_of(self.deployment(deployment_id)))
        return Response({"id": deployment_id, "object": "capture", "deleted": True})


class CaptureFileView(_OneDeployment):
    """A file of all different requests that are kept, for `prompts_file` of a pipeline or a distillation."""

    def post(self, request: Request, deployment_id: str) -> Response:
        file = capture_export(capture=capture_of(self.deployment(deployment_id)))
        return Response(FileObject.of(file).model_dump(), status=201)

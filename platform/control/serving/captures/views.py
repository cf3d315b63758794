"""/v1/deployments/{id}/capture keeps a deployment's requests for some hours and makes files of prompts from them."""

from rest_framework.request import Request

from control.core.api.operation import operation
from control.core.api.schemas import Deleted
from control.data.files.schemas import FileObject
from control.serving.captures.requests import create_from
from control.serving.captures.schemas import CaptureInput, CaptureObject
from control.serving.captures.selectors import capture_of
from control.serving.captures.services import capture_end, capture_export
from control.serving.deployments.views import OneDeploymentView


class CaptureView(OneDeploymentView):
    @operation("deployments.capture.retrieve", summary="Retrieve a deployment's capture", response=CaptureObject)
    def get(self, request: Request, deployment_id: str) -> CaptureObject:
        return CaptureObject.of(capture_of(self.deployment(deployment_id)))

    @operation(
        "deployments.capture.set",
        summary="Keep a deployment's requests from now on",
        request=CaptureInput,
        response=CaptureObject,
    )
    def post(self, request: Request, deployment_id: str, body: CaptureInput) -> CaptureObject:
        """From now on, requests to the deployment are kept for `hours`, without their answers."""
        return CaptureObject.of(create_from(self.deployment(deployment_id), body))

    @operation("deployments.capture.end", summary="End a capture and delete its requests", response=Deleted)
    def delete(self, request: Request, deployment_id: str) -> Deleted:
        """Ends the capture and deletes the requests that were kept. Files made from them stay."""
        capture_end(capture=capture_of(self.deployment(deployment_id)))
        return Deleted(id=deployment_id, object="capture")


class CaptureFileView(OneDeploymentView):
    @operation(
        "deployments.capture.file",
        summary="Make a file of the requests that were kept",
        response=FileObject,
        status=201,
    )
    def post(self, request: Request, deployment_id: str) -> FileObject:
        """Makes a file of the distinct requests that were kept, for `prompts_file` of a pipeline or a distillation."""
        return FileObject.of(capture_export(capture=capture_of(self.deployment(deployment_id))))

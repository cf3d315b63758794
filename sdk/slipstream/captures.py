"""Captured traffic: requests to a deployment that are stored for some hours, to train its next speculator with them."""

from slipstream.drivers import Steps, procedure
from slipstream.http import D, Resource, path_of
from slipstream.types import Capture, File


class Captures(Resource[D]):
    @procedure
    def set(self, deployment_id: str, *, hours: int) -> Steps[Capture]:
        """Start to store the requests that the deployment answers, without their answers.

        Args: hours: time after which each stored request is deleted.
        """
        return self.http.post(Capture, path_of("deployments", deployment_id, "capture"), {"hours": hours})

    @procedure
    def retrieve(self, deployment_id: str) -> Steps[Capture]:
        """Raises: NotFoundError: the deployment has no capture."""
        return self.http.get(Capture, path_of("deployments", deployment_id, "capture"))

    @procedure
    def end(self, deployment_id: str) -> Steps[None]:
        """End the capture and delete the stored requests. Files that were made from them remain."""
        return self.http.delete(path_of("deployments", deployment_id, "capture"))

    @procedure
    def file(self, deployment_id: str) -> Steps[File]:
        """Make a file from the stored requests, without duplicates, for `prompts_file` of a pipeline.

        To continue the training of the speculator that served the requests, create the pipeline with
        `training={"kind": ..., "initial_speculator": ...}`.
        """
        return self.http.post(File, path_of("deployments", deployment_id, "capture", "file"))

"""Captured traffic: requests to a deployment, kept for some hours for training its next speculator."""

from slipstream.drivers import Steps, procedure
from slipstream.http import D, Resource, path_of
from slipstream.types import Capture, File


class Captures(Resource[D]):
    @procedure
    def set(self, deployment_id: str, *, hours: int) -> Steps[Capture]:
        """From now on, keep each answered request, without its answer, for this many hours."""
        return self.http.post(Capture, path_of("deployments", deployment_id, "capture"), {"hours": hours})

    @procedure
    def retrieve(self, deployment_id: str) -> Steps[Capture]:
        """Raises: NotFoundError: the deployment's requests are not kept."""
        return self.http.get(Capture, path_of("deployments", deployment_id, "capture"))

    @procedure
    def end(self, deployment_id: str) -> Steps[None]:
        """Stop keeping requests, and delete the kept ones. Files made from kept requests stay."""
        return self.http.delete(path_of("deployments", deployment_id, "capture"))

    @procedure
    def file(self, deployment_id: str) -> Steps[File]:
        """Make a file of the distinct kept requests, for `prompts_file` of a pipeline.

        To continue the training of the speculator that served the requests, create the pipeline with
        `training={"kind": ..., "initial_speculator": ...}`.
        """
        return self.http.post(File, path_of("deployments", deployment_id, "capture", "file"))

"""Captured traffic: requests to a deployment, kept for some hours, to train its next speculator on."""

from slipstream.drivers import Steps, procedure
from slipstream.http import D, Resource, path_of
from slipstream.types import Capture, File


class Captures(Resource[D]):
    @procedure
    def set(self, deployment_id: str, *, hours: int) -> Steps[Capture]:
        """From now on, requests that are answered are kept for so long, without their answers."""
        return self.http.post(Capture, path_of("deployments", deployment_id, "capture"), {"hours": hours})

    @procedure
    def retrieve(self, deployment_id: str) -> Steps[Capture]:
        """Raises: NotFoundError: requests are not kept."""
        return self.http.get(Capture, path_of("deployments", deployment_id, "capture"))

    @procedure
    def end(self, deployment_id: str) -> Steps[None]:
        """Keep nothing any more, and delete what was kept. Files made of it stay."""
        return self.http.delete(path_of("deployments", deployment_id, "capture"))

    @procedure
    def file(self, deployment_id: str) -> Steps[File]:
        """What is kept, each request once, for `prompts_file` of a pipeline.

        `training={"kind": ..., "initial_speculator": ...}` goes on from the speculator that served it.
        """
        return self.http.post(File, path_of("deployments", deployment_id, "capture", "file"))

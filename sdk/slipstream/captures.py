"""Captured traffic: requests to a deployment that are stored for some hours, to train its next speculator with them."""

from collections.abc import Sequence

from slipstream.drivers import Steps, procedure
from slipstream.http import D, Resource, path_of
from slipstream.types import Capture, File


class Captures(Resource[D]):
    @procedure
    def set(
        self,
        deployment_id: str,
        *,
        hours: int,
        sample_percent: float = 100.0,
        redact: Sequence[str] = (),
        redact_patterns: Sequence[str] = (),
    ) -> Steps[Capture]:
        """Start to store the requests that the deployment answers, without their answers.

        Args:
            hours: time after which each stored request is deleted.
            sample_percent: share of the requests that is stored, drawn at random.
            redact: kinds of personal data that are replaced before a request is stored: email, ip_address, credit_card.
            redact_patterns: regular expressions, in the syntax of RE2, whose matches are replaced.
        """
        body = {
            "hours": hours,
            "sample_percent": sample_percent,
            "redact": list(redact),
            "redact_patterns": list(redact_patterns),
        }
        return self.http.post(Capture, path_of("deployments", deployment_id, "capture"), body)

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

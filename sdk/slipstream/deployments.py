"""Deployments: dedicated endpoints, called by their name."""

from collections.abc import Callable, Iterator

from slipstream.http import Http, path_of
from slipstream.types import Deployment
from slipstream.waiting import wait_for


class Deployments:
    def __init__(self, http: Http) -> None:
        self._http = http

    def create(self, *, name: str, model: str, speculator_id: str | None = None) -> Deployment:
        body = {"name": name, "model": model, "speculator_id": speculator_id}
        return Deployment.from_json(self._http.post("deployments", body))

    def retrieve(self, deployment_id: str) -> Deployment:
        return Deployment.from_json(self._http.get(path_of("deployments", deployment_id)))

    def list(self) -> Iterator[Deployment]:
        return (Deployment.from_json(values) for values in self._http.pages("deployments"))

    def start(self, deployment_id: str) -> Deployment:
        return Deployment.from_json(self._http.post(path_of("deployments", deployment_id, "start")))

    def stop(self, deployment_id: str) -> Deployment:
        return Deployment.from_json(self._http.post(path_of("deployments", deployment_id, "stop")))

    def delete(self, deployment_id: str) -> None:
        self._http.delete(path_of("deployments", deployment_id))

    def wait(
        self,
        deployment_id: str,
        *,
        on_progress: Callable[[Deployment], None] | None = None,
        poll_seconds: float = 0.5,
        timeout_seconds: float | None = None,
    ) -> Deployment:
        """The deployment once it is ready, stopped or failed. Raises: WaitTimeout."""
        return wait_for(
            lambda: self.retrieve(deployment_id),
            lambda deployment: deployment.state in ("ready", "stopped", "failed"),
            poll_seconds=poll_seconds,
            timeout_seconds=timeout_seconds,
            on_progress=on_progress,
            sleep=self._http.sleep,
        )

"""Deployments: dedicated endpoints, called by their name."""

from collections.abc import Callable
from typing import Any

from slipstream.drivers import Items, Steps, iteration, procedure
from slipstream.http import D, Resource, path_of
from slipstream.types import Deployment, Event
from slipstream.waiting import wait_for


class Deployments(Resource[D]):
    @procedure
    def create(self, *, name: str, model: str, speculator_id: str | None = None) -> Steps[Deployment]:
        body = {"name": name, "model": model, "speculator_id": speculator_id}
        return self.http.post(Deployment, "deployments", body)

    @procedure
    def retrieve(self, deployment_id: str) -> Steps[Deployment]:
        return self.http.get(Deployment, path_of("deployments", deployment_id))

    @iteration
    def list(self) -> Items[Deployment]:
        return self.http.pages(Deployment, "deployments")

    @procedure
    def update(self, deployment_id: str, *, speculator_id: str | None) -> Steps[Deployment]:
        """Serve with another speculator, or, with None, without one."""
        return self.http.patch(Deployment, path_of("deployments", deployment_id), {"speculator_id": speculator_id})

    @procedure
    def start(self, deployment_id: str) -> Steps[Deployment]:
        return self.http.post(Deployment, path_of("deployments", deployment_id, "start"))

    @procedure
    def stop(self, deployment_id: str) -> Steps[Deployment]:
        return self.http.post(Deployment, path_of("deployments", deployment_id, "stop"))

    @procedure
    def delete(self, deployment_id: str) -> Steps[None]:
        return self.http.delete(path_of("deployments", deployment_id))

    @iteration
    def events(self, deployment_id: str) -> Items[Event]:
        return self.http.pages(Event, path_of("deployments", deployment_id, "events"))

    @procedure
    def wait(
        self,
        deployment_id: str,
        *,
        on_progress: Callable[[Deployment], Any] | None = None,
        poll_seconds: float = 0.5,
        timeout_seconds: float | None = None,
    ) -> Steps[Deployment]:
        """The deployment once it is ready, stopped or failed. Raises: WaitTimeout."""
        return wait_for(
            lambda: self.http.get(Deployment, path_of("deployments", deployment_id)),
            lambda deployment: deployment.state in ("ready", "stopped", "failed"),
            poll_seconds=poll_seconds,
            timeout_seconds=timeout_seconds,
            on_progress=on_progress,
        )

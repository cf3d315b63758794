"""Deployments: dedicated endpoints, addressed by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.drivers import Item, Items, Page, Steps, iteration, listing, procedure
from slipstream.http import D, Resource, path_of, without_none
from slipstream.plans import EnginePlan
from slipstream.records import Record, parsed
from slipstream.types import Deployment, Event
from slipstream.waiting import wait_for


class Unchanged:
    """The type of `UNCHANGED`, the default of arguments for which None is a valid value."""


UNCHANGED = Unchanged()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentMetrics(Record):
    """Metrics of one time interval. A metric is None if it was not measured, for example without requests."""

    start_time: int
    end_time: int
    num_requests: int
    prompt_tokens: int
    generation_tokens: int
    tokens_per_second: float | None = None
    acceptance_length: float | None = None  # answer tokens per verification pass of the model
    acceptance_rate: float | None = None
    latency_seconds: float | None = None
    time_to_first_token_seconds: float | None = None


class Deployments(Resource[D]):
    @procedure
    def create(
        self,
        *,
        name: str,
        model: str,
        speculator_id: str | None = None,
        adapters: Sequence[str] | None = None,
        remember_answers: bool | None = None,
        engine: Mapping[str, Any] | None = None,
        hardware: str | None = None,
        replicas: int | None = None,
        scaling: Mapping[str, Any] | None = None,
        acceptance_alarm: Mapping[str, Any] | None = None,
    ) -> Steps[Deployment]:
        """Create a deployment.

        Args:
            adapters: ids of adapters. A request selects an adapter by setting `model` to `name:adapter`.
            remember_answers: whether the engine may draft copies of a project's past answers; default: true.
            engine: options of the engine; `slipstream.plans` lists them.
            hardware: `device_kind` or `name` of the device, as listed by `hardware.list`; the default is any device.
            replicas: how many engine processes answer the requests; default: 1.
            scaling: `scale_to_zero_seconds`, `max_replicas`, `min_replicas`, `target_concurrency`, `scale_up_seconds`,
                `scale_down_seconds`.
            acceptance_alarm: {"reference_minutes": 60}: how long the usual acceptance length is learned.
        """
        body = {
            "name": name,
            "model": model,
            "speculator_id": speculator_id,
            "adapters": adapters,
            "remember_answers": remember_answers,
            "engine": engine,
            "hardware": hardware,
            "replicas": replicas,
            "scaling": scaling,
            "acceptance_alarm": acceptance_alarm,
        }
        return self.http.post(Deployment, "deployments", body)

    @procedure
    def plan(
        self,
        *,
        name: str,
        model: str,
        speculator_id: str | None = None,
        adapters: Sequence[str] | None = None,
        engine: Mapping[str, Any] | None = None,
        hardware: str | None = None,
    ) -> Steps[EnginePlan]:
        """Show how a deployment with these options would use its memory. Nothing is created."""
        body: dict[str, Any] = {"name": name, "model": model, "speculator_id": speculator_id, "adapters": adapters}
        body |= {"engine": engine, "hardware": hardware}
        return self.http.post(EnginePlan, "deployments", {**body, "validate_only": True})

    @procedure
    def retrieve(self, deployment_id: str) -> Steps[Deployment]:
        return self.http.get(Deployment, path_of("deployments", deployment_id))

    @procedure
    def cost(self, deployment_id: str) -> Steps[dict[str, Any]]:
        """Return the device time of the endpoint's processes so far and its cost: in all, and in this month."""
        return self.http.get(dict, path_of("deployments", deployment_id, "cost"))

    @listing
    def list(self) -> Items[Page[Deployment]]:
        return self.http.pages(Deployment, "deployments")

    @procedure
    def update(
        self,
        deployment_id: str,
        *,
        speculator_id: str | Unchanged | None = UNCHANGED,
        adapters: Sequence[str] | Unchanged = UNCHANGED,
        allow_output_change: bool | Unchanged = UNCHANGED,
        remember_answers: bool | Unchanged = UNCHANGED,
        replicas: int | Unchanged = UNCHANGED,
        scaling: Mapping[str, Any] | Unchanged = UNCHANGED,
        acceptance_alarm: Mapping[str, Any] | Unchanged = UNCHANGED,
    ) -> Steps[Deployment]:
        """Change the speculator (None removes it) or the number of replicas, or replace the other arguments as a whole.

        Args:
            speculator_id: the new speculator; None removes the speculator.
            allow_output_change: accept a change to or from a `turbo_lora` speculator, which changes the answers.
        """
        body = {
            "speculator_id": speculator_id,
            "adapters": adapters,
            "allow_output_change": allow_output_change,
            "remember_answers": remember_answers,
            "replicas": replicas,
            "scaling": scaling,
            "acceptance_alarm": acceptance_alarm,
        }
        changes = {name: value for name, value in body.items() if not isinstance(value, Unchanged)}
        return self.http.patch(Deployment, path_of("deployments", deployment_id), changes)

    @iteration
    def metrics(
        self,
        deployment_id: str,
        *,
        start_time: int | None = None,
        end_time: int | None = None,
        bucket_width: str = "1m",
    ) -> Items[DeploymentMetrics]:
        """Yield metrics, oldest first; the default period is the last hour. Args: bucket_width: 1m, 1h or 1d."""
        path = path_of("deployments", deployment_id, "metrics")
        params = without_none({"start_time": start_time, "end_time": end_time, "bucket_width": bucket_width})
        while True:
            page = yield from self.http.request("GET", path, params=params)
            for values in page["data"]:
                yield Item(parsed(DeploymentMetrics, values))
            if not page.get("has_more"):
                return
            params["page"] = page["next_page"]

    @procedure
    def start(self, deployment_id: str) -> Steps[Deployment]:
        return self.http.post(Deployment, path_of("deployments", deployment_id, "start"))

    @procedure
    def stop(self, deployment_id: str) -> Steps[Deployment]:
        return self.http.post(Deployment, path_of("deployments", deployment_id, "stop"))

    @procedure
    def delete(self, deployment_id: str) -> Steps[None]:
        return self.http.delete(path_of("deployments", deployment_id))

    @listing
    def events(self, deployment_id: str) -> Items[Page[Event]]:
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
        """Return the deployment when it is ready, sleeping, stopped or failed. Raises: WaitTimeout."""
        return wait_for(
            lambda: self.http.get(Deployment, path_of("deployments", deployment_id)),
            lambda deployment: deployment.state in ("ready", "sleeping", "stopped", "failed"),
            poll_seconds=poll_seconds,
            timeout_seconds=timeout_seconds,
            on_progress=on_progress,
        )

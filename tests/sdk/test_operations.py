"""Every operation of docs/openapi.yaml has a method of the client, which sends the operation's request."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from slipstream import APIError, Client

METHODS = ("get", "post", "patch", "put", "delete")
DOCUMENT = yaml.safe_load((Path(__file__).parents[2] / "docs" / "openapi.yaml").read_text(encoding="utf-8"))
ROUTES = {
    operation["operationId"]: (method.upper(), path)
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
    if method in METHODS
}
Call = Callable[[Client, Path], Any]

# Calls of the operations that are not simply `client.<id of the operation>(...)` with an id for each path parameter.
# `c` is the client; the second parameter is a folder for downloads.
CALLS: dict[str, Call] = {
    "adapters.create": lambda c, _: c.adapters.create(name="a", model="m", config_file="f", weights_file="g"),
    "api_keys.create": lambda c, _: c.api_keys.create(name="a"),
    "api_keys.delete": lambda c, _: c.api_keys.revoke("x1"),
    "base_models.create": lambda c, _: c.base_models.create(name="a", source="s"),
    "batches.create": lambda c, _: c.batches.create(input_file_id="f"),
    "certificates.public_key": lambda c, _: c.evaluations.public_key(),
    "chat.completions.create": lambda c, _: c.chat.create(model="m", messages=[]),
    "completions.create": lambda c, _: c.completions.create(model="m", prompt="p"),
    "datasets.create": lambda c, _: c.datasets.create(file_id="f"),
    "deployments.capture.end": lambda c, _: c.captures.end("x1"),
    "deployments.capture.file": lambda c, _: c.captures.file("x1"),
    "deployments.capture.retrieve": lambda c, _: c.captures.retrieve("x1"),
    "deployments.capture.set": lambda c, _: c.captures.set("x1", hours=1),
    "deployments.create": lambda c, _: c.deployments.create(name="d", model="m"),
    "deployments.rollouts.cancel": lambda c, _: c.rollouts.cancel("x1", "x2"),
    "deployments.rollouts.create": lambda c, _: c.rollouts.create("x1", speculator_id="s"),
    "deployments.rollouts.list": lambda c, _: c.rollouts.list("x1"),
    "deployments.rollouts.retrieve": lambda c, _: c.rollouts.retrieve("x1", "x2"),
    "distillations.create": lambda c, _: c.distillations.create(model="m", prompts_file="f"),
    "evaluations.create": lambda c, _: c.evaluations.create(speculator_id="s"),
    "evaluations.plot": lambda c, folder: c.evaluations.plot("x1", folder / "plot.png"),
    "files.create": lambda c, _: c.files.upload(b"{}"),
    "fine_tuning.jobs.create": lambda c, _: c.fine_tuning.jobs.create(model="m", training_file="f"),
    "members.create": lambda c, _: c.members.create(email="a@example.com"),
    "members.update": lambda c, _: c.members.update("x1", role="owner"),
    "organization.costs": lambda c, _: c.usage.costs(start_time=0),
    "organization.usage.completions": lambda c, _: c.usage.completions(start_time=0),
    "pipelines.create": lambda c, _: c.pipelines.create(name="p", model="m", prompts_file="f"),
    "projects.create": lambda c, _: c.projects.create(name="p"),
    "projects.update": lambda c, _: c.projects.update("x1", name="p"),
    "quotes.create": lambda c, _: c.quotes.create(dataset_id="d"),
    "quotes.update": lambda c, _: c.quotes.update("x1", cap=1.0),
    "speculators.export": lambda c, _: c.speculators.export("x1", format="medusa"),
    "speculators.import": lambda c, _: c.speculators.import_(file_id="f", format="medusa", model="m", name="s"),
    "speculators.plot": lambda c, folder: c.speculators.plot("x1", folder / "plot.png"),
    "spend_caps.create": lambda c, _: c.spend_caps.create(amount=1.0),
    "spend_caps.update": lambda c, _: c.spend_caps.update("x1", amount=1.0),
    "uploads.complete": lambda c, _: c.uploads.complete("x1", part_ids=["p"]),
    "uploads.create": lambda c, _: c.uploads.create(filename="f", num_bytes=1, purpose="batch", mime_type="text/plain"),
    "uploads.parts.create": lambda c, _: c.uploads.add_part("x1", b"x"),
    "uploads.parts.list": lambda c, _: c.uploads.parts("x1"),
    "usage.retrieve": lambda c, _: c.usage.total(),
    "webhook_endpoints.create": lambda c, _: c.webhook_endpoints.create(url="https://example.com"),
    "webhook_endpoints.deliveries.list": lambda c, _: c.webhook_endpoints.deliveries("x1"),
    "webhook_endpoints.deliveries.replay": lambda c, _: c.webhook_endpoints.replay("x1", "x2"),
    "webhook_endpoints.deliveries.retrieve": lambda c, _: c.webhook_endpoints.delivery("x1", "x2"),
}


def call_of(operation: str) -> Call:
    """Returns the call `client.a.b("x1", "x2", ...)` for the operation `a.b`."""

    def call(client: Client, _: Path) -> Any:
        found: Any = client
        for name in operation.split("."):
            found = getattr(found, name)
        return found(*(f"x{number + 1}" for number in range(ROUTES[operation][1].count("{"))))

    return call


@pytest.mark.parametrize("operation", ROUTES)
def test_each_operation_has_a_method_that_sends_its_request(operation: str, tmp_path: Path) -> None:
    requests: list[tuple[str, str]] = []

    def respond(request: httpx2.Request) -> httpx2.Response:
        requests.append((request.method, request.url.path))
        return httpx2.Response(418)  # a permanent error, so that the client neither retries nor reads the response

    client = Client("http://api.test/v1", "sk_live_secret", transport=httpx2.MockTransport(respond))
    with client, pytest.raises(APIError):
        next(CALLS.get(operation, call_of(operation))(client, tmp_path))  # iterators send their request at `next`

    method, path = ROUTES[operation]
    numbers = iter(range(1, 9))
    assert requests == [(method, re.sub(r"\{\w+\}", lambda _: f"x{next(numbers)}", path))]


def test_every_listed_call_belongs_to_an_operation() -> None:
    assert CALLS.keys() <= ROUTES.keys()

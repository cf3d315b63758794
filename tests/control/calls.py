"""Sends a valid request to any route, for tests that cover all routes."""

import json
from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from tests.control.routes import Route
from tests.control.world import FORM, World, example_bodies

METHODS_WITH_BODY = ("POST", "PUT", "PATCH")


def path_of(route: Route, world: World, **values: str) -> str:
    """Returns the route's path. A parameter that `values` lacks gets the id of an object of `world`."""
    return route.path.format_map({name: world.id_of(route.kind_of(name)) for name in route.parameters} | values)


def call(client: Client, world: World, method: str, route: Route, path: str, body: dict[str, Any] | None = None) -> Any:
    """Sends `body` or, by default, a valid body, so that only the path can cause an error."""
    if method not in METHODS_WITH_BODY:
        response = client.generic(method, path)
        if response.streaming:
            response.close()  # closes the stored file
        return response
    valid_body = example_bodies()[f"{method} {route.path}"]
    if valid_body is FORM:
        return client.post(path, {**form_file(route), "purpose": "batch"})
    content = json.dumps(valid_body.make(world) if body is None else body)
    return client.generic(method, path, content, "application/json")


def form_file(route: Route) -> dict[str, SimpleUploadedFile]:
    name = "data" if route.path.endswith("/parts") else "file"
    return {name: SimpleUploadedFile("f.jsonl", b"abcd")}

"""Sends the right request to any route: what tests that walk over all of them have in common."""

import json
from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from tests.control.bodies import BODIES, FORM
from tests.control.routes import Route
from tests.control.world import World

WRITING = ("POST", "PUT", "PATCH")


def path_of(route: Route, world: World, **values: str) -> str:
    """With ids of the world's own things, but for `values`."""
    return route.path.format_map({name: world.id_of(route.kind_of(name)) for name in route.parameters} | values)


def call(client: Client, world: World, method: str, route: Route, path: str, body: dict[str, Any] | None = None) -> Any:
    """With a right body unless one is given, so that nothing but the path can be at fault."""
    if method not in WRITING:
        response = client.generic(method, path)
        if response.streaming:
            response.close()  # the file that it reads
        return response
    entry = BODIES[f"{method} {route.path}"]
    if entry is FORM:
        return client.post(path, {**form_file(route), "purpose": "batch"})
    content = json.dumps(entry.make(world) if body is None else body)
    return client.generic(method, path, content, "application/json")


def form_file(route: Route) -> dict[str, SimpleUploadedFile]:
    name = "data" if route.path.endswith("/parts") else "file"
    return {name: SimpleUploadedFile("f.jsonl", b"abcd")}

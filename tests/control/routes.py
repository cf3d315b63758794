"""Lists all routes of the API, read from the URL table, for tests that are generated for every route."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver

from control.tenants.authentication.views import OrganizationView

_PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")
PUBLIC = frozenset({"/v1/openapi.json"})  # routes that need no API key
NO_IDS = frozenset({"period"})  # parameters of paths whose values name no object of an organization
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    path: str  # "/v1/files/{file_id}"
    view: Any  # a subclass of OrganizationView, or a function
    methods: tuple[str, ...]

    def kind_of(self, parameter: str) -> str:
        """Returns the parameter's name in `World.id_of`: `fine_tuning_job_id` for a `job_id` of fine tuning,
        `looped_deployment_id` for a deployment that must have a loop, else `parameter`."""
        if self.path.startswith("/v1/fine_tuning/"):
            return f"fine_tuning_{parameter}"
        return f"looped_{parameter}" if self.path.endswith("/loop") else parameter

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(re.findall(r"{(\w+)}", self.path))

    @property
    def id_parameters(self) -> tuple[str, ...]:
        return tuple(name for name in self.parameters if name not in NO_IDS)


def api_routes() -> list[Route]:
    return [
        Route(path=path, view=view, methods=_methods(view))
        for path, view in _walk(get_resolver().url_patterns, "/")
        if path.startswith("/v1/") and path not in PUBLIC
    ]


def _walk(patterns: list[Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for entry in patterns:
        path = prefix + _PARAMETER.sub(r"{\1}", str(entry.pattern))
        if isinstance(entry, URLResolver):
            yield from _walk(entry.url_patterns, path)
        else:
            assert isinstance(entry, URLPattern)
            yield path, getattr(entry.callback, "view_class", entry.callback)


def _methods(view: Any) -> tuple[str, ...]:
    if isinstance(view, type) and issubclass(view, OrganizationView):
        return tuple(method for method in METHODS if hasattr(view, method.lower()))
    return ("POST",)  # a view of the gateway is a function, which accepts only POST

"""Describes routes to drf-spectacular, according to the operations that are declared on the views' methods."""

import inspect
from collections.abc import Iterator
from typing import Any

from drf_spectacular.contrib.pydantic import PydanticExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, PolymorphicProxySerializer

from control.core.api.operation import Operation, operation_of
from control.core.api.schemas import Error
from control.operations.openapi.summaries import summary_of
from control.tenants.authentication.views import OrganizationView

SECURITY: list[dict[str, list[str]]] = [{"key": []}, {"x-api-key": []}]  # either header is accepted
FAILURES = {
    "4XX": "The request was refused; `code` gives the reason. 401: the API key is missing or invalid. 403: the key "
    "lacks the scope. 404: the object does not exist or belongs to another organization.",
    "5XX": "The server failed; the request itself may be valid.",
}


class PatchExtension(PydanticExtension):  # type: ignore[no-untyped-call]
    """Makes all members of the body of a PATCH optional."""

    target_class = "control.core.api.schemas.RequestModel"
    match_subclasses = True
    priority = 1  # tried before `PydanticExtension`, which matches every model

    def map_serializer(self, auto_schema: AutoSchema, direction: str) -> Any:
        schema = super().map_serializer(auto_schema, direction)  # type: ignore[no-untyped-call]
        if auto_schema.method == "PATCH":
            schema.pop("required", None)
        return schema


class OperationSchema(AutoSchema):
    def _entry(self) -> Operation:
        declared = operation_of(type(self.view), self.method)
        assert declared is not None, f"{type(self.view).__name__}.{self.method.lower()} lacks @operation"
        return declared

    def get_operation_id(self) -> str:
        return self._entry().id

    def get_summary(self) -> str:
        return summary_of(self._entry())

    def get_tags(self) -> list[str]:
        return [self._entry().id.partition(".")[0]]

    def get_description(self) -> str:  # type: ignore[override]  # as drf-spectacular calls it
        assert isinstance(self.view, OrganizationView)
        method, view = getattr(self.view, self.method.lower()), type(self.view)
        text = inspect.getdoc(method) or inspect.cleandoc(vars(view).get("__doc__") or "")
        return f"{text}\n\nScope: `{self.view.scope}`.".strip()

    def get_auth(self) -> list[dict[str, list[str]]]:
        return SECURITY

    def get_request_serializer(self) -> Any:
        """Returns a subclass for PATCH: drf-spectacular sets `partial` on the class, which a POST may use as well."""
        request = self._entry().request
        return type(request.__name__, (request,), {}) if request and self.method == "PATCH" else request

    def get_override_parameters(self) -> list[Any]:
        query = [
            OpenApiParameter(name, OpenApiTypes.STR, description=text)
            for name, text in (self._entry().query or {}).items()
        ]
        tagged = [OpenApiParameter(name, OpenApiTypes.STR, "header", **rest) for name, rest in self._tags()]
        if self.method != "POST":
            return [*query, *tagged]
        text = "Makes retries safe: requests with the same key are executed only once."
        return [*query, OpenApiParameter("Idempotency-Key", OpenApiTypes.STR, "header", description=text)]

    def _tags(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the headers of an operation whose object has an ETag, with the arguments that describe them."""
        if self._entry().tagged_by is not None:
            covered = "A hash of the members that PATCH can change."
            yield "ETag", {"description": covered, "response": [self._entry().status]}
            if self.method == "PATCH":
                text = "An earlier response's `ETag`. If the object has changed, the response is 412 `object_changed`."
                yield "If-Match", {"description": text}

    def get_filter_backends(self) -> list[Any]:
        return []

    def get_response_serializers(self) -> Any:
        entry = self._entry()
        responses: dict[Any, Any] = {status: OpenApiResponse(Error, text) for status, text in FAILURES.items()}
        if isinstance(entry.response, str):
            responses[entry.status, entry.response] = OpenApiTypes.BINARY
        else:
            responses[entry.status, "application/json"] = entry.response
        if entry.plan is not None:
            text, plan = "The response to a request with `validate_only`.", entry.plan
            if entry.status == 200:
                text, plan = "With `validate_only`, the response is a plan.", _either(entry.response, entry.plan)
            responses[200, "application/json"] = OpenApiResponse(plan, text)
        if entry.also is not None:
            responses[entry.status, entry.also] = OpenApiTypes.STR
        return responses


def _either(response: Any, plan: Any) -> Any:
    return PolymorphicProxySerializer(
        component_name=f"{response.__name__}Or{plan.__name__}",
        serializers=[response, plan],
        resource_type_field_name=None,
    )

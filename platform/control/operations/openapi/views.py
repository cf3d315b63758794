"""GET /v1/openapi.json, and /docs, a page that shows the document. Neither needs an API key."""

from functools import lru_cache
from typing import Any

from django.http import HttpRequest, JsonResponse
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.views import SpectacularSwaggerSplitView


class ReferencePage(SpectacularSwaggerSplitView):
    """Serves Swagger UI. The page loads its script with a separate request, because inline scripts are forbidden."""

    url = "/v1/openapi.json"
    authentication_classes = ()
    permission_classes = ()


def document(request: HttpRequest) -> JsonResponse:
    return JsonResponse(generate())


@lru_cache(maxsize=1)
def generate() -> dict[str, Any]:
    """Builds the document once per process, because routes do not change while a process runs."""
    schema: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    return schema

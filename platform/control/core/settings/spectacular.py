"""Settings of drf-spectacular. This module must not import models, because Django imports settings before models."""

from typing import Any

SPECTACULAR: dict[str, Any] = {
    "TITLE": "Slipstream",
    "DESCRIPTION": "Faster answers without changing a single token. Every error has the shape `Error`.",
    "VERSION": "v1",
    "OAS_VERSION": "3.1.0",
    "SCHEMA_PATH_PREFIX": "/v1/",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    # The page begins with the list of resources and a field that filters them; each operation has an address.
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "docExpansion": "none", "filter": True, "defaultModelsExpandDepth": 0},
    "POSTPROCESSING_HOOKS": [
        "control.operations.openapi.gateway.add_gateway",
        "control.operations.openapi.tidy.tidy",
        "control.operations.openapi.examples.add_examples",
    ],
    "APPEND_COMPONENTS": {
        "securitySchemes": {
            "key": {"type": "http", "scheme": "bearer"},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
    },
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "SECURITY": [{"key": []}, {"x-api-key": []}],
    "ENABLE_DJANGO_DEPLOY_CHECK": False,  # a test does the check, with warnings as errors
}

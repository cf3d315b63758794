"""All routes: the API under /v1/, the operators' console under /admin/."""

from django.contrib import admin
from django.urls import include, path

from control.core.api.views import health

_API = (
    "accounts", "audit", "files", "uploads", "datasets", "batches", "catalog", "jobs", "pipelines", "fine_tuning",
    "evaluations", "captures", "deployments", "events", "webhooks", "usage", "quotes", "spending",
    "distillations", "adapters", "rollouts", "exchanges", "gateway", "openapi",
)  # fmt: skip

urlpatterns = [
    path("health", health),
    path("admin/", include("control.operations.console.urls")),
    path("admin/", admin.site.urls),
    *(path("v1/", include(f"control.{app}.urls")) for app in _API),
]

handler400 = "control.core.api.views.bad_request"
handler403 = "control.core.api.views.permission_denied"
handler404 = "control.core.api.views.not_found"
handler500 = "control.core.api.views.server_error"

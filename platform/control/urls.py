"""All routes: the API under /v1/, the operators' console under /admin/."""

from django.contrib import admin
from django.urls import include, path

from control.core.api.views import health

_API = (
    "tenants.administration", "tenants.audit", "data.files", "data.uploads", "workflows.datasets", "workflows.batches",
    "serving.model_list", "models.catalog", "queue.jobs", "workflows.pipelines", "workflows.fine_tuning",
    "workflows.evaluations", "serving.captures", "serving.deployments", "tenants.events", "tenants.webhooks",
    "billing.usage", "workflows.quotes", "billing.spending", "workflows.distillations", "models.adapters",
    "serving.rollouts", "workflows.speculators", "serving.gateway", "operations.openapi",
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

"""All routes: the API under /v1/, the operators' console under /admin/."""

from importlib.util import find_spec

from django.apps import apps
from django.contrib import admin
from django.urls import include, path

from control.core.api.views import health

_WITHOUT_TABLES = ("control.workflows.speculators", "control.serving.gateway", "control.operations.openapi")  # no apps of Django's
_APPS = tuple(app.name for app in apps.get_app_configs() if app.name.startswith("control."))
_API = [
    f"{name}.urls"
    for name in (*_APPS, *_WITHOUT_TABLES)
    if name != "control.operations.console" and find_spec(f"{name}.urls") is not None
]

urlpatterns = [
    path("health", health),
    path("admin/", include("control.operations.console.urls")),
    path("admin/", admin.site.urls),
    *(path("v1/", include(urls)) for urls in _API),
]

handler400 = "control.core.api.views.bad_request"
handler403 = "control.core.api.views.permission_denied"
handler404 = "control.core.api.views.not_found"
handler500 = "control.core.api.views.server_error"

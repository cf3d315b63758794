"""All routes: API under /v1/, its reference under /docs, console under /admin/, members' sign-in under /account/."""

from pathlib import Path

from django.contrib import admin
from django.urls import include, path

from control.core.api.views import health
from control.operations.openapi.views import ReferencePage

# Every app with routes has a module `urls`. The modules with routes of pages are mounted separately from the API.
_API = sorted(
    f"control.{path.parts[-3]}.{path.parts[-2]}.urls"
    for path in Path(__file__).parent.glob("*/*/urls.py")
    if path.parent.name not in ("console", "sign_in")
)

urlpatterns = [
    path("health", health),
    path("docs", ReferencePage.as_view(), name="api-reference"),
    path("account/", include("control.operations.sign_in.urls")),
    path("admin/", include("control.operations.console.urls")),
    path("admin/", admin.site.urls),
    *(path("v1/", include(urls)) for urls in _API),
]

handler400 = "control.core.api.views.bad_request"
handler403 = "control.core.api.views.permission_denied"
handler404 = "control.core.api.views.not_found"
handler500 = "control.core.api.views.server_error"

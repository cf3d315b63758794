"""URLs of the console's own pages below /admin/. The other pages belong to classes of Django's ModelAdmin."""

from django.contrib import admin
from django.urls import path

from control.operations.console.chat import CHAT_PATH, chat_completions
from control.operations.console.compare import speculators_compare
from control.operations.console.lineage import lineage
from control.operations.console.pool import pool
from control.operations.console.queue import queue
from control.operations.console.site import redirect_to_row
from control.operations.console.views import organization_export, organization_invoice, speculator_plot

urlpatterns = [
    path("r/<path:content_type_id>/<path:object_id>/", admin.site.admin_view(redirect_to_row)),
    path(
        "organizations/<str:organization_id>/invoices/<str:month>.csv",
        admin.site.admin_view(organization_invoice),
        name="organization-invoice",
    ),
    path(
        "organization-exports/<str:export_id>.tar",
        admin.site.admin_view(organization_export),
        name="organization-export",
    ),
    path(CHAT_PATH.removeprefix("/admin/"), chat_completions, name="chat-completions"),
    path("lineage/<str:object_id>", admin.site.admin_view(lineage), name="lineage"),
    path("pool", admin.site.admin_view(pool), name="pool"),
    path("queue", admin.site.admin_view(queue), name="queue"),
    path("speculators/compare", admin.site.admin_view(speculators_compare), name="speculators-compare"),
    path("speculators/<str:speculator_id>/plot", admin.site.admin_view(speculator_plot), name="speculator-plot"),
]

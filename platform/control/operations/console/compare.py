"""Compares speculators side by side: one column for each speculator, one line for each figure of the reports."""

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from control.models.catalog.models import Speculator
from control.operations.console.base import rows_of
from control.operations.console.rendering import is_nested, number

MAX_SPECULATORS = 8
FIRST = ("acceptance_length", "speedup", "outputs_equal", "prompts_held_out")  # the most important figures come first


def speculators_compare(request: HttpRequest) -> HttpResponse:
    """Shows the speculators whose ids the query parameter `ids` lists, separated by commas.

    `urls` wraps this view, so that it requires the sign-in.
    """
    if not admin.site._registry[Speculator].has_view_permission(request):
        raise PermissionDenied
    ids = request.GET.get("ids", "").split(",")[:MAX_SPECULATORS]
    by_id = rows_of(Speculator, request).select_related("base_model", "organization").in_bulk(ids)
    rows = [by_id[pk] for pk in ids if pk in by_id]
    reported = {name for row in rows for name, value in row.report.items() if not is_nested(value)}
    names = [name for name in FIRST if name in reported] + sorted(reported.difference(FIRST))
    context = {
        **admin.site.each_context(request),
        "title": "Speculators side by side",
        "speculators": rows,
        "lines": [(name.replace("_", " "), [number(row.report.get(name)) for row in rows]) for name in names],
    }
    return TemplateResponse(request, "console/compare.html", context)

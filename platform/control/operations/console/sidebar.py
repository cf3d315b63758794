"""Builds the console's sidebar from the entries that the admin classes declare."""

from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse

from control.operations.console.visitors import member_of, staff_may

SECTIONS = ("Work", "Serving", "Tenants", "Access")


@dataclass(frozen=True, slots=True, order=True)
class SidebarEntry:
    section: str  # one of SECTIONS
    rank: int  # position within the section
    title: str
    icon: str  # name of a Material symbol


# These pages have no admin class.
_QUEUE = (SidebarEntry("Work", 5, "Queue and workers", "groups"), "queue")
_POOL = (SidebarEntry("Work", 6, "Pool of devices", "memory"), "pool")


def navigation(request: HttpRequest) -> list[dict[str, Any]]:
    """Unfold's setting SIDEBAR["navigation"]: the pages that the caller may open."""
    entries = [_QUEUE, _POOL] if staff_may(request, "jobs.view_job") else []
    for model, page in admin.site._registry.items():
        entry = getattr(page, "sidebar", None)
        if entry is not None and page.has_module_permission(request):
            entries.append((entry, f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"))
    overview = {"items": [{"title": "Overview", "icon": "space_dashboard", "link": reverse("admin:index")}]}
    reference = {"title": "API reference", "icon": "menu_book", "link": reverse("api-reference")}
    sections = [(name, _items(name, entries)) for name in SECTIONS]
    shown = [{"title": name, "separator": True, "items": items} for name, items in sections if items]
    return [overview, *shown, {"separator": True, "items": [reference]}]


def account_links(request: HttpRequest) -> list[dict[str, str]]:
    """Unfold's setting ACCOUNT["navigation"]: links in the menu of the signed-in user."""
    return [{"title": "Second factor", "link": reverse("mfa_index")}] if member_of(request) else []


def _items(section: str, entries: list[tuple[SidebarEntry, str]]) -> list[dict[str, str]]:
    return [
        {"title": entry.title, "icon": entry.icon, "link": reverse(route)}
        for entry, route in sorted(entries)
        if entry.section == section
    ]

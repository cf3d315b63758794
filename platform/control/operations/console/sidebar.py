"""Builds the console's sidebar from the entries that the admin classes declare."""

from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse

SECTIONS = ("Work", "Serving", "Tenants", "Access")


@dataclass(frozen=True, slots=True, order=True)
class SidebarEntry:
    section: str  # one of SECTIONS
    rank: int  # position within the section
    title: str
    icon: str  # name of a Material symbol


_QUEUE = (SidebarEntry("Work", 5, "Queue and workers", "groups"), "queue")  # this page has no admin class


def navigation(request: HttpRequest) -> list[dict[str, Any]]:
    """Unfold's setting SIDEBAR["navigation"]."""
    entries = [_QUEUE]
    for model, page in admin.site._registry.items():
        entry = getattr(page, "sidebar", None)
        if entry is not None:
            entries.append((entry, f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"))
    overview = {"items": [{"title": "Overview", "icon": "space_dashboard", "link": reverse("admin:index")}]}
    return [overview, *({"title": name, "separator": True, "items": _items(name, entries)} for name in SECTIONS)]


def _items(section: str, entries: list[tuple[SidebarEntry, str]]) -> list[dict[str, str]]:
    return [
        {"title": entry.title, "icon": entry.icon, "link": reverse(route)}
        for entry, route in sorted(entries)
        if entry.section == section
    ]

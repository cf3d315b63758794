"""HTML fragments of pages. `live.js` refreshes those that are marked `data-live` every two seconds."""

from collections.abc import Iterable, Mapping
from typing import Any

from django.contrib.admin.utils import quote
from django.db.models import Model
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from control.billing.usage.schemas import Amount
from control.queue.devices.blocked import waiting_described
from control.queue.jobs.models import Job

_TONES = {
    "success": ("succeeded", "completed", "ready", "live"),
    "info": (
        *("running", "in_progress", "finalizing", "validating", "provisioning", "training"),
        *("distilling", "evaluating", "gating", "deploying", "checking", "starting", "canary", "promoting", "watching"),
    ),
    "danger": ("failed", "expired", "refused", "rolled_back"),
    "warning": ("paused", "degraded", "cancelling", "stopping", "rejected"),
}
TONE_OF_STATUS = {status: tone for tone, statuses in _TONES.items() for status in statuses}


def position(job: Job) -> str:
    """Returns the job's position in the queue, and why no worker claims it; a dash if it is not waiting."""
    if job.queue_position is None:  # the opening of the page may have read it
        waiting_described([job])
    if job.queue_position is None:  # a job that is held until older workers have ended has no position
        return "–" if job.blocked is None else job.blocked["message"]
    return str(job.queue_position) if job.blocked is None else f"{job.queue_position}. {job.blocked['message']}"


def why_not_running(job: Job) -> str:
    """Says why a job is paused, or that it waits for a worker; empty for all other jobs.

    The caller must have set the job's `queue_position`.
    """
    if job.status == Job.Status.PAUSED:
        return f"Paused: {(job.paused or {}).get('message', '')}"
    if job.status == Job.Status.QUEUED:
        if job.queue_position is None and job.blocked is not None:
            return f"Waiting for a worker. {job.blocked['message'].rstrip('.')}"
        place = "" if job.queue_position is None else f", at position {job.queue_position}"
        return f"Waiting for a worker{place}"
    return ""


def badge(row: Model, status: str, *, active: bool) -> SafeString:
    """Renders a status as a badge.

    Args: active: whether the status can change without an operator's action. If so, `live.js` refreshes the page.
    """
    return format_html(
        '<span data-live="{}-status" data-live-active="{}" class="console-badge console-{}">{}</span>',
        row.pk,
        "yes" if active else "no",
        TONE_OF_STATUS.get(status, "default"),
        status.replace("_", " "),
    )


def progress_bar(row: Model, done: int, total: int, unit: str) -> SafeString:
    percent = min(100.0, 100.0 * done / total) if total else 0.0
    return render_to_string(
        "console/progress.html", {"pk": row.pk, "done": done, "total": total, "unit": unit, "percent": percent}
    )


def table(row: Model, name: str, header: Iterable[str], lines: Iterable[Iterable[object]]) -> SafeString:
    return render_to_string(
        "console/table.html",
        {"pk": row.pk, "name": name, "header": list(header), "lines": [list(line) for line in lines]},
    )


def pairs(row: Model, name: str, values: Mapping[str, Any]) -> SafeString:
    """Renders a mapping as a table of two columns, without nested values."""
    lines = [(key.replace("_", " "), number(value)) for key, value in values.items() if not is_nested(value)]
    return table(row, name, [], lines)


def is_nested(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict | list) for item in value))


def number(value: object) -> str:
    """Formats a value for reading. Fractions have four significant digits, which is enough for a report."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(number(item) for item in value) or "none"
    return str(value)


def duration(seconds: float) -> str:
    """Formats a duration with its two largest units: `1 h 5 min`, `3 min 20 s`, `9 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def usd(nanousd: int) -> str:
    return f"{Amount.of(nanousd).value:,.6g}"


def link(row: Model | None, title: str = "") -> SafeString | str:
    """A link to a row's page."""
    if row is None:
        return "–"
    return format_html('<a class="console-link" href="{}">{}</a>', page_url(row), title or str(row))


def page_url(row: Model) -> str:
    """The URL of a row's page. `quote` is needed because ids contain an underscore, which is `_5F` in such URLs."""
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[quote(row.pk)])


def error_text(error: Mapping[str, Any] | None) -> SafeString | str:
    if not error:
        return "–"
    return format_html("<strong>{}</strong> {}", error.get("code", ""), error.get("message", ""))

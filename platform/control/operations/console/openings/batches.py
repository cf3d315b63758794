"""The opening of a batch's page: its rows, its errors by code, and its first answers."""

import datetime as dt

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from control.operations.console.rendering import duration, progress_bar, why_not_running
from control.operations.console.visitors import member_of
from control.queue.devices.blocked import waiting_described
from control.queue.jobs.models import Job
from control.workflows.batches.estimates import estimated_end
from control.workflows.batches.models import Batch
from control.workflows.batches.samples import first_errors, first_results

NUM_RESULTS = 10
NUM_ERRORS = 5
_SENTENCES = {
    Batch.Status.VALIDATING: "Its input file is being checked.",
    Batch.Status.IN_PROGRESS: "Its rows are being answered.",
    Batch.Status.FINALIZING: "All rows are done; the result files are being written.",
    Batch.Status.CANCELLING: "It is being cancelled. Finished rows keep their answers.",
    Batch.Status.COMPLETED: "It is completed.",
    Batch.Status.FAILED: "It has failed.",
    Batch.Status.EXPIRED: "Its completion window ended before all rows were answered.",
    Batch.Status.CANCELLED: "It was cancelled. Finished rows have kept their answers.",
}


def batch_opening(request: HttpRequest, row: Batch, *, is_active: bool) -> SafeString:
    """Renders the opening. Only members see the answers, because these are contents of customers' files.

    Args: row: a batch with the annotations of `with_progress`.
    """
    is_member = member_of(request) is not None
    completed, failed = (row.shards_completed, row.shards_failed) if is_active else (row.completed, row.failed)  # type: ignore[attr-defined]  # annotated
    context = {
        "row": row,
        "is_active": is_active,
        "sentence": _SENTENCES[Batch.Status(row.status)],
        "note": _note(row) if is_active else "",
        "first_problem": (row.errors or [None])[0],
        "bar": progress_bar(row, completed + failed if is_active else completed, row.total, "rows"),
        "counts": {"completed": completed, "failed": failed},
        "codes": sorted(row.errors_by_code.items(), key=lambda pair: (-pair[1], pair[0])),
        "errors": first_errors(row, NUM_ERRORS) if is_member else [],
        "results": first_results(row, NUM_RESULTS) if is_member and row.total else [],
        "is_member": is_member,
    }
    return render_to_string("console/openings/batch.html", context)


def _note(row: Batch) -> str:
    """Says why the batch waits, or how long it will take."""
    job = row.job
    waiting_described([job])
    if reason := why_not_running(job):
        return f"{reason}." if job.status == Job.Status.QUEUED else reason
    end = estimated_end(row)
    if end is None:
        return ""
    return f"About {duration(max(0.0, (end - dt.datetime.now(dt.UTC)).total_seconds()))} left."

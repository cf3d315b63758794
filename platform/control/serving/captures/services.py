"""Services that write captured traffic.

After the opt-in, each request to the deployment is stored as a row for `hours`. `capture_export` writes the rows to a
file of prompts for the next pipeline. All rows are deleted after the opt-out, or if the deployment is deleted.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import structlog
from django.db import DatabaseError, transaction
from django.db.models import Exists

from control.core.api.errors import ApiError
from control.core.storage.staging import staged_writer
from control.core.storage.undo import delete_stored_on_error
from control.core.transactions import change
from control.data.files.models import File
from control.data.files.services import file_add, file_store
from control.serving.captures.models import Capture, CapturedRequest
from control.serving.captures.selectors import oldest_kept, requests_kept
from control.serving.deployments.models import Deployment
from control.tenants.audit.record import audit_record, audited
from control.tenants.quotas.file_work import MAX_TEXT_BYTES, file_work

log = structlog.get_logger(__name__)

MAX_HOURS = 30 * 24
MAX_BODY_BYTES = 256 * 1024  # longer requests are not kept
MAX_REQUESTS = 20_000  # of one deployment; the newest are kept
MAX_FILE_BYTES = MAX_TEXT_BYTES
_READ_ROWS = 16
# Parameters without use for training. `capture_export` adds `model` again, as the base model's name.
_NOT_KEPT = ("model", "stream", "stream_options", "n", "user", "metadata", "store")


@audited("capture.set")
def capture_set(*, deployment: Deployment, hours: int) -> Capture:
    """Keeps requests for `hours` from now on. The new duration also applies to requests that are already kept."""
    values = {"hours": hours, "organization": deployment.organization}
    capture, _ = Capture.objects.update_or_create(deployment=deployment, defaults=values)
    return capture


@audited("capture.end")
def capture_end(*, capture: Capture) -> None:
    """Ends the capture and deletes all requests that were kept."""
    with transaction.atomic():
        CapturedRequest.objects.filter(deployment_id=capture.deployment_id).delete()
        capture.delete()


def request_capture(*, deployment_id: str, endpoint: str, body: Mapping[str, Any]) -> bool:
    """Keeps an answered request if the customer opted in. Returns whether the request is kept."""
    capture = Capture.objects.filter(deployment_id=deployment_id).first()
    kept = {name: value for name, value in body.items() if name not in _NOT_KEPT}
    if capture is None or len(json.dumps(kept).encode()) > MAX_BODY_BYTES:
        return False
    try:
        with transaction.atomic():
            CapturedRequest.objects.create(
                deployment_id=deployment_id, organization_id=capture.organization_id, endpoint=endpoint, body=kept
            )
    except DatabaseError as error:  # PostgreSQL refuses some characters; the caller must get the answer all the same
        log.warning("could not keep a request", deployment_id=deployment_id, error=str(error))
        return False
    return True


@audited("capture.export", records_itself=True)
def capture_export(*, capture: Capture) -> File:
    """Writes the distinct requests that are kept into a file, as rows of a batch for the base model.

    The file has the newest requests that fit into `MAX_FILE_BYTES`.

    Raises: ApiError: 409, no request is kept; 429, too many files are being read or written.
    """
    deployment = capture.deployment
    with file_work.taken(capture.organization_id), staged_writer() as writer:
        for row in _rows(capture):
            line = json.dumps(row, ensure_ascii=False).encode() + b"\n"
            if writer.size_bytes + len(line) > MAX_FILE_BYTES:
                break
            writer.write(line)
        if not writer.size_bytes:
            raise ApiError(409, f"No request to {deployment.name!r} has been kept yet.", "nothing_captured")
        with delete_stored_on_error():
            file = file_store(
                organization=deployment.organization,
                filename=f"{deployment.name}.captured.jsonl",
                purpose=File.Purpose.BATCH,
                staged=writer.finish(),
            )
            with change():
                file_add(file=file)
                audit_record("capture.export", file)
    return file


def _rows(capture: Capture) -> Iterator[dict[str, Any]]:
    """Yields rows of a batch, newest first, without duplicates, so that no held-out prompt is a training prompt too."""
    seen: set[bytes] = set()
    model = capture.deployment.base_model.name
    newest_first = list(requests_kept(capture).order_by("-id").values_list("pk", flat=True)[:MAX_REQUESTS])
    for request in _in_order(newest_first):
        identity = hashlib.sha256(json.dumps([request.endpoint, request.body], sort_keys=True).encode()).digest()
        if identity not in seen:
            seen.add(identity)
            body = {**request.body, "model": model}
            yield {"custom_id": f"captured-{request.pk}", "method": "POST", "url": request.endpoint, "body": body}


def _in_order(ids: Sequence[int]) -> Iterator[CapturedRequest]:
    """Reads a few rows at a time: a cursor of PostgreSQL would copy all of them, gigabytes, to a temporary file."""
    for start in range(0, len(ids), _READ_ROWS):
        some = ids[start : start + _READ_ROWS]
        rows = CapturedRequest.objects.in_bulk(some)
        yield from (rows[pk] for pk in some if pk in rows)  # the others have been pruned meanwhile


def captures_prune() -> None:
    """Deletes requests that are too old, not among the newest `MAX_REQUESTS`, or of a deleted deployment."""
    for capture in Capture.objects.prefetch_related("deployment"):  # a join may read all deployments
        if capture.deployment.deleted_at is not None:
            capture.delete()
    for deployment_id in _deployments_with_requests():
        has_capture = Exists(Capture.objects.filter(deployment_id=deployment_id))
        CapturedRequest.objects.filter(~has_capture, deployment_id=deployment_id).delete()
    for capture in Capture.objects.all():
        captured = CapturedRequest.objects.filter(deployment_id=capture.deployment_id)
        captured.filter(created_at__lte=oldest_kept(capture)).delete()
        newest_excess = captured.order_by("-id").values_list("pk", flat=True)[MAX_REQUESTS : MAX_REQUESTS + 1].first()
        if newest_excess is not None:
            captured.filter(pk__lte=newest_excess).delete()


def _deployments_with_requests() -> Iterator[str]:
    """Finds each id with one search in the index, because a DISTINCT would read an entry for every request."""
    ids = CapturedRequest.objects.order_by("deployment_id").values_list("deployment_id", flat=True)
    deployment_id = ""
    while (following := ids.filter(deployment_id__gt=deployment_id).first()) is not None:
        yield following
        deployment_id = following

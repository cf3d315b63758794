"""Services that write captured traffic.

After the opt-in, a sample of the requests to the deployment is stored for `hours`, redacted and encrypted. The capture
stops if the organization reaches its limit of stored bytes. `capture_export` writes the stored requests to a file of
prompts for the next pipeline. All of them are deleted after the opt-out, or if the deployment is deleted.
"""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import structlog
from django.db import DatabaseError, transaction
from django.db.models import Exists, QuerySet

from control.core.api.errors import ApiError
from control.core.storage.staging import staged_writer
from control.core.storage.undo import delete_stored_on_error
from control.core.transactions import change
from control.data.files.models import File
from control.data.files.services import file_add, file_store
from control.data.recognisers.recogniser import InvalidPattern
from control.serving.captures.models import Capture, CapturedRequest
from control.serving.captures.redaction import has_token_ids, redaction_of
from control.serving.captures.sealing import Sealer
from control.serving.captures.selectors import oldest_kept, requests_kept
from control.serving.deployments.models import Deployment
from control.tenants.audit.record import audit_record, audited
from control.tenants.quotas.file_work import MAX_TEXT_BYTES, file_work
from control.tenants.quotas.models import StoredPart
from control.tenants.quotas.storage import storage_count, storage_take

log = structlog.get_logger(__name__)

MAX_HOURS = 30 * 24
MAX_BODY_BYTES = 256 * 1024  # longer requests are not kept
DELETE_LIMIT = 500  # rows that one transaction deletes
SEAL_LIMIT = 1_000  # rows that one call encrypts
MAX_REQUESTS = 20_000  # limit for one deployment; only its newest requests are kept
MAX_FILE_BYTES = MAX_TEXT_BYTES
_READ_ROWS = 16
# Parameters without use for training. `capture_export` adds `model` again, as the base model's name.
_NOT_KEPT = (
    *("model", "stream", "stream_options", "n", "user", "metadata", "store", "return_token_ids"),
    "return_acceptance",
)


@audited("capture.set")
def capture_set(
    *,
    deployment: Deployment,
    hours: int,
    sample_percent: float = 100.0,
    redact: Sequence[str] = (),
    redact_patterns: Sequence[str] = (),
) -> Capture:
    """Keeps requests for `hours` from now on. The new duration also applies to requests that are already stored; the
    new redaction does not.

    Effects: a capture that has stopped starts again.
    Raises: ApiError: 400, a pattern is invalid.
    """
    try:
        redaction_of(tuple(redact), tuple(redact_patterns))
    except InvalidPattern as error:
        raise ApiError(400, str(error), "invalid_pattern", "redact_patterns") from error
    values = {
        "hours": hours,
        "sample_percent": sample_percent,
        "redact": list(redact),
        "redact_patterns": list(redact_patterns),
        "organization": deployment.organization,
        "stopped": None,
    }
    capture, _ = Capture.objects.update_or_create(deployment=deployment, defaults=values)
    return capture


@audited("capture.end")
def capture_end(*, capture: Capture) -> None:
    """Ends the capture and deletes all requests that were kept."""
    with transaction.atomic():
        _delete_captured(CapturedRequest.objects.filter(deployment_id=capture.deployment_id))
        capture.delete()


def request_capture(*, deployment_id: str, endpoint: str, body: Mapping[str, Any]) -> bool:
    """Keeps an answered request if the customer opted in and the sample includes it. Returns whether it is kept."""
    capture = Capture.objects.filter(deployment_id=deployment_id, stopped__isnull=True).first()
    kept = {name: value for name, value in body.items() if name not in _NOT_KEPT}
    if capture is None or random.uniform(0, 100) >= capture.sample_percent:
        return False
    redaction = redaction_of(tuple(capture.redact), tuple(capture.redact_patterns))
    if redaction and has_token_ids(kept):
        return False  # the recognisers read texts, not token ids
    sealed = Sealer.of(capture.organization_id).seal(redaction.apply(kept), deployment_id=deployment_id)
    size_bytes = len(sealed)
    if size_bytes > MAX_BODY_BYTES:
        return False
    try:
        with transaction.atomic():
            storage_take(capture.organization_id, StoredPart.CAPTURES, size_bytes)
            CapturedRequest.objects.create(
                deployment_id=deployment_id,
                organization_id=capture.organization_id,
                endpoint=endpoint,
                sealed=sealed,
                size_bytes=size_bytes,
            )
    except ApiError as error:
        stopped = {"code": error.code, "message": error.message}
        Capture.objects.filter(pk=deployment_id).update(stopped=stopped)
        return False
    except DatabaseError as error:  # such as a character that PostgreSQL refuses; the caller must get the answer
        log.warning("could not keep a request", deployment_id=deployment_id, error=str(error))
        return False
    return True


@audited("capture.export", records_itself=True)
def capture_export(*, capture: Capture) -> File:
    """Makes a file of the distinct requests that are kept. Raises: ApiError: as `capture_file_store`."""
    with delete_stored_on_error():
        file = capture_file_store(capture=capture)
        with change():
            file_add(file=file)
            audit_record("capture.export", file)
    return file


def capture_file_store(*, capture: Capture, max_rows: int = MAX_REQUESTS) -> File:
    """Writes the distinct captured requests to a batch file for the base model. Returns an unsaved `File`, which
    `file_add` saves; see `file_store`.

    The file has the newest requests that fit into `MAX_FILE_BYTES`, at most `max_rows` of them.

    Raises: ApiError: 409, no request is kept; 429, too many files are being read or written.
    """
    deployment = capture.deployment
    with file_work.taken(capture.organization_id), staged_writer() as writer:
        for row in islice(_rows(capture), max_rows):
            line = json.dumps(row, ensure_ascii=False).encode() + b"\n"
            if writer.size_bytes + len(line) > MAX_FILE_BYTES:
                break
            writer.write(line)
        if not writer.size_bytes:
            raise ApiError(409, f"No request to {deployment.name!r} has been kept yet.", "nothing_captured")
        return file_store(
            organization=deployment.organization,
            filename=f"{deployment.name}.captured.jsonl",
            purpose=File.Purpose.BATCH,
            staged=writer.finish(),
            made_from=deployment.pk,
        )


def _rows(capture: Capture) -> Iterator[dict[str, Any]]:
    """Yields the lines of a batch file, newest request first.

    Duplicates are left out, so that no held-out prompt is also a training prompt.
    """
    seen: set[bytes] = set()
    model, sealer = capture.deployment.base_model.name, Sealer.of(capture.organization_id)
    newest_first = list(requests_kept(capture).order_by("-id").values_list("pk", flat=True)[:MAX_REQUESTS])
    for request in _in_order(newest_first):
        kept = sealer.open(bytes(request.sealed), deployment_id=request.deployment_id)
        identity = hashlib.sha256(json.dumps([request.endpoint, kept], sort_keys=True).encode()).digest()
        if identity not in seen:
            seen.add(identity)
            body = {**kept, "model": model}
            yield {"custom_id": f"captured-{request.pk}", "method": "POST", "url": request.endpoint, "body": body}


def _in_order(ids: Sequence[int]) -> Iterator[CapturedRequest]:
    """Yields the requests with these ids.

    A few rows are read at a time: a cursor of PostgreSQL would copy all of them, gigabytes, to a temporary file.
    """
    for start in range(0, len(ids), _READ_ROWS):
        some = ids[start : start + _READ_ROWS]
        rows = CapturedRequest.objects.in_bulk(some)
        yield from (rows[pk] for pk in some if pk in rows)  # a missing row has been pruned meanwhile


def captures_seal() -> None:
    """Encrypts the bodies that processes of an earlier release store in plain text during an upgrade."""
    plain = CapturedRequest.objects.filter(body__isnull=False).order_by("pk")
    for request in list(plain[:SEAL_LIMIT]):
        assert request.body is not None
        sealed = Sealer.of(request.organization_id).seal(request.body, deployment_id=request.deployment_id)
        CapturedRequest.objects.filter(pk=request.pk).update(sealed=sealed, body=None)


def captures_prune() -> None:
    """Deletes captured requests that are too old, that exceed `MAX_REQUESTS`, or whose deployment has been deleted."""
    for capture in Capture.objects.prefetch_related("deployment"):  # with a join, the database may read all deployments
        if capture.deployment.deleted_at is not None:
            capture.delete()
    for deployment_id in _deployments_with_requests():
        has_capture = Exists(Capture.objects.filter(deployment_id=deployment_id))
        _delete_captured(CapturedRequest.objects.filter(~has_capture, deployment_id=deployment_id))
    for capture in Capture.objects.all():
        captured = CapturedRequest.objects.filter(deployment_id=capture.deployment_id)
        _delete_captured(captured.filter(created_at__lte=oldest_kept(capture)))
        newest_excess = captured.order_by("-id").values_list("pk", flat=True)[MAX_REQUESTS : MAX_REQUESTS + 1].first()
        if newest_excess is not None:
            _delete_captured(captured.filter(pk__lte=newest_excess))


def _delete_captured(captured: QuerySet[CapturedRequest]) -> None:
    """Deletes rows and subtracts their bytes from the organizations' stored bytes.

    The locks on the rows prevent two calls from subtracting the same bytes.
    """
    rows = captured.order_by("pk").values_list("pk", "organization_id", "size_bytes")
    while True:
        with transaction.atomic():
            locked = list(rows.select_for_update()[:DELETE_LIMIT])
            CapturedRequest.objects.filter(pk__in=[pk for pk, _, _ in locked]).delete()
            freed: Counter[str] = Counter()
            for _, organization_id, size_bytes in locked:
                freed[organization_id] += size_bytes
            for organization_id in sorted(freed):  # always the same order, so that two calls cannot deadlock
                storage_count(organization_id, StoredPart.CAPTURES, -freed[organization_id])
        if len(locked) < DELETE_LIMIT:
            return


def _deployments_with_requests() -> Iterator[str]:
    """Yields the ids of deployments that have captured requests.

    Each id takes one search in the index. A DISTINCT would read an entry of the index for every request.
    """
    ids = CapturedRequest.objects.order_by("deployment_id").values_list("deployment_id", flat=True)
    deployment_id = ""
    while (following := ids.filter(deployment_id__gt=deployment_id).first()) is not None:
        yield following
        deployment_id = following

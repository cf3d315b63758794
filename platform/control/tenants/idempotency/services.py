"""Services that write idempotency keys.

    key_claim ── the view's work and key_store, in one transaction ──> the response is stored and replayed for 24 h
        └─────── the request is refused or fails ── key_release ─────> the key can be used again

If a process dies during its work, its claim stays valid until `locked_until`. A later claim of the same key increases
the fence. If the first process was only slow, the fence then prevents it from storing its response, and its work is
rolled back.
"""

from dataclasses import dataclass

from django.db import IntegrityError, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from control.core.api.errors import ApiError
from control.core.database_clock import from_now
from control.tenants.accounts.models import Organization
from control.tenants.idempotency.models import IdempotencyKey
from control.tenants.row_security.scope import current_project

KEEP_SECONDS = 24 * 3600.0
LOCK_SECONDS = 15.0
RETRY_AFTER = {"Retry-After": "1"}
PURGE_LIMIT = 1_000
_MAX_TRIES = 5  # a key may be released between two statements, and can then be claimed


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to execute the request and to store its response."""

    pk: int
    fence: int


@dataclass(frozen=True, slots=True)
class StoredResponse:
    status: int
    body: str


def key_claim(*, organization: Organization, route: str, key: str, fingerprint: str) -> Claim | StoredResponse:
    """Claims the key, or returns the stored response.

    Raises: ApiError: 422, the key was used for a different request; 409, the same request is still running.
    """
    row = IdempotencyKey.objects.filter(organization=organization, project=current_project(), route=route, key=key)
    for _ in range(_MAX_TRIES):
        claim = _claim_new(organization, route, key, fingerprint) or _claim_free(row, fingerprint)
        if claim is not None:
            return claim
        existing = row.first()
        if existing is None:
            continue
        if existing.fingerprint != fingerprint:
            message = "This Idempotency-Key was used with a different request. A key may only repeat the same request."
            raise ApiError(422, message, "idempotency_key_reused")
        if existing.status is not None:
            return StoredResponse(existing.status, existing.body)
        break
    raise _in_use()


def _claim_new(organization: Organization, route: str, key: str, fingerprint: str) -> Claim | None:
    try:
        with transaction.atomic():
            row = IdempotencyKey.objects.create(
                organization=organization,
                route=route,
                key=key,
                fingerprint=fingerprint,
                locked_until=from_now(LOCK_SECONDS),
                created_at=Now(),
            )
    except IntegrityError:
        return None
    return Claim(row.pk, fence=1)


def _claim_free(row: QuerySet[IdempotencyKey], fingerprint: str) -> Claim | None:
    """Claims an existing key that is older than 24 hours or whose claim has expired."""
    free = Q(created_at__lt=from_now(-KEEP_SECONDS)) | Q(status=None, locked_until__lt=Now())
    with transaction.atomic():
        num_updated = row.filter(free).update(
            fingerprint=fingerprint,
            fence=F("fence") + 1,
            locked_until=from_now(LOCK_SECONDS),
            status=None,
            body="",
            created_at=Now(),
        )
        if not num_updated:
            return None
        claimed = row.get()  # the UPDATE has locked the row
    return Claim(claimed.pk, claimed.fence)


def key_store(*, claim: Claim, status: int, body: str) -> None:
    """Stores the response. Call this in the transaction of the view's work.

    Raises: ApiError: 409, another request has claimed the key meanwhile.
    """
    assert transaction.get_connection().in_atomic_block, "the response is stored with the work or not at all"
    if not _claimed_row(claim).update(status=status, body=body):
        raise _in_use()


def key_release(*, claim: Claim) -> None:
    """Frees the key of a request that changed nothing."""
    _claimed_row(claim).delete()


def keys_purge() -> int:
    """Deletes keys older than 24 hours. Returns: the number of keys."""
    old = IdempotencyKey.objects.filter(created_at__lt=from_now(-KEEP_SECONDS)).values_list("pk", flat=True)
    num_deleted, _ = IdempotencyKey.objects.filter(pk__in=list(old[:PURGE_LIMIT])).delete()
    return num_deleted


def _claimed_row(claim: Claim) -> QuerySet[IdempotencyKey]:
    return IdempotencyKey.objects.filter(pk=claim.pk, fence=claim.fence, status=None)


def _in_use() -> ApiError:
    message = "A request with this Idempotency-Key is running. Send it again to get its response."
    return ApiError(409, message, "idempotency_key_in_use", headers=RETRY_AFTER)

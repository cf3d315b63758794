"""Writers of idempotency keys.

    key_claim ── the request's work, and key_store, in one transaction ──> answered, replayed for 24 h
        └─────── the work is refused or breaks ── key_release ──> as if the key had never been sent

A process that dies in its work leaves a claim behind, which counts until `locked_until`. Whoever claims it after that
raises the fence; a process that was only slow then cannot store its answer, and its work is rolled back.
"""

from dataclasses import dataclass

from django.db import IntegrityError, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from control.core.api.errors import ApiError
from control.queue.jobs.state import from_now
from control.tenants.accounts.models import Organization
from control.tenants.idempotency.models import IdempotencyKey

KEEP_SECONDS = 24 * 3600.0
LOCK_SECONDS = 15.0
RETRY_AFTER = {"Retry-After": "1"}
PURGE_LIMIT = 1_000
_MAX_LOOKS = 5  # a key can be released between two of our statements: then it is free again


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to do the request's work, and to store its answer."""

    pk: int
    fence: int


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    status: int
    body: str


def key_claim(*, organization: Organization, route: str, key: str, fingerprint: str) -> Claim | StoredAnswer:
    """Raises: ApiError: 422, the key belongs to another request; 409, the same one is running."""
    row = IdempotencyKey.objects.filter(organization=organization, route=route, key=key)
    for _ in range(_MAX_LOOKS):
        claim = _claim_new(organization, route, key, fingerprint) or _claim_old(row, fingerprint)
        if claim is not None:
            return claim
        known = row.first()
        if known is None:
            continue
        if known.fingerprint != fingerprint:
            message = "This Idempotency-Key was used with another request: keys are for repeating the same one."
            raise ApiError(422, message, "idempotency_key_reused")
        if known.status is not None:
            return StoredAnswer(known.status, known.body)
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


def _claim_old(row: QuerySet[IdempotencyKey], fingerprint: str) -> Claim | None:
    """Takes a key whose 24 hours are over, or whose holder died."""
    free = Q(created_at__lt=from_now(-KEEP_SECONDS)) | Q(status=None, locked_until__lt=Now())
    with transaction.atomic():
        taken = row.filter(free).update(
            fingerprint=fingerprint,
            fence=F("fence") + 1,
            locked_until=from_now(LOCK_SECONDS),
            status=None,
            body="",
            created_at=Now(),
        )
        if not taken:
            return None
        held = row.get()  # ours: the UPDATE holds its lock
    return Claim(held.pk, held.fence)


def key_store(*, claim: Claim, status: int, body: str) -> None:
    """Call it in the transaction of the request's work. Raises: ApiError: 409, somebody else has the key by now."""
    assert transaction.get_connection().in_atomic_block, "the answer is stored with the work or not at all"
    if not _held(claim).update(status=status, body=body):
        raise _in_use()


def key_release(*, claim: Claim) -> None:
    """The request changed nothing: the key is free again."""
    _held(claim).delete()


def keys_purge() -> int:
    """Forgets keys older than 24 hours. Returns: how many."""
    old = IdempotencyKey.objects.filter(created_at__lt=from_now(-KEEP_SECONDS)).values_list("pk", flat=True)
    num_deleted, _ = IdempotencyKey.objects.filter(pk__in=list(old[:PURGE_LIMIT])).delete()
    return num_deleted


def _held(claim: Claim) -> QuerySet[IdempotencyKey]:
    return IdempotencyKey.objects.filter(pk=claim.pk, fence=claim.fence, status=None)


def _in_use() -> ApiError:
    message = "A request with this Idempotency-Key is running. Send it again to get its answer."
    return ApiError(409, message, "idempotency_key_in_use", headers=RETRY_AFTER)

"""Reservations of the amounts that requests in progress may still cost.

A request to an endpoint is counted when it ends. If only finished requests counted towards a cap, any number of
concurrent requests could pass the check before the first of them is counted. Therefore each request reserves the most
that it can cost. A request is refused if this amount, the reserved amounts and the amount spent together exceed a cap.

A reservation ends in the transaction that counts the request. If the process of the request dies, its reservation
expires after `HOLD_SECONDS`.
"""

from collections.abc import Collection

from django.db import transaction
from django.db.models import QuerySet, Sum
from django.db.models.functions import Now

from control.billing.spending.models import SpendCap, SpendReservation
from control.billing.spending.selectors import REACHED, caps_of, describe, format_usd, spent_nanousd
from control.core.api.errors import ApiError, over_limit
from control.core.database_clock import from_now
from control.tenants.authentication.caller import Caller

HOLD_SECONDS = 60.0
RENEW_SECONDS = 15.0
RETRY_AFTER_SECONDS = 1


@transaction.atomic
def spend_reserve(*, caller: Caller, nanousd: int) -> str:
    """Reserves the amount under each of the caller's caps. Returns: the reservation's id.

    Raises: ApiError: 429, a cap is reached or the amount does not fit.
    """
    mine = SpendReservation.objects.filter(organization_id=caller.organization_id)
    # The lock makes concurrent requests wait, so that each request sees the reservations of the earlier ones.
    caps = list(caps_of(caller).select_for_update())
    mine.filter(expires_at__lte=Now()).delete()
    for cap in caps:
        _check(cap, mine, nanousd)
    reservation = SpendReservation.objects.create(
        organization_id=caller.organization_id,
        project_id=caller.project_id,
        nanousd=nanousd,
        expires_at=from_now(HOLD_SECONDS),
    )
    return reservation.pk


def reservations_renew(ids: Collection[str]) -> None:
    SpendReservation.objects.filter(pk__in=ids).update(expires_at=from_now(HOLD_SECONDS))


def reservations_release(ids: Collection[str]) -> None:
    """Ends reservations. Call this in the transaction that writes the requests' usage."""
    SpendReservation.objects.filter(pk__in=ids).delete()


def _check(cap: SpendCap, reservations: QuerySet[SpendReservation], nanousd: int) -> None:
    """Raises: ApiError: 429."""
    if cap.project_id is not None:
        reservations = reservations.filter(project_id=cap.project_id)
    # Reservations are read before the amount spent. If a request ends between the two reads, its amount is counted
    # twice. If the order of the reads were reversed, the amount would be missing.
    reserved = reservations.aggregate(sum=Sum("nanousd"))["sum"] or 0
    spent = spent_nanousd(cap)
    if spent < cap.nanousd and spent + reserved + nanousd <= cap.nanousd:
        return
    if spent >= cap.nanousd:
        raise over_limit(f"{describe(cap, spent)}.", REACHED)
    cost = f"This request may cost up to {format_usd(nanousd)}; a lower max_tokens reduces this amount."
    if spent + nanousd > cap.nanousd:
        raise over_limit(f"{describe(cap, spent)}. {cost}", REACHED)
    message = f"{describe(cap, spent)}, and requests in progress may cost another {format_usd(reserved)}. {cost}"
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    raise ApiError(429, message, "spend_cap_reserved", type="insufficient_quota", headers=headers)

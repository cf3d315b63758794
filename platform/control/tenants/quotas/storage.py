"""Counts the bytes that an organization stores and limits their sum. Each `StoredPart` has a counter of its own.

A counter is a column of `StoredBytes`. The transaction that adds or deletes the row of an object changes the counter.
Most objects outside of the database are an exception, because they are counted before their bytes are stored:

    storage_reserve     locks the organization, checks the limit, counts the bytes and records their storage key
    put_file            stores the bytes; if the process dies from here on, `reservations_expire` deletes the object and
                        subtracts its bytes
    reservation_commit  deletes the reservation in the transaction that adds the row of the object
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import F, QuerySet, Sum

from control.core.api.errors import ApiError
from control.core.database_clock import from_now
from control.core.storage.backends import get_storage
from control.core.storage.undo import register_undo
from control.tenants.quotas.models import StorageReservation, StoredBytes, StoredPart
from control.tenants.quotas.quota import organization_lock, quota_of

RESERVED_SECONDS = 24 * 3600.0  # an object that takes longer to store is refused
# Expired reservations are kept for this much longer, because a transaction may still be committing one. No transaction
# that commits a reservation takes this long.
_MARGIN_SECONDS = 3600.0
EXPIRE_LIMIT = 100


class ReservationExpired(Exception):
    """Storing the object took longer than `RESERVED_SECONDS`."""


def stored_bytes(organization_id: str) -> dict[StoredPart, int]:
    row = StoredBytes.objects.filter(pk=organization_id).first() or StoredBytes()
    return {part: getattr(row, _column(part)) for part in StoredPart}


def storage_check(organization_id: str, *, num_bytes: int, replacing: int = 0) -> None:
    """Raises: ApiError: 403, the bytes do not fit, even after the bytes that they replace are subtracted."""
    limit, used = quota_of(organization_id).storage_bytes, sum(stored_bytes(organization_id).values())
    if used + num_bytes - replacing > limit:
        message = (
            f"Your organization stores {used:,} of {limit:,} bytes; {num_bytes:,} more do not fit."
            " Delete files, adapters, checkpoints or captured requests that you no longer need."
        )
        raise ApiError(403, message, "storage_quota_exceeded", type="insufficient_quota")


def storage_take(organization_id: str, part: StoredPart, num_bytes: int, *, replacing: int = 0) -> None:
    """Counts bytes if they fit. Call this in the transaction that adds the object's row. Raises: as `storage_check`."""
    organization_lock(organization_id)
    storage_check(organization_id, num_bytes=num_bytes, replacing=replacing)
    storage_count(organization_id, part, num_bytes)


def storage_count(organization_id: str, part: StoredPart, num_bytes: int) -> None:
    """Adds bytes to the counter without a check. For deleted bytes, `num_bytes` is negative.

    Lock all other rows before this call. If every transaction locks the counter's row last, none can deadlock.
    """
    counter = StoredBytes.objects.filter(pk=organization_id)
    change = {_column(part): F(_column(part)) + num_bytes}
    if not counter.update(**change):
        StoredBytes.objects.bulk_create([StoredBytes(organization_id=organization_id)], ignore_conflicts=True)
        counter.update(**change)


def storage_reserve(organization_id: str, part: StoredPart, *, key: str, num_bytes: int, replacing: int = 0) -> None:
    """Counts the bytes of an object and reserves its storage key.

    Call this before the bytes are stored, outside of a transaction, in a `delete_stored_on_error` block.

    Args:
        key: the storage key of the object, or the prefix of a folder of objects.
        replacing: the size of the stored objects that this object replaces. They are still counted, and are deleted
            after the new object is added, so the check of the limit subtracts their size.
    Raises: as `storage_check`.
    """
    with transaction.atomic():
        storage_take(organization_id, part, num_bytes, replacing=replacing)
        StorageReservation.objects.create(
            storage_key=key, organization_id=organization_id, part=part, size_bytes=num_bytes
        )
    register_undo(partial(_give_up, key))


def reservation_commit(key: str) -> None:
    """Deletes the reservation. Call this in the transaction that adds the object's row. Raises: ReservationExpired."""
    valid = StorageReservation.objects.filter(pk=key, created_at__gt=from_now(-RESERVED_SECONDS))
    if not valid.delete()[0]:
        raise ReservationExpired(key)


def reservations_expire() -> int:
    """Deletes the objects of processes that died while they stored an object, or before they added its row.

    Returns: the number of deleted objects.
    """
    overdue = StorageReservation.objects.filter(created_at__lte=from_now(-RESERVED_SECONDS - _MARGIN_SECONDS))
    keys = list(overdue.values_list("pk", flat=True)[:EXPIRE_LIMIT])
    for key in keys:
        _give_up(key)
    return len(keys)


def storage_recount(organization_id: str, rows: Mapping[StoredPart, QuerySet[Any]]) -> None:
    """Sets the counter of each part to the sum of the `size_bytes` of the part's rows and of its reservations.

    The sum includes the rows of each concurrent transaction that commits before the rows are read. A transaction that
    commits later waits for the lock on the counter, and then adds its own change to the sum that is written here.
    """
    storage_count(organization_id, StoredPart.FILES, 0)  # creates the row
    with transaction.atomic():
        StoredBytes.objects.select_for_update().get(pk=organization_id)
        reserved = StorageReservation.objects.filter(organization_id=organization_id)
        sums = {_column(part): _sum(query) + _sum(reserved.filter(part=part)) for part, query in rows.items()}
        StoredBytes.objects.filter(pk=organization_id).update(**sums)


def _give_up(key: str) -> None:
    """Deletes a reserved object, then its reservation.

    If the process dies in between, the reservation remains. The next call then deletes the object a second time, which
    has no effect, and deletes the reservation.
    """
    reservation = StorageReservation.objects.filter(pk=key).first()
    if reservation is None:
        return
    storage = get_storage()
    storage.delete_folder(key) if reservation.part == StoredPart.ADAPTERS else storage.delete(key)
    with transaction.atomic():
        if StorageReservation.objects.filter(pk=key).delete()[0]:
            storage_count(reservation.organization_id, StoredPart(reservation.part), -reservation.size_bytes)


def _sum(rows: QuerySet[Any]) -> int:
    return rows.aggregate(sum=Sum("size_bytes"))["sum"] or 0


def _column(part: StoredPart) -> str:
    return f"{part}_bytes"

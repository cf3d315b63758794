"""The only writers of the ledger. Call them in the transaction of the change whose usage they record."""

from pathlib import Path

from django.db import IntegrityError, transaction

from control.billing.ledger.models import LedgerLine
from control.billing.ledger.months import billed_month_of
from control.core.settings.config import get_config


def ledger_add(*lines: LedgerLine) -> bool:
    """Adds the lines for one piece of usage.

    Returns: False if the ledger already contains the usage, for example because this call is a retry. Nothing is
        written in this case.
    """
    assert transaction.get_connection().in_atomic_block, "call ledger_add in the transaction of the recorded change"
    for line in lines:
        line.billed_month = billed_month_of(line.ended_at)  # the database computes it
    try:
        with transaction.atomic():
            LedgerLine.objects.bulk_create(lines)
    except IntegrityError:
        first = lines[0]
        same = LedgerLine.objects.filter(subject=first.subject, object_id=first.object_id, sequence=first.sequence)
        if not same.exists():
            raise
        return False
    return True


def device_kind() -> str:
    """Returns the kind of device on which this machine's child processes and engines run: `cuda` or `cpu`."""
    configured = get_config().device
    if configured != "auto":
        return configured.partition(":")[0]
    return "cuda" if Path("/dev/nvidiactl").exists() else "cpu"

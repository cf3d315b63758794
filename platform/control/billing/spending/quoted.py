"""The device time of pipelines' jobs and deployments, which counts towards the caps of quotes."""

from collections.abc import Collection

from django.db.models import OuterRef, QuerySet, Subquery, Sum

from control.billing.ledger.models import LedgerLine, Subject
from control.billing.spending.models import QuotedUse

_DEVICE_TIME = [subject for subject in Subject if subject.value.endswith("_time")]


def quoted_use_add(*, organization_id: str, quote_id: str, object_id: str) -> None:
    """Makes the object's device time count towards the quote's cap.

    Call this in the transaction that creates the object.
    """
    QuotedUse.objects.create(organization_id=organization_id, quote_id=quote_id, object_id=object_id)


def quoted_uses(quote_ids: Collection[str]) -> QuerySet[QuotedUse]:
    return QuotedUse.objects.filter(quote_id__in=quote_ids)


def quoted_device_nanousd(quote_ids: Collection[str]) -> dict[str, int]:
    """Returns the cost of the device time in the ledger, less its credits, by quote."""
    uses = quoted_uses(quote_ids)
    lines = LedgerLine.objects.filter(subject__in=_DEVICE_TIME, object_id__in=uses.values("object_id"))
    quote_id = QuotedUse.objects.filter(pk=OuterRef("object_id")).values("quote_id")
    rows = lines.order_by().annotate(quote_id=Subquery(quote_id)).values("quote_id").annotate(cost=Sum("cost_nanousd"))
    return {row["quote_id"]: row["cost"] for row in rows}


def quote_of(object_id: str) -> str | None:
    """Returns the id of the quote towards whose cap the object's device time counts."""
    return QuotedUse.objects.filter(pk=object_id).values_list("quote_id", flat=True).first()

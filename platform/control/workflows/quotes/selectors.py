"""Queries for quotes."""

from collections.abc import Sequence

from django.db.models import QuerySet

from control.core.api.lookup import one_of
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible
from control.workflows.batches.caps import quotes_spent_nanousd
from control.workflows.quotes.models import Quote


def quotes_list(organization: Organization) -> QuerySet[Quote]:
    return Quote.objects.filter(visible(organization)).select_related("dataset__base_model", "pilot__job")


def quote_get(organization: Organization, quote_id: str) -> Quote:
    """Raises: ApiError: 404, also for another organization's quote."""
    return one_of(quotes_list(organization), quote_id, kind="quote", param="quote_id")


def spent_read(quotes: Sequence[Quote]) -> None:
    """Sets `spent_nanousd` of each quote. Besides a fixed number of queries, each running attempt needs two."""
    spent = quotes_spent_nanousd([quote.pk for quote in quotes])
    for quote in quotes:
        quote.spent_nanousd = spent[quote.pk]

"""Readers of quotes."""

from django.db.models import QuerySet

from control.accounts.models import Organization
from control.api.errors import ApiError
from control.quotes.models import Quote


def quotes_list(organization: Organization) -> QuerySet[Quote]:
    return Quote.objects.filter(organization=organization).select_related("dataset__base_model", "pilot")


def quote_get(organization: Organization, quote_id: str) -> Quote:
    """Raises: ApiError: 404, also for another organization's quote."""
    quote = quotes_list(organization).filter(pk=quote_id).first()
    if quote is None:
        raise ApiError(404, f"No such quote: {quote_id[:80]!r}.", "quote_not_found", "quote_id")
    return quote

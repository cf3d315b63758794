"""/v1/quotes: estimates of the cost of a batch of a dataset's rows, and caps on that cost."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.operation import PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Page
from control.tenants.authentication.views import OrganizationView
from control.workflows.quotes.requests import create_from, update_from
from control.workflows.quotes.schemas import QuoteInput, QuoteObject, QuoteUpdateInput
from control.workflows.quotes.selectors import quote_get, quotes_list, spent_read
from control.workflows.quotes.services import quote_settle


class QuotesView(OrganizationView):
    scope = "pipelines"

    @operation("quotes.list", response=Page[QuoteObject], query=PAGING)
    def get(self, request: Request) -> Response:
        return paginate(quotes_list(self.organization), request, QuoteObject.of, prepare=spent_read)

    @operation("quotes.create", request=QuoteInput, response=QuoteObject, status=201)
    def post(self, request: Request, body: QuoteInput) -> QuoteObject:
        """Estimates the cost of a batch of the dataset's rows or, with `pipeline`, of a pipeline with these rows.

        With the basis `pilot`, the estimate is made from the model's answers to a few of the rows, which you pay for.
        With the basis `history`, it is made from your earlier batches.
        """
        made = create_from(self.organization, body)
        return QuoteObject.of(quote_get(self.organization, made.pk))


class QuoteView(OrganizationView):
    scope = "pipelines"

    @operation("quotes.retrieve", response=QuoteObject)
    def get(self, request: Request, quote_id: str) -> QuoteObject:
        """The status is `measuring` until the pilot has ended, and then `ready` or `failed`."""
        return QuoteObject.of(quote_settle(quote=quote_get(self.organization, quote_id)))

    @operation("quotes.update", request=QuoteUpdateInput, response=QuoteObject)
    def patch(self, request: Request, quote_id: str, body: QuoteUpdateInput) -> QuoteObject:
        """Changes the cap. Work that the old cap paused continues if the new cap is not reached."""
        return QuoteObject.of(update_from(quote_get(self.organization, quote_id), body))

"""/v1/quotes: what a batch of a dataset's rows will cost, and may cost."""

from decimal import Decimal

from rest_framework.request import Request
from rest_framework.response import Response

from control.billing.spending.schemas import nanousd
from control.core.api.paging import paginate
from control.tenants.authentication.views import OrganizationView
from control.workflows.datasets.selectors import dataset_get
from control.workflows.quotes.models import Quote
from control.workflows.quotes.selectors import quote_get, quotes_list
from control.workflows.quotes.serializers import QuoteInput, QuoteUpdateInput, quote_body
from control.workflows.quotes.services import quote_cap_set, quote_create, quote_settle


class QuotesView(OrganizationView):
    scope = "pipelines"

    def get(self, request: Request) -> Response:
        return paginate(quotes_list(self.organization), request, quote_body)

    def post(self, request: Request) -> Response:
        """`pilot` has a few of the rows answered first, at your cost; `history` goes by earlier batches."""
        form = QuoteInput(data=request.data)
        form.is_valid(raise_exception=True)
        dataset = dataset_get(self.organization, form.validated_data["dataset_id"])
        basis = Quote.Basis(form.validated_data["basis"])
        quote = quote_create(
            organization=self.organization, dataset=dataset, basis=basis, cap_nanousd=_cap(form.validated_data["cap"])
        )
        return Response(quote_body(quote_get(self.organization, quote.pk)), status=201)


class QuoteView(OrganizationView):
    scope = "pipelines"

    def get(self, request: Request, quote_id: str) -> Response:
        """`ready` once the pilot has ended."""
        return Response(quote_body(quote_settle(quote=quote_get(self.organization, quote_id))))

    def patch(self, request: Request, quote_id: str) -> Response:
        """Another cap. A raised one lets what was paused go on where it stopped."""
        quote = quote_get(self.organization, quote_id)
        form = QuoteUpdateInput(data=request.data)
        form.is_valid(raise_exception=True)
        return Response(quote_body(quote_cap_set(quote=quote, nanousd=_cap(form.validated_data["cap"]))))


def _cap(amount: Decimal | None) -> int | None:
    return None if amount is None else nanousd(amount)

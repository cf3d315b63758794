"""Routes of OpenAI's batches."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.paging import paginate
from control.data.files.selectors import file_get
from control.data.files.serializers import expires_after
from control.tenants.authentication.views import OrganizationView
from control.workflows.batches.reading import ResultsResponse
from control.workflows.batches.selectors import batch_get, batches_list
from control.workflows.batches.serializers import BatchInput, batch_body
from control.workflows.batches.services import batch_cancel, batch_create
from control.workflows.quotes.selectors import quote_get


class BatchesView(OrganizationView):
    scope = "batches"

    def get(self, request: Request) -> Response:
        return paginate(batches_list(self.organization), request, batch_body)

    def post(self, request: Request) -> Response:
        form = BatchInput(data=request.data)
        form.is_valid(raise_exception=True)
        values = form.validated_data
        batch = batch_create(
            organization=self.organization,
            input_file=file_get(self.organization, values["input_file_id"], param="input_file_id"),
            endpoint=values["endpoint"],
            completion_window=values["completion_window"],
            metadata=values["metadata"],
            model=values["model"],
            output_expires_after=expires_after(values["output_expires_after"], param="output_expires_after"),
            quote=values["quote_id"] and quote_get(self.organization, values["quote_id"]),
        )
        return Response(batch_body(batch))


class BatchView(OrganizationView):
    scope = "batches"

    def get(self, request: Request, batch_id: str) -> Response:
        return Response(batch_body(batch_get(self.organization, batch_id)))


class BatchCancelView(OrganizationView):
    scope = "batches"

    def post(self, request: Request, batch_id: str) -> Response:
        batch_cancel(batch=batch_get(self.organization, batch_id))
        return Response(batch_body(batch_get(self.organization, batch_id)))


class BatchResultsView(OrganizationView):
    """Finished rows in input order, one a line: what there is now, or with `follow=true` until the batch has ended.

    `after` is how many rows the caller has already.
    """

    scope = "batches"

    def get(self, request: Request, batch_id: str) -> ResultsResponse:
        batch = batch_get(self.organization, batch_id)
        follow = request.query_params.get("follow", "false")
        if follow not in ("true", "false"):
            raise ApiError(400, f"follow must be true or false, got {follow[:40]!r}", "invalid_value", "follow")
        return ResultsResponse(batch, after=_num_rows(request), is_followed=follow == "true", key=self.key)


def _num_rows(request: Request) -> int:
    after = request.query_params.get("after", "0")
    if not (after.isascii() and after.isdigit() and len(after) < 9):
        raise ApiError(400, f"after must be a number of rows, got {after[:40]!r}", "invalid_value", "after")
    return int(after)

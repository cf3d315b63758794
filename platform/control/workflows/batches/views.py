"""Routes of OpenAI's batches."""

from collections.abc import Sequence

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.operation import LINES, PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Page
from control.models.engines.schemas import EnginePlan
from control.queue.devices.blocked import waiting_described
from control.tenants.accounts.models import Organization
from control.tenants.authentication.views import OrganizationView
from control.workflows.batches.models import Batch
from control.workflows.batches.reading import ResultsResponse
from control.workflows.batches.requests import create_from, plan_from, repair_from
from control.workflows.batches.schemas import BatchInput, BatchObject, RepairInput
from control.workflows.batches.selectors import batch_get, batches_list
from control.workflows.batches.services import batch_cancel, batch_resume


class BatchesView(OrganizationView):
    scope = "batches"

    @operation("batches.list", response=Page[BatchObject], query=PAGING)
    def get(self, request: Request) -> Response:
        return paginate(batches_list(self.organization), request, BatchObject.of, prepare=_describe_waiting)

    @operation("batches.create", request=BatchInput, response=BatchObject, plan=EnginePlan)
    def post(self, request: Request, body: BatchInput) -> BatchObject | EnginePlan:
        if body.validate_only:
            return plan_from(self.organization, body)
        return _shown(self.organization, create_from(self.organization, body).pk)


class BatchView(OrganizationView):
    scope = "batches"

    @operation("batches.retrieve", response=BatchObject)
    def get(self, request: Request, batch_id: str) -> BatchObject:
        return _shown(self.organization, batch_id)


class BatchCancelView(OrganizationView):
    scope = "batches"

    @operation("batches.cancel", response=BatchObject)
    def post(self, request: Request, batch_id: str) -> BatchObject:
        batch_cancel(batch=batch_get(self.organization, batch_id))
        return _shown(self.organization, batch_id)


class BatchResumeView(OrganizationView):
    """Our addition: a failed, expired or cancelled batch is continued by a new one, and stays as it is."""

    scope = "batches"

    @operation("batches.resume", response=BatchObject)
    def post(self, request: Request, batch_id: str) -> BatchObject:
        """Returns the new batch. Rows that have a response are copied free of charge, and the others are run."""
        resumed = batch_resume(batch=batch_get(self.organization, batch_id))
        return _shown(self.organization, resumed.pk)


class BatchRepairView(OrganizationView):
    """Our addition: some rows of an ended batch are answered again by a new batch, and the ended one stays as it is."""

    scope = "batches"

    @operation("batches.repair", summary="Answer rows of a batch again", request=RepairInput, response=BatchObject)
    def post(self, request: Request, batch_id: str, body: RepairInput) -> BatchObject:
        """Answers some rows in a new batch, which is returned. All other results are copied free of charge."""
        repaired = repair_from(batch_get(self.organization, batch_id), body)
        return _shown(self.organization, repaired.pk)


class BatchResultsView(OrganizationView):
    """The results of finished rows in input order, one row per line."""

    scope = "batches"

    @operation(
        "batches.results",
        summary="Read the results of finished rows",
        response=LINES,
        query={
            "after": "The number of rows to skip at the start.",
            "follow": "`true`: the response continues until the batch has ended.",
        },
    )
    def get(self, request: Request, batch_id: str) -> ResultsResponse:
        batch = batch_get(self.organization, batch_id)
        follow = request.query_params.get("follow", "false")
        if follow not in ("true", "false"):
            raise ApiError(400, f"follow must be true or false, got {follow[:40]!r}", "invalid_value", "follow")
        return ResultsResponse(batch, after=_num_rows(request), is_followed=follow == "true", key=self.key)


def _describe_waiting(batches: Sequence[Batch]) -> None:
    waiting_described([batch.job for batch in batches])


def _shown(organization: Organization, batch_id: str) -> BatchObject:
    batch = batch_get(organization, batch_id)
    _describe_waiting([batch])
    return BatchObject.of(batch)


def _num_rows(request: Request) -> int:
    after = request.query_params.get("after", "0")
    if not (after.isascii() and after.isdigit() and len(after) < 9):
        raise ApiError(400, f"after must be a number of rows, got {after[:40]!r}", "invalid_value", "after")
    return int(after)

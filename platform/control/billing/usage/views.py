"""OpenAI's routes /v1/organization/usage/completions and /v1/organization/costs, /v1/usage and /v1/usage/ledger."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.billing.ledger.models import Subject
from control.billing.usage.device_time import device_costs_add, device_nanousd
from control.billing.usage.query import (
    BUCKETS_QUERY,
    COST_GROUPS,
    MAX_COST_BUCKETS,
    USAGE_GROUPS,
    has_more,
    parse_filter,
    parse_group_by,
    parse_span,
    parse_window,
)
from control.billing.usage.schemas import CostBucket, CostPage, LedgerLineObject, UsageBucket, UsagePage, UsageTotal
from control.billing.usage.selectors import Sums, is_line, ledger_lines, usage_buckets, usage_total
from control.core.api.operation import PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Page
from control.tenants.authentication.views import OrganizationView


class CompletionsUsageView(OrganizationView):
    """Usage of batches and of requests to deployments."""

    scope = "usage"

    @operation(
        "organization.usage.completions",
        summary="List the usage of completions by time",
        response=UsagePage,
        query=BUCKETS_QUERY,
    )
    def get(self, request: Request) -> UsagePage:
        params = request.query_params
        window = parse_window(params)
        buckets = usage_buckets(
            self.organization,
            window=window,
            group_by=parse_group_by(params, USAGE_GROUPS),
            usage_filter=parse_filter(params),
        )
        data = [UsageBucket.of(bucket) for bucket in buckets]
        return UsagePage.of(window, data, has_more=has_more(params, window))


class CostsView(OrganizationView):
    """Costs by day. Usage is priced when it is recorded; a later price does not change past costs."""

    scope = "usage"

    @operation("organization.costs", summary="List costs by day", response=CostPage, query=BUCKETS_QUERY)
    def get(self, request: Request) -> CostPage:
        params = request.query_params
        window = parse_window(params, widths=("1d",), max_limit=MAX_COST_BUCKETS)
        group_by, usage_filter = parse_group_by(params, COST_GROUPS), parse_filter(params)
        buckets = usage_buckets(self.organization, window=window, group_by=group_by, usage_filter=usage_filter)
        device_costs_add(buckets, self.organization, window=window, group_by=group_by, usage_filter=usage_filter)
        data = [CostBucket.of(bucket) for bucket in buckets]
        return CostPage.of(window, data, has_more=has_more(params, window))


class UsageView(OrganizationView):
    scope = "usage"

    @operation(
        "usage.retrieve",
        summary="Retrieve the usage of a period",
        response=UsageTotal,
        query={
            "start_time": "Unix seconds. The default is the beginning of the month.",
            "end_time": "Unix seconds. The default is now.",
        },
    )
    def get(self, request: Request) -> UsageTotal:
        """The usage of this month so far, or from `start_time` to `end_time`."""
        start, end = parse_span(request.query_params)
        total = usage_total(self.organization, start=start, end=end)
        counts = {**total.counts, "device_nanousd": device_nanousd(self.organization, start=start, end=end)}
        return UsageTotal.of(Sums({}, counts), start=start, end=end)


class LedgerView(OrganizationView):
    scope = "usage"

    @operation(
        "usage.ledger",
        summary="List the lines of the usage ledger",
        response=Page[LedgerLineObject],
        query={
            **PAGING,
            "subject": f"Only lines with this subject: {', '.join(Subject)}.",
            "device_kind": "Only device time of this kind of device: `cuda` or `cpu`.",
            "start_time": "Only lines that ended at this time (Unix seconds) or later. The default is the beginning of "
            "the month.",
            "end_time": "Only lines that ended before this time (Unix seconds). The default is now.",
        },
    )
    def get(self, request: Request) -> Response:
        """The lines of the append-only ledger, on which bills are based, newest first."""
        params = request.query_params
        start, end = parse_span(params)
        lines = ledger_lines(
            self.organization,
            start=start,
            end=end,
            subject=params.get("subject"),
            device_kind=params.get("device_kind"),
        )
        return paginate(lines, request, LedgerLineObject.of, is_row=is_line)

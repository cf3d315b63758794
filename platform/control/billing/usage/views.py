"""OpenAI's routes /v1/organization/usage/completions and /v1/organization/costs, and /v1/usage."""

from rest_framework.request import Request

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
from control.billing.usage.schemas import CostBucket, CostPage, UsageBucket, UsagePage, UsageTotal
from control.billing.usage.selectors import usage_buckets, usage_total
from control.core.api.operation import operation
from control.tenants.authentication.views import OrganizationView


class CompletionsUsageView(OrganizationView):
    """Usage of batches and of requests to deployments."""

    scope = "usage"

    @operation("organization.usage.completions", response=UsagePage, query=BUCKETS_QUERY)
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

    @operation("organization.costs", response=CostPage, query=BUCKETS_QUERY)
    def get(self, request: Request) -> CostPage:
        params = request.query_params
        window = parse_window(params, widths=("1d",), max_limit=MAX_COST_BUCKETS)
        buckets = usage_buckets(
            self.organization,
            window=window,
            group_by=parse_group_by(params, COST_GROUPS),
            usage_filter=parse_filter(params),
        )
        data = [CostBucket.of(bucket) for bucket in buckets]
        return CostPage.of(window, data, has_more=has_more(params, window))


class UsageView(OrganizationView):
    scope = "usage"

    @operation(
        "usage.retrieve",
        response=UsageTotal,
        query={
            "start_time": "Unix seconds. The default is the beginning of the month.",
            "end_time": "Unix seconds. The default is now.",
        },
    )
    def get(self, request: Request) -> UsageTotal:
        """The usage of this month so far, or from `start_time` to `end_time`."""
        start, end = parse_span(request.query_params)
        return UsageTotal.of(usage_total(self.organization, start=start, end=end), start=start, end=end)

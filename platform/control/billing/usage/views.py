"""GET /v1/organization/usage/completions and /v1/organization/costs, as OpenAI's; GET /v1/usage: the totals."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.billing.usage.query import (
    COST_GROUPS,
    MAX_COST_BUCKETS,
    USAGE_GROUPS,
    has_more,
    parse_group_by,
    parse_narrowing,
    parse_span,
    parse_window,
)
from control.billing.usage.selectors import usage_buckets, usage_total
from control.billing.usage.serializers import completions_result, cost_results, page_body, total_body
from control.tenants.authentication.views import OrganizationView


class CompletionsUsageView(OrganizationView):
    """Batches and requests to deployments; `batch=true` or `false` for one of them."""

    scope = "usage"

    def get(self, request: Request) -> Response:
        params = request.query_params
        window, chosen = parse_window(params), parse_group_by(params, USAGE_GROUPS)
        buckets = usage_buckets(
            self.organization,
            window=window,
            group_by=[USAGE_GROUPS[name] for name in chosen],
            narrowing=parse_narrowing(params),
        )
        more = has_more(params, window)
        return Response(
            page_body(
                buckets, lambda sums: [completions_result(sums, USAGE_GROUPS, chosen)], window=window, has_more=more
            )
        )


class CostsView(OrganizationView):
    """By the day, at the prices in force when it was used."""

    scope = "usage"

    def get(self, request: Request) -> Response:
        params = request.query_params
        window = parse_window(params, widths=("1d",), max_limit=MAX_COST_BUCKETS)
        chosen = parse_group_by(params, COST_GROUPS)
        buckets = usage_buckets(
            self.organization,
            window=window,
            group_by=[COST_GROUPS[name] for name in chosen],
            narrowing=parse_narrowing(params),
        )
        more = has_more(params, window)
        return Response(page_body(buckets, lambda sums: cost_results(sums, chosen), window=window, has_more=more))


class UsageView(OrganizationView):
    scope = "usage"

    def get(self, request: Request) -> Response:
        """Of this month so far, or from `start_time` to `end_time`."""
        start, end = parse_span(request.query_params)
        return Response(total_body(usage_total(self.organization, start=start, end=end), start=start, end=end))

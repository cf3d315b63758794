"""GET /v1/jobs, /v1/jobs/{id}, /v1/jobs/{id}/events and POST /v1/jobs/{id}/cancel."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.paging import paginate
from control.queue.jobs.selectors import job_events, job_get, jobs_list
from control.queue.jobs.serializers import event_json, job_json
from control.queue.jobs.services import job_cancel
from control.tenants.authentication.views import OrganizationView

MAX_EVENTS = 1000


class JobListView(OrganizationView):
    scope = "jobs"

    def get(self, request: Request) -> Response:
        return paginate(jobs_list(self.organization), request, job_json)


class JobView(OrganizationView):
    scope = "jobs"

    def get(self, request: Request, job_id: str) -> Response:
        return Response(job_json(job_get(self.organization, job_id)))


class JobEventsView(OrganizationView):
    """Oldest first; `after` is the id of the last event seen, so that a watcher asks for what is new."""

    scope = "jobs"

    def get(self, request: Request, job_id: str) -> Response:
        job = job_get(self.organization, job_id)
        events = job_events(job).filter(seq__gt=_seq(request.query_params.get("after", "0")))[: MAX_EVENTS + 1]
        data = [event_json(event) for event in events]
        page = data[:MAX_EVENTS]
        return Response(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
                "has_more": len(data) > MAX_EVENTS,
            }
        )


class JobCancelView(OrganizationView):
    """202: the job ends within seconds; one that has ended already stays as it is."""

    scope = "jobs"

    def post(self, request: Request, job_id: str) -> Response:
        job = job_get(self.organization, job_id)
        job_cancel(job=job)
        return Response(job_json(job_get(self.organization, job_id)), status=202)


def _seq(after: str) -> int:
    if not (after.isascii() and after.isdigit() and len(after) < 9):
        raise ApiError(400, f"after must be an event's id, got {after[:40]!r}", "invalid_value", "after")
    return int(after)

"""GET /v1/jobs, /v1/jobs/{id}, /v1/jobs/{id}/events and POST /v1/jobs/{id}/cancel."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.operation import PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Page
from control.queue.devices.blocked import waiting_described
from control.queue.jobs.models import Job
from control.queue.jobs.schemas import JobEventObject, JobObject
from control.queue.jobs.selectors import job_events, job_get, jobs_list
from control.queue.jobs.services import job_cancel
from control.tenants.authentication.views import OrganizationView

MAX_EVENTS = 1000


class JobListView(OrganizationView):
    scope = "jobs"

    @operation("jobs.list", response=Page[JobObject], query=PAGING)
    def get(self, request: Request) -> Response:
        return paginate(jobs_list(self.organization), request, JobObject.of, prepare=waiting_described)


class JobView(OrganizationView):
    scope = "jobs"

    @operation("jobs.retrieve", response=JobObject)
    def get(self, request: Request, job_id: str) -> JobObject:
        return _shown(job_get(self.organization, job_id))


class JobEventsView(OrganizationView):
    """The events of the job, oldest first."""

    scope = "jobs"

    @operation(
        "jobs.events",
        summary="List the events of a job",
        response=Page[JobEventObject],
        query={"after": "Only events after the event with this id."},
    )
    def get(self, request: Request, job_id: str) -> Page[JobEventObject]:
        job = job_get(self.organization, job_id)
        events = job_events(job).filter(seq__gt=_seq(request.query_params.get("after", "0")))[: MAX_EVENTS + 1]
        data = [JobEventObject.of(event) for event in events]
        page = data[:MAX_EVENTS]
        return Page[JobEventObject](
            object="list",
            data=page,
            first_id=page[0].id if page else None,
            last_id=page[-1].id if page else None,
            has_more=len(data) > MAX_EVENTS,
        )


class JobCancelView(OrganizationView):
    """The job ends within seconds. A job that has already ended does not change."""

    scope = "jobs"

    @operation("jobs.cancel", response=JobObject, status=202)
    def post(self, request: Request, job_id: str) -> JobObject:
        job_cancel(job=job_get(self.organization, job_id))
        return _shown(job_get(self.organization, job_id))


def _shown(job: Job) -> JobObject:
    waiting_described([job])
    return JobObject.of(job)


def _seq(after: str) -> int:
    if not (after.isascii() and after.isdigit() and len(after) < 9):
        raise ApiError(400, f"after must be an event's id, got {after[:40]!r}", "invalid_value", "after")
    return int(after)

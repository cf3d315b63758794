"""Example objects and request bodies of jobs, for the tests that cover all routes."""

from control.queue.jobs.models import Job
from tests.control.factories import make_job
from tests.control.world import NO_BODY, Bodies, Ids, World


def job(world: World) -> Job:
    return make_job(world.organization)


IDS: Ids = {
    "job_id": lambda world: world.job.pk,
}
BODIES: Bodies = {
    "POST /v1/jobs/{job_id}/cancel": NO_BODY,
}

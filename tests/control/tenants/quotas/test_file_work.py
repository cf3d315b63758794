"""An organization reads and converts only a few files at a time in one server process."""

import pytest
from django.test import Client

from control.core.api.errors import ApiError
from control.serving.captures.services import capture_set
from control.tenants.accounts.models import Organization
from control.tenants.quotas.file_work import Slots, file_work
from tests.control.calls import call, path_of
from tests.control.routes import api_routes
from tests.control.world import World, example_bodies

# Operations that read or write whole files within the request.
OPERATIONS = (
    "/v1/adapters",
    "/v1/datasets",
    "/v1/deployments/{deployment_id}/capture/file",
    "/v1/distillations",
    "/v1/evaluations",
    "/v1/fine_tuning/jobs",
    "/v1/pipelines",
    "/v1/quotes",
    "/v1/speculators",
    "/v1/speculators/{speculator_id}/export",
)


@pytest.mark.django_db
@pytest.mark.parametrize("path", OPERATIONS)
def test_each_operation_on_whole_files_is_refused_while_all_slots_of_the_organization_are_taken(
    client: Client, organization: Organization, path: str
) -> None:
    world = World(organization)
    (route,) = [route for route in api_routes() if route.path == path]
    url, body = path_of(route, world), example_bodies()[f"POST {path}"].make(world)
    if "capture" in path:
        capture_set(deployment=world.deployment, hours=1)

    with file_work.taken(organization.pk), file_work.taken(organization.pk):
        response = call(client, world, "POST", route, url, body)

    assert response.status_code == 429, response.content
    assert response.json()["error"]["code"] == "too_many_file_requests"
    assert response["Retry-After"] == "2"


def test_an_organization_that_has_taken_all_its_slots_is_refused_while_others_get_slots() -> None:
    slots = Slots(3, per_organization=2, wait_seconds=0)
    with slots.taken("a"), slots.taken("a"):
        with pytest.raises(ApiError) as refusal, slots.taken("a"):
            pass
        assert (refusal.value.status, refusal.value.code) == (429, "too_many_file_requests")
        with slots.taken("b"):
            pass
    with slots.taken("a"):
        pass


def test_a_request_that_finds_no_free_slot_is_refused_after_its_wait() -> None:
    slots = Slots(1, per_organization=1, wait_seconds=0)
    with slots.taken("a"), pytest.raises(ApiError) as refusal, slots.taken("b"):
        pass
    assert (refusal.value.status, refusal.value.code) == (429, "too_many_file_requests")
    with slots.taken("b"):
        pass

"""The page of a deployment shows live figures, replicas and rollouts."""

import datetime as dt
import re

import pytest
from django.test import Client
from django.utils import timezone

from control.serving.deployments.measuring import COUNTERS
from control.serving.deployments.models import Deployment, DeploymentSample, Replica
from control.serving.deployments.states import State
from control.serving.rollouts.services import rollout_cancel
from control.tenants.accounts.models import Organization
from tests.control.factories import make_base_model, make_organization
from tests.control.operations.console.openings.support import opening, text_of
from tests.control.operations.console.support import change_path, operator_client
from tests.control.operations.console.test_members import sign_in
from tests.control.serving.deployments.support import make_deployment, make_replica
from tests.control.world import World

pytestmark = pytest.mark.django_db
TABLE = "deployments_deployment"


@pytest.fixture
def deployment(organization: Organization) -> Deployment:
    return make_deployment(make_base_model(), organization, "fast")


def sample(deployment: Deployment, seconds_ago: float, **counters: float) -> None:
    row = DeploymentSample.objects.create(
        deployment=deployment, process="one", counters=dict.fromkeys(COUNTERS, 0.0) | counters
    )
    at = timezone.now() - dt.timedelta(seconds=seconds_ago)
    DeploymentSample.objects.filter(pk=row.pk).update(at=at)


def test_a_ready_deployment_shows_the_figures_of_the_last_minutes(viewer: Client, deployment: Deployment) -> None:
    Deployment.objects.update(state=State.READY, num_replicas=2)
    Replica.objects.all().delete()
    make_replica(deployment, num_open=3)
    make_replica(deployment, number=1, state=Replica.State.PROVISIONING, num_open=9)
    sample(deployment, 150)
    sample(deployment, 50, generation_tokens=5000, drafts=2000, accepted_tokens=3000, draft_tokens=8000, requests=10,
           latency_seconds=25.0, first_tokens=10, first_token_seconds=5.0)  # fmt: skip

    html = opening(viewer, TABLE, deployment.pk)

    text = text_of(html)
    assert text.startswith("It answers requests.")
    for figure in ("50 tokens per second", "2.5 tokens per verification pass", "0.5 seconds to the first token",
                   "2.5 seconds per request", "10 requests answered", "3 requests in progress now",
                   "Replicas: 1 of 2 available"):  # fmt: skip
        assert figure in text, figure
    assert re.search(r"<td>1</td> ?<td>provisioning</td> ?<td>9</td>", html)
    assert 'data-live-active="yes"' in html


def test_figures_of_earlier_hours_are_not_shown_as_live(viewer: Client, deployment: Deployment) -> None:
    Deployment.objects.update(state=State.READY)
    sample(deployment, 1300)
    sample(deployment, 1200, generation_tokens=5000, requests=10)

    text = text_of(opening(viewer, TABLE, deployment.pk))

    assert "– tokens per second" in text
    assert "0 requests answered" in text
    assert "tokens per second 50" in text  # the chart's latest value


def test_rollouts_of_this_deployment_are_listed_newest_first(viewer: Client, organization: Organization) -> None:
    world = World(organization)
    first = world.rollout
    rollout_cancel(rollout=first)
    del world.rollout
    second, other = world.rollout, World(make_organization()).rollout

    html = opening(viewer, TABLE, world.deployment.pk)

    paths = [change_path("rollouts_rollout", each.pk) for each in (second, first, other)]
    assert [path in html for path in paths] == [True, True, False]
    assert html.index(paths[0]) < html.index(paths[1])
    assert change_path("catalog_speculator", world.speculator.pk) in html
    assert "rolled back" in html


@pytest.mark.parametrize(
    ("values", "sentence", "is_active"),
    [
        ({"state": State.PROVISIONING}, "It is starting.", "yes"),
        ({"state": State.SLEEPING}, "The next request wakes it.", "yes"),
        ({"state": State.STOPPED}, "It is stopped", "no"),
        ({"state": State.FAILED, "error": {"code": "oom", "message": "It needs <more>."}}, "oom It needs &lt;more&gt;.",
         "no"),
        ({"state": State.STOPPED, "deleted_at": timezone.now()}, "It is deleted.", "no"),
    ],
)  # fmt: skip
def test_each_state_is_explained(
    viewer: Client, deployment: Deployment, values: dict[str, object], sentence: str, is_active: str
) -> None:
    Deployment.objects.update(**values)

    html = opening(viewer, TABLE, deployment.pk)

    assert sentence in text_of(html)
    assert f'-opening" data-live-active="{is_active}"' in html


def test_members_do_not_see_machines_and_other_organizations_see_nothing(
    viewer: Client, deployment: Deployment
) -> None:
    Replica.objects.all().delete()
    make_replica(deployment, node="gpu-host-7", pid=4711)

    page = viewer.get(change_path(TABLE, deployment.pk)).content.decode()

    assert "gpu-host-7" not in page
    assert "gpu-host-7" in operator_client().get(change_path(TABLE, deployment.pk)).content.decode()
    assert sign_in(make_organization(), "owner").get(change_path(TABLE, deployment.pk)).status_code == 404


def test_the_number_of_queries_does_not_depend_on_replicas_samples_and_rollouts(
    viewer: Client, deployment: Deployment
) -> None:
    Deployment.objects.update(state=State.READY)
    Replica.objects.all().delete()
    for number in range(12):
        make_replica(deployment, number=number)
    counters = dict.fromkeys(COUNTERS, 0.0)
    DeploymentSample.objects.bulk_create(
        DeploymentSample(deployment=deployment, process=str(number % 12), counters=counters) for number in range(1000)
    )

    opening(viewer, TABLE, deployment.pk)  # checks the number of queries

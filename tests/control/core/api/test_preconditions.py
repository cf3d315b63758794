"""ETag and If-Match, on deployments."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from control.core.api.operation import operation_of
from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization
from control.tenants.audit.models import AuditEvent
from tests.control.factories import client_of, make_base_model
from tests.control.routes import api_routes
from tests.control.serving.deployments.support import make_deployment, make_speculator
from tests.control.tenants.quotas.test_quotas import both_databases
from tests.workers.supervisor.conftest import stack as stack
from tests.workers.supervisor.live import LiveStack

NUM_CALLERS = 8


@pytest.fixture
def deployment(organization: Organization) -> Deployment:
    return make_deployment(make_base_model(), organization)


def path_of(deployment: Deployment) -> str:
    return f"/v1/deployments/{deployment.pk}"


def patch(client: Client, deployment: Deployment, tag: str, **changes: object) -> Any:
    headers = {"If-Match": tag}
    return client.patch(path_of(deployment), changes, content_type="application/json", headers=headers)


def test_a_change_is_refused_if_the_object_has_changed_since_it_was_read(
    client: Client, organization: Organization, deployment: Deployment
) -> None:
    read = client.get(path_of(deployment))["ETag"]
    speculator = make_speculator(deployment.base_model, organization)
    changed = patch(client, deployment, read, speculator_id=speculator.pk)

    refused = patch(client, deployment, read, replicas=3)

    assert (changed.status_code, changed["ETag"]) == (200, client.get(path_of(deployment))["ETag"])
    assert changed["ETag"] != read
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (412, "object_changed", "If-Match")
    assert client.get(path_of(deployment)).json()["replicas"] == 1
    assert AuditEvent.objects.count() == 1
    assert patch(client, deployment, changed["ETag"], replicas=3).json()["replicas"] == 3


@pytest.mark.parametrize("form", ["*", '"other", {}', "W/{}"])
def test_any_of_several_tags_a_weak_tag_and_an_asterisk_match(
    client: Client, deployment: Deployment, form: str
) -> None:
    tag = client.get(path_of(deployment))["ETag"]

    assert patch(client, deployment, form.format(tag), replicas=2).status_code == 200


def test_the_tag_does_not_follow_the_state_of_the_object(client: Client, deployment: Deployment) -> None:
    before = client.get(path_of(deployment))
    Deployment.objects.update(state=Deployment.State.READY)
    after = client.get(path_of(deployment))

    assert before.json() != after.json()
    assert before["ETag"] == after["ETag"]


@both_databases
def test_of_concurrent_changes_with_the_same_tag_one_succeeds(stack: LiveStack) -> None:
    deployment = make_deployment(make_base_model(), stack.organization)
    client = client_of(stack.organization)
    tag, start = client.get(path_of(deployment))["ETag"], threading.Barrier(NUM_CALLERS)

    def change(number: int) -> int:
        start.wait()
        try:
            return int(patch(client, deployment, tag, replicas=number + 2).status_code)
        finally:
            connection.close()

    with ThreadPoolExecutor(NUM_CALLERS) as pool:
        statuses = sorted(pool.map(change, range(NUM_CALLERS)))

    assert statuses == [200] + [412] * (NUM_CALLERS - 1)


def test_each_view_whose_patch_is_conditional_returns_the_tag_and_can_lock_its_object() -> None:
    num_tagged = 0
    for route in api_routes():
        declared = operation_of(route.view, "PATCH") if "PATCH" in route.methods else None
        if declared is not None and declared.tagged_by is not None:
            num_tagged += 1
            read = operation_of(route.view, "GET")
            assert read is not None, route.path
            assert read.tagged_by is declared.tagged_by is declared.request, route.path
            assert hasattr(route.view, "lock"), route.path
    assert num_tagged > 0

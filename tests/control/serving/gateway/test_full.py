"""A replica refuses requests beyond its limit. The gateway tries the other replicas before it refuses the request."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.services import deployment_scale
from control.serving.deployments.supervisor import Supervisor
from control.tenants.accounts.models import Organization
from tests.control.serving.deployments.support import (
    State,
    make_deployment,
    make_served_model,
    replica_of,
    tick_until_state,
)
from tests.control.serving.gateway.test_gateway import chat, post, wait_for


@pytest.fixture
def narrow(supervisor: Supervisor, caller: Organization, tmp_path: Path) -> Deployment:
    """A ready deployment whose engines take one request at a time."""
    deployment = make_deployment(make_served_model(tmp_path / "model", "narrow"), caller, "fast")
    tick_until_state(supervisor, deployment, State.READY)
    return deployment


@pytest.fixture
def client(base_url: str, token: str) -> Iterator[httpx2.Client]:
    headers = {"Authorization": f"Bearer {token}"}
    with httpx2.Client(base_url=base_url, headers=headers, timeout=30, trust_env=False) as client:
        yield client


@contextmanager
def occupied(replica: Replica) -> Iterator[None]:
    """Keeps the replica busy with a stream that does not come through the tested gateway."""
    url = f"http://{replica.host}:{replica.port}/v1/chat/completions"
    headers = {"Authorization": f"Bearer {replica.token}"}
    with (
        httpx2.Client(headers=headers, trust_env=False) as other,
        other.stream("POST", url, json=chat("pause", stream=True)) as response,
    ):
        next(response.iter_text())
        yield


def test_a_request_beyond_the_limit_of_the_only_replica_is_refused(
    client: httpx2.Client, narrow: Deployment, tmp_path: Path
) -> None:
    with occupied(replica_of(narrow)):
        refused = post(client, chat("hello"))
        (tmp_path / "model" / "go_on").touch()

    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "deployment_queue_full")
    assert (refused.json()["error"]["type"], refused.headers["Retry-After"]) == ("rate_limit_error", "7")
    wait_for(lambda: post(client, chat("hello")).status_code == 200)
    narrow.refresh_from_db()
    assert narrow.num_failed == 0, "too many requests are no failure of the engine"


def test_a_request_that_one_replica_refuses_is_answered_by_another(
    client: httpx2.Client, narrow: Deployment, supervisor: Supervisor
) -> None:
    deployment_scale(deployment=narrow, num_replicas=2)
    tick_until_state(supervisor, narrow, State.READY)
    first, second = narrow.replicas.order_by("number")

    with occupied(first):
        answer = post(client, chat("hello"))
        with occupied(second):
            refused = post(client, chat("hello"))

    assert (answer.status_code, answer.json()["pid"]) == (200, second.pid)
    assert refused.json()["error"]["code"] == "deployment_queue_full"

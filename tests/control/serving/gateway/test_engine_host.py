import sys

import httpx2
import pytest
from pytest_django import Settings

from control.core.settings.config import get_config
from control.serving.deployments.models import Deployment, Replica
from tests.control.serving.deployments.support import replica_of
from tests.control.serving.gateway.test_gateway import chat

OTHER_ADDRESS = "127.0.0.2"  # belongs to this machine, but an engine that listens on 127.0.0.1 does not accept it

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all addresses of 127.0.0.0/8")


@pytest.fixture
def engine_host(settings: Settings) -> str:
    settings.SLIPSTREAM = get_config().model_copy(update={"engine_host": OTHER_ADDRESS})
    return OTHER_ADDRESS


def test_a_gateway_reaches_engines_on_another_host(
    engine_host: str, deployment: Deployment, base_url: str, token: str
) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx2.post(f"{base_url}/chat/completions", json=chat("hello"), headers=headers, trust_env=False)
    assert answer.status_code == 200


def test_a_gateway_looks_for_an_engine_only_on_the_host_in_the_replicas_row(
    deployment: Deployment, base_url: str, token: str
) -> None:
    """The engine listens on 127.0.0.1, so a gateway that tried the default address would reach it."""
    Replica.objects.update(host=OTHER_ADDRESS)
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx2.post(f"{base_url}/chat/completions", json=chat("hello"), headers=headers, trust_env=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unavailable")


def test_by_default_an_engine_listens_on_loopback_only(deployment: Deployment) -> None:
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"http://{OTHER_ADDRESS}:{replica_of(deployment).port}/health", trust_env=False)

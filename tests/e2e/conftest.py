from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.stack import Stack, start_stack, wait_for
from tests.tiny_model import make_tiny_model

MODEL = "tiny"
SHORT_LEASES = {
    "SLIPSTREAM_LEASE_SECONDS": "4",
    "SLIPSTREAM_RENEW_SECONDS": "1",
    "SLIPSTREAM_RECONCILE_SECONDS": "1",
    "SLIPSTREAM_SHARD_ROWS": "4",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / MODEL)


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    """One for all tests here; its end is a test as well."""
    stack = start_stack(tmp_path_factory.mktemp("stack") / "data", "--model", f"{MODEL}={model_dir}", **SHORT_LEASES)
    yield stack
    assert stack.stop() == 0
    assert stack.processes() == []
    assert stack.endpoints() == []
    assert not (stack.data_dir / "ready.json").exists()


@pytest.fixture(scope="session")
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stack.url, api_key=stack.key, max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def endpoint(client: openai.OpenAI) -> str:
    """The name of a deployment without a speculator, ready."""
    answer = client.post("/deployments", cast_to=object, body={"name": "plain", "model": MODEL})
    assert isinstance(answer, dict)

    def is_ready() -> bool:
        now = client.get(f"/deployments/{answer['id']}", cast_to=object)
        assert isinstance(now, dict)
        assert now["state"] in ("provisioning", "ready"), now
        return bool(now["state"] == "ready")

    wait_for(is_ready, 90.0, "the deployment is not ready")
    return "plain"

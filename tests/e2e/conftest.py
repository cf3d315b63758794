import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import openai
import pytest
from django.conf import settings
from pytest_django.plugin import DjangoDbBlocker

from control.tenants.row_security.scope import Across, across_tenants
from tests.databases import connected_to
from tests.e2e.stack import Stack, assert_nothing_is_left, start_stack, wait_for
from tests.migrated import sqlite_file
from tests.tiny_model import make_tiny_model
from tests.workers.supervisor.history import check_histories

MODEL = "tiny"
SHORT_LEASES = {
    "SLIPSTREAM_LEASE_SECONDS": "4",
    "SLIPSTREAM_RENEW_SECONDS": "1",
    "SLIPSTREAM_RECONCILE_SECONDS": "1",
    "SLIPSTREAM_SHARD_ROWS": "4",
    "OMP_NUM_THREADS": "1",
}


# Secrets in the environment of `up`. Each process passes its environment on to the processes that it starts.
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "secret-key-of-s3",
    "HF_TOKEN": "hf_secret_of_the_hub",
    "SLIPSTREAM_METRICS_TOKEN": "secret-of-prometheus",
    "SLIPSTREAM_SECRET_KEY_FALLBACKS": "an-earlier-secret-key",
}
ENVIRONMENT = {**SHORT_LEASES, **SECRETS}


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / MODEL)


@pytest.fixture(scope="session")
def stack(
    tmp_path_factory: pytest.TempPathFactory, model_dir: Path, django_db_blocker: DjangoDbBlocker
) -> Iterator[Stack]:
    """A running stack for all tests in this folder. Its shutdown is checked at the end, unless a test has killed it."""
    data_dir = tmp_path_factory.mktemp("stack")
    shutil.copy(sqlite_file(), data_dir)  # to save the time of the migrations
    stack = start_stack(data_dir, "--model", f"{MODEL}={model_dir}", **ENVIRONMENT)
    yield stack
    if stack.process.poll() is None:
        assert stack.stop() == 0
        assert_nothing_is_left(stack)
    with django_db_blocker.unblock():
        check_jobs(stack.data_dir)


def check_jobs(data_dir: Path) -> None:
    """Checks the recorded events of all jobs, which must be consistent even if a test has killed processes."""
    config = settings.SLIPSTREAM.model_copy(update={"data_dir": data_dir})
    with (
        patch.object(settings, "SLIPSTREAM", config),
        connected_to(None, sqlite_path=data_dir / "slipstream.sqlite3"),
        across_tenants(Across.COMMAND),
    ):
        check_histories()


@pytest.fixture(scope="session")
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stack.url, api_key=stack.key, max_retries=0) as client:
        yield client


@pytest.fixture(scope="session", autouse=True)
def deployment(client: openai.OpenAI) -> str:
    """The id of a deployment without a speculator, which starts while the first tests run."""
    response = client.post("/deployments", cast_to=object, body={"name": "plain", "model": MODEL})
    assert isinstance(response, dict)
    return str(response["id"])


@pytest.fixture(scope="session")
def endpoint(client: openai.OpenAI, deployment: str) -> str:
    """Waits until the deployment is ready. Returns the deployment's name."""

    def is_ready() -> bool:
        deployment_now = client.get(f"/deployments/{deployment}", cast_to=object)
        assert isinstance(deployment_now, dict)
        assert deployment_now["state"] in ("provisioning", "ready"), deployment_now
        return bool(deployment_now["state"] == "ready")

    wait_for(is_ready, 90.0, "the deployment is not ready")
    return "plain"

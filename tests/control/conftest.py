from collections.abc import Iterator
from pathlib import Path

import pytest
from django.test import Client
from pytest_django import Settings

from control.core.settings.config import get_config
from control.tenants.accounts.models import Organization
from tests.control.factories import client_of, make_organization
from tests.leaks import responses_checked, secrets_in


@pytest.fixture(autouse=True)
def _check_for_leaks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Checks in every test that responses and logs contain no secret (promise S8 of docs/reliability.md)."""
    with responses_checked():
        yield
    assert secrets_in(caplog.text) == [], "the log contains a secret"


@pytest.fixture
def own_data_dir(settings: Settings, tmp_path: Path) -> None:
    """Gives the test an empty data folder, for tests that look at all the files in it.

    The data folder of the other tests may contain files of server processes that earlier tests have started.
    """
    settings.SLIPSTREAM = get_config().model_copy(update={"data_dir": tmp_path / "data"})


@pytest.fixture
def organization(db: None) -> Organization:
    return make_organization()


@pytest.fixture
def other_organization(db: None) -> Organization:
    return make_organization()


@pytest.fixture
def client(organization: Organization) -> Client:
    """Calls the API with a key of `organization`."""
    return client_of(organization)

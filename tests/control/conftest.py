from collections.abc import Iterator

import pytest
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from django.test import Client

from control.tenants.accounts.models import Organization
from tests.control.factories import client_of, make_organization
from tests.leaks import answers_checked, secrets_in


@pytest.fixture(autouse=True)
def _nothing_leaks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """S8, for each test there is."""
    with answers_checked():
        yield
    assert secrets_in(caplog.text) == [], "a secret stands in the log"


@pytest.fixture
def one_connection(db: None) -> Iterator[None]:
    """Requests that the test client does not make would close it, and with it the test's transaction."""
    signals = (request_started, request_finished)
    for signal in signals:
        signal.disconnect(close_old_connections)
    yield
    for signal in signals:
        signal.connect(close_old_connections)


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

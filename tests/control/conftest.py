import pytest
from django.test import Client

from control.accounts.models import Organization
from tests.control.factories import client_of, make_organization


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

import pytest
from django.test import Client

from control.tenants.accounts.models import Organization
from tests.control.factories import make_organization
from tests.control.operations.console.test_members import sign_in


@pytest.fixture
def organization() -> Organization:
    return make_organization("Acme")


@pytest.fixture
def viewer(organization: Organization) -> Client:
    return sign_in(organization, "read_only")

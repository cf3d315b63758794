"""The authentication of a request reads the database once."""

from django.db import connection
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext

from control.tenants.accounts.models import Organization
from control.tenants.authentication.api_keys import authenticate_request
from control.tenants.quotas.models import Limits
from tests.control.factories import make_key


def test_authentication_reads_key_organization_and_limits_in_one_query(organization: Organization) -> None:
    Limits.objects.create(organization=organization, requests_per_minute=10)
    request = RequestFactory().get("/v1/models", headers={"Authorization": f"Bearer {make_key(organization)[1]}"})
    authenticate_request(request)  # the first use of a key within a minute is written

    with CaptureQueriesContext(connection) as queries:
        key = authenticate_request(request)

    assert [query["sql"].split()[0] for query in queries] == ["SELECT"]
    assert key.organization == organization

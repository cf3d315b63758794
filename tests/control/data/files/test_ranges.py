"""Downloads of byte ranges, with which a client resumes an interrupted download."""

import pytest
from django.test import Client

from control.tenants.accounts.models import Organization
from tests.control.factories import make_file

CONTENT = bytes(range(200))


def get(client: Client, organization: Organization, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    file = make_file(organization, CONTENT)
    response = client.get(f"/v1/files/{file.pk}/content", headers=headers)
    body = response.getvalue()
    return response.status_code, body, dict(response.headers)


@pytest.mark.parametrize(
    ("range_header", "first", "last"),
    [
        ("bytes=0-", 0, 199), ("bytes=10-19", 10, 19), ("bytes=150-999", 150, 199), ("bytes=-5", 195, 199),
        ("bytes=-999", 0, 199), ("bytes=199-199", 199, 199), ("bytes= 3 - 4", 3, 4),
    ],
)  # fmt: skip
def test_the_response_to_a_single_range_has_only_the_bytes_of_that_range(
    client: Client, organization: Organization, range_header: str, first: int, last: int
) -> None:
    status, body, headers = get(client, organization, range=range_header)

    assert (status, body) == (206, CONTENT[first : last + 1])
    assert headers["Content-Range"] == f"bytes {first}-{last}/200"
    assert headers["Content-Length"] == str(last - first + 1)


@pytest.mark.parametrize(
    "range_header", ["", "bytes=-", "bytes=5-2", "bytes=1-2,5-6", "lines=1-2", "bytes=x-", "bytes=٣-"]
)
def test_the_response_to_an_invalid_range_or_several_ranges_has_the_whole_file(
    client: Client, organization: Organization, range_header: str
) -> None:
    status, body, headers = get(client, organization, range=range_header)

    assert (status, body) == (200, CONTENT)
    assert headers["Accept-Ranges"] == "bytes"


@pytest.mark.parametrize("range_header", ["bytes=200-", "bytes=999-1000", "bytes=-0"])
def test_a_range_beyond_the_end_is_refused_with_the_size_of_the_file(
    client: Client, organization: Organization, range_header: str
) -> None:
    status, _, headers = get(client, organization, range=range_header)

    assert (status, headers["Content-Range"]) == (416, "bytes */200")


def test_a_range_is_ignored_if_the_file_has_changed(client: Client, organization: Organization) -> None:
    _, _, headers = get(client, organization)

    with_current_etag = get(client, organization, range="bytes=100-", if_range=headers["ETag"])
    with_other_etag = get(client, organization, range="bytes=100-", if_range='"other"')
    assert (with_current_etag[0], with_current_etag[1]) == (206, CONTENT[100:])
    assert (with_other_etag[0], with_other_etag[1]) == (200, CONTENT)

"""The check for secrets in responses and logs finds every kind of leak, and reports no harmless text."""

import pytest
from django.conf import settings
from django.http import HttpResponse

from tests.control.factories import make_key, make_organization
from tests.leaks import check_response, leaks_in, secrets_in
from tests.source_tree import ROOT


@pytest.mark.parametrize(
    "text",
    [
        'Traceback (most recent call last):\n  File "x.py"',
        f"no such file: {ROOT}/platform/control",
        "sqlite3.OperationalError: no such table",
        'SELECT "jobs_job"."id" FROM "jobs_job"',
        "UPDATE jobs_job SET status = 'queued'",
        '{"secret_sha256": "ab"}',
        settings.SECRET_KEY,
        "Authorization: Bearer sk_live_" + "a" * 44,
        "whsec_" + "A" * 32,
    ],
)
def test_each_kind_of_leak_is_found(text: str) -> None:
    assert leaks_in(f"before {text} after") != []
    with pytest.raises(AssertionError, match="contains"):
        check_response("/v1/jobs", HttpResponse(text))
    with pytest.raises(AssertionError, match="contains"):
        check_response("/v1/jobs", HttpResponse(headers={"X-Error": text.partition("\n")[0]}))


def test_an_api_key_is_allowed_in_its_response_field_but_not_in_a_log(db: None) -> None:
    _, token = make_key(make_organization())

    assert leaks_in(f'{{"object": "api_key", "key": "{token}"}}') == []
    assert secrets_in(f"request failed key={token}") == [token]


def test_harmless_text_is_not_reported_as_a_leak() -> None:
    assert leaks_in("Select a model from the list, and update your settings where you set them. sk_live_...abcd") == []

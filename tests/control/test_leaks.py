"""The check for secrets in answers and logs finds every kind of leak, and reports no harmless text."""

import pytest
from django.conf import settings
from django.http import HttpResponse

from tests.control.factories import make_key, make_organization
from tests.leaks import check_answer, leaks_in, secrets_in
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
    with pytest.raises(AssertionError, match="holds"):
        check_answer("/v1/jobs", HttpResponse(text))
    with pytest.raises(AssertionError, match="holds"):
        check_answer("/v1/jobs", HttpResponse(headers={"X-Error": text.partition("\n")[0]}))


def test_a_new_key_may_be_shown_once_and_never_logged(db: None) -> None:
    _, token = make_key(make_organization())

    assert leaks_in(f'{{"object": "api_key", "key": "{token}"}}') == []
    assert secrets_in(f"request failed key={token}") == [token]


def test_plain_words_are_not_a_leak() -> None:
    assert leaks_in("Select a model from the list, and update your settings where you set them. sk_live_...abcd") == []

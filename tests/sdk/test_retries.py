"""How often the client retries a request, and how long it pauses, for any response of the server."""

from email.utils import formatdate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import APIStatusError
from slipstream.http import pause
from tests.sdk.api import ScriptedApi, failure, file_json, ok

RETRIED = {408, 409, 429}


@given(
    statuses=st.lists(st.integers(400, 599), min_size=1, max_size=8),
    should_retry=st.sampled_from([None, "true", "false"]),
    max_retries=st.integers(0, 5),
)
@settings(max_examples=150, deadline=None)
def test_a_request_is_retried_until_the_limit_or_a_permanent_error(
    statuses: list[int], should_retry: str | None, max_retries: int
) -> None:
    headers = {} if should_retry is None else {"x_should_retry": should_retry}
    api = ScriptedApi(*(failure(status, **headers) for status in statuses), ok(file_json()))

    try:
        api.client(max_retries=max_retries).files.retrieve("file-1")
        last = None
    except APIStatusError as error:
        last = error.status

    def is_retried(status: int) -> bool:
        return should_retry == "true" or (should_retry is None and (status in RETRIED or status >= 500))

    num_retriable = next((index for index, status in enumerate(statuses) if not is_retried(status)), len(statuses))
    assert len(api.requests) == min(num_retriable, max_retries) + 1
    assert last == [*statuses, None][len(api.requests) - 1]
    assert len(api.slept) == len(api.requests) - 1


@given(attempt=st.integers(0, 10_000))
def test_pauses_double_from_half_a_second_to_eight_seconds_and_are_randomly_shortened(attempt: int) -> None:
    longest = min(8.0, 0.5 * 2.0 ** min(attempt, 4))

    assert 0.75 * longest <= pause(attempt, {}, "").seconds <= longest


@given(
    value=st.one_of(st.text(st.characters(codec="ascii"), max_size=12), st.floats().map(str)), attempt=st.integers(0, 9)
)
def test_a_pause_is_never_negative_or_unlimited(value: str, attempt: int) -> None:
    for name in ("retry-after", "retry-after-ms"):
        assert 0 <= pause(attempt, {name: value}, "").seconds <= 120


@given(seconds=st.integers(0, 120))
def test_the_pause_that_the_server_requests_is_used(seconds: int) -> None:
    assert pause(0, {"retry-after": str(seconds)}, "").seconds == seconds
    assert pause(0, {"retry-after-ms": str(seconds * 1000), "retry-after": "1"}, "").seconds == seconds


def test_retry_after_may_be_a_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_000_000.0)

    assert pause(0, {"retry-after": formatdate(1_000_030, usegmt=True)}, "").seconds == 30

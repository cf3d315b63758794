"""Clients of OpenAI's and Anthropic's APIs work unchanged with a live endpoint, each in its own environment."""

from collections.abc import Callable

import pytest

from tests.clients.conftest import Outcome
from tests.clients.environments import CLIENTS, Client, NotInstallableError
from tests.clients.script_docs import read_script

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1800)]  # the first test of a client installs it

NO_MESSAGES = "Unknown request URL: POST /v1/messages"

CASES = [
    pytest.param(client, check, id=f"{client.name}-{check.removeprefix('check_')}")
    for client in CLIENTS
    for check in read_script(client).checks
]


@pytest.mark.parametrize(("client", "check"), CASES)
def test_the_unchanged_client_works(
    client: Client,
    check: str,
    outcomes: Callable[[Client], dict[str, Outcome]],
    record_property: Callable[[str, object], None],
) -> None:
    record_property("case", (client.name, check))
    try:
        outcome = outcomes(client)[check]
    except NotInstallableError as error:
        pytest.skip(f"{client.requirements[0]} cannot be installed here: {error}")
    if outcome.error is not None and NO_MESSAGES in outcome.error:
        pytest.xfail("this release has no /v1/messages")
    assert outcome.error is None, outcome.error

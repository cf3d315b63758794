"""Some of the hostile requests of `python -m tests.engine.server.hostile`."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.server.child import Child
from tests.engine.server.hostile import assail, problems_after, start


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Child]:
    with start(tmp_path) as server:
        yield server


def test_hostile_requests_cost_their_senders_alone(server: Child) -> None:
    outcome = asyncio.run(assail(server, first_seed=0, num_requests=80))

    assert problems_after(server, outcome) == []
    assert sum(outcome.statuses.values()) == 80
    assert outcome.statuses["canary: 200"] > 0

"""Runs some of the hostile requests of `python -m tests.engine.server.hostile`."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.server.child import Child
from tests.engine.server.hostile import problems_after, run_attacks, start


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Child]:
    with start(tmp_path) as server:
        yield server


def test_hostile_requests_do_not_harm_the_server_or_valid_requests(server: Child) -> None:
    outcome = asyncio.run(run_attacks(server, first_seed=0, num_requests=80))

    assert problems_after(server, outcome) == []
    assert sum(outcome.statuses.values()) == 80
    assert outcome.statuses["canary: 200"] > 0

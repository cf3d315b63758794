"""The requests of a conversation go to the same replica unless this replica has too many open requests."""

import json
from collections import Counter
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_scale
from control.serving.deployments.supervisor import Supervisor
from control.serving.gateway.completion_request import InvalidRequest, read
from control.serving.gateway.routes import MAX_LOAD, OpenByTarget, Process, Route
from control.serving.gateway.upstream import Target
from tests.control.serving.deployments.support import State, tick_until_state
from tests.control.serving.gateway.test_gateway import chat, post

OPENINGS = [f"{number:016x}" for number in range(1000)]
SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "What is 1 + 1?"}
LATER = [{"role": "assistant", "content": "2"}, {"role": "user", "content": "And 2 + 2?"}]


def make_route(num_replicas: int, *, asleep: tuple[int, ...] = ()) -> Route:
    main = tuple(
        Process(deployment_id="d", target=Target("10.0.0.1", port, "t"), is_asleep=port in asleep)
        for port in range(num_replicas)
    )
    return Route(
        named_id="d", main=main, canary=(), canary_percent=0, is_capped=False, input_nanousd=0, output_nanousd=0,
        context_tokens=1, template_bytes=0, remembers_answers=True, base_model_id="m",
    )  # fmt: skip


def choose(route: Route, opening: str, num_open: dict[int, int] | None = None) -> int:
    """Returns the port of the chosen replica. num_open: the replicas' open requests by port."""
    counts = OpenByTarget({each.target: (num_open or {}).get(each.target.port, 0) for each in route.main})
    process = route.choose(opening, counts)
    assert process is not None
    return process.target.port


def opening_of(path: str, **body: Any) -> str:
    return read(json.dumps({"model": "m", **body}).encode(), path)[0].opening


def test_conversations_are_spread_over_the_replicas() -> None:
    num_conversations = Counter(choose(make_route(4), opening) for opening in OPENINGS)

    assert set(num_conversations) == {0, 1, 2, 3}
    assert min(num_conversations.values()) > 180
    assert max(num_conversations.values()) < 320


def test_a_new_replica_takes_conversations_over_but_moves_none_between_the_others() -> None:
    moved = {
        after for opening in OPENINGS if (after := choose(make_route(4), opening)) != choose(make_route(3), opening)
    }

    assert moved == {3}


@given(num_open=st.lists(st.integers(0, 100), min_size=1, max_size=8), opening=st.sampled_from(OPENINGS))
def test_a_replica_gets_no_request_beyond_its_share_while_others_have_fewer(num_open: list[int], opening: str) -> None:
    chosen = choose(make_route(len(num_open)), opening, dict(enumerate(num_open)))

    share = MAX_LOAD * (sum(num_open) + 1) / len(num_open)
    assert num_open[chosen] == min(num_open) or num_open[chosen] + 1 <= share


@given(num_each=st.integers(0, 100), opening=st.sampled_from(OPENINGS))
def test_at_equal_load_a_conversation_stays_with_its_replica(num_each: int, opening: str) -> None:
    route = make_route(5)

    assert choose(route, opening, dict.fromkeys(range(5), num_each)) == choose(route, opening)


def test_a_conversation_does_not_wake_its_sleeping_replica_while_another_one_is_awake() -> None:
    assert {choose(make_route(3, asleep=(0, 2)), opening) for opening in OPENINGS} == {1}


@pytest.mark.parametrize(
    ("path", "first", "second"),
    [
        ("/v1/chat/completions", {"messages": [SYSTEM, QUESTION]}, {"messages": [SYSTEM, QUESTION, *LATER]}),
        ("/v1/chat/completions", {"messages": [QUESTION]}, {"messages": [QUESTION, *LATER], "temperature": 1}),
        (
            "/v1/messages",
            {"system": "Be brief.", "messages": [QUESTION]},
            {"system": "Be brief.", "messages": [QUESTION, *LATER]},
        ),
        (
            "/v1/responses",
            {"instructions": "Be brief.", "input": QUESTION["content"]},
            {"instructions": "Be brief.", "input": [QUESTION, *LATER]},
        ),
        ("/v1/completions", {"prompt": "x" * 2000}, {"prompt": "x" * 2000 + "y"}),
        ("/v1/completions", {"prompt": "x" * 2000}, {"prompt": ["x" * 2001]}),
        ("/v1/completions", {"prompt": [1, 2] * 1000}, {"prompt": [[1, 2] * 1000 + [3], [4]]}),
    ],
)
def test_requests_of_a_conversation_have_the_same_opening(
    path: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    assert opening_of(path, **first) == opening_of(path, **second)


def test_conversations_that_begin_differently_have_different_openings() -> None:
    path, other = "/v1/chat/completions", {"role": "user", "content": "What is 1 + 2?"}
    openings = [
        opening_of(path, messages=[QUESTION]),
        opening_of(path, messages=[SYSTEM, QUESTION]),
        opening_of(path, messages=[other]),
        opening_of(path, messages=[SYSTEM, other]),
        opening_of("/v1/completions", prompt="What is 1 + 1?"),
    ]

    assert len(set(openings)) == len(openings)


def test_a_body_that_is_nested_too_deeply_is_refused() -> None:
    """The limit depends on the free stack. Writing a body needs more stack than reading the body."""
    refused = [is_refused(b"[" * depth + b"]" * depth) for depth in range(900, 1000)]

    assert refused == sorted(refused)
    assert refused[-1]


def is_refused(content: bytes) -> bool:
    raw = b'{"model": "m", "messages": [{"role": "user", "content": %b}]}' % content
    try:
        read(raw, "/v1/chat/completions")
    except InvalidRequest:
        return True
    return False


def test_the_turns_of_a_conversation_go_to_one_of_two_replicas(
    base_url: str, token: str, deployment: Deployment, supervisor: Supervisor
) -> None:
    deployment_scale(deployment=deployment, num_replicas=2)
    tick_until_state(supervisor, deployment, State.READY)
    headers = {"Authorization": f"Bearer {token}"}
    pids: list[tuple[int, int]] = []
    with httpx2.Client(base_url=base_url, headers=headers, timeout=30, trust_env=False) as client:
        for number in range(24):
            question = chat(f"question {number}")["messages"]
            first, second = (post(client, chat("") | {"messages": turns}) for turns in (question, question + LATER))
            pids.append((first.json()["pid"], second.json()["pid"]))

    assert all(first == second for first, second in pids)
    assert {first for first, _ in pids} == {replica.pid for replica in deployment.replicas.all()}

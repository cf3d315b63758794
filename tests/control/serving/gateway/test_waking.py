"""Endpoints that scale to zero: idle engines sleep, and a request wakes them. No request is lost."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.scaling import MIN_IDLE_SECONDS, ScalingOptions
from control.serving.deployments.services import deployment_scale, deployment_scaling_set
from control.serving.deployments.supervisor import Supervisor
from tests.control.serving.deployments.support import (
    State,
    age_engines,
    num_wakes,
    replica_of,
    tick_until,
    tick_until_asleep,
    tick_until_state,
)
from tests.control.serving.gateway.test_gateway import chat, post

IDLE_SECONDS = 600


@pytest.fixture
def client(base_url: str, token: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(
        base_url=base_url, headers={"Authorization": f"Bearer {token}"}, timeout=30, trust_env=False
    ) as client:
        yield client


@pytest.fixture
def scaled(deployment: Deployment) -> Deployment:
    return deployment_scaling_set(deployment=deployment, scaling=ScalingOptions(scale_to_zero_seconds=IDLE_SECONDS))


@pytest.fixture
def sleeping(scaled: Deployment, supervisor: Supervisor) -> Deployment:
    tick_until_asleep(supervisor, scaled)
    return scaled


def test_a_request_to_a_sleeping_deployment_wakes_it_and_is_answered(
    client: httpx2.Client, sleeping: Deployment, supervisor: Supervisor, tmp_path: Path
) -> None:
    answer = post(client, chat("hello"))
    tick_until_state(supervisor, sleeping, State.READY)

    assert (answer.status_code, num_wakes(tmp_path / "model")) == (200, 1)


def test_several_requests_at_once_wake_the_engine_once(
    client: httpx2.Client, sleeping: Deployment, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: post(client, chat("hello")), range(8)))

    assert [answer.status_code for answer in answers] == [200] * 8
    assert num_wakes(tmp_path / "model") == 1


def test_a_request_between_the_decision_to_sleep_and_the_sleep_keeps_the_engine_awake(
    client: httpx2.Client, scaled: Deployment, supervisor: Supervisor, tmp_path: Path
) -> None:
    (tmp_path / "model" / "hold").touch()
    age_engines(scaled)
    tick_until(supervisor, (tmp_path / "model" / "held").exists)

    first = post(client, chat("hello"))
    (tmp_path / "model" / "hold").unlink()
    (watched,) = supervisor._watched.values()
    tick_until(supervisor, lambda: watched.sleep._pending is None)
    second = post(client, chat("hello"))

    assert (first.status_code, second.status_code, num_wakes(tmp_path / "model")) == (200, 200, 0)
    assert replica_of(scaled).state == Replica.State.READY


def test_a_request_wakes_a_sleeping_engine_although_the_replicas_row_says_ready(
    client: httpx2.Client, scaled: Deployment, supervisor: Supervisor, tmp_path: Path
) -> None:
    assert post(client, chat("hello")).status_code == 200  # the gateway has read the route
    tick_until_asleep(supervisor, scaled)
    Replica.objects.update(state=Replica.State.READY)

    assert post(client, chat("hello")).status_code == 200
    assert num_wakes(tmp_path / "model") == 1


@pytest.mark.wide
def test_requests_that_race_with_the_decision_to_sleep_are_all_answered(
    client: httpx2.Client, scaled: Deployment, supervisor: Supervisor, tmp_path: Path
) -> None:
    """The engine always looks idle, so that the supervisor may decide at any moment of a request to let it sleep."""
    answers: list[tuple[int, bool]] = []
    is_over = threading.Event()

    def request_all() -> None:
        while not is_over.is_set():
            response = post(client, chat("hello", stream=True))
            answers.append((response.status_code, response.text.endswith("data: [DONE]\n\n")))
            time.sleep(random.uniform(0.0, 0.05))  # without pauses, a slow machine seldom finds the engine unused

    def has_slept_often() -> bool:
        age_engines(scaled)
        return num_wakes(tmp_path / "model") >= 4

    thread = threading.Thread(target=request_all)
    thread.start()
    try:
        tick_until(supervisor, has_slept_often, seconds=180)
    finally:
        is_over.set()
        thread.join()

    assert set(answers) == {(200, True)}


def test_an_engine_with_a_running_request_is_not_put_to_sleep(
    client: httpx2.Client, scaled: Deployment, supervisor: Supervisor, tmp_path: Path
) -> None:
    with client.stream("POST", "/chat/completions", json=chat("pause", stream=True)) as response:
        chunks = response.iter_text()
        next(chunks)
        age_engines(scaled)
        for _ in range(20):
            supervisor.tick()
        state = replica_of(scaled).state
        (tmp_path / "model" / "go_on").touch()
        rest = "".join(chunks)

    assert state == Replica.State.READY
    assert rest.endswith("data: [DONE]\n\n")


def test_a_request_waits_for_a_sleeping_engine_no_longer_than_its_caller_allows(
    client: httpx2.Client, sleeping: Deployment, tmp_path: Path
) -> None:
    (tmp_path / "model" / "hold").touch()
    body = chat("hello")
    refused = client.post("/chat/completions", json=body, headers={"X-Scale-Up-Timeout": "0.1"})
    malformed = client.post("/chat/completions", json=body, headers={"X-Scale-Up-Timeout": "soon"})
    (tmp_path / "model" / "hold").unlink()
    answer = client.post("/chat/completions", json=body, headers={"X-Scale-Up-Timeout": "30"})

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "deployment_waking")
    assert int(refused.headers["Retry-After"]) > 0
    assert (malformed.status_code, malformed.json()["error"]["code"]) == (400, "invalid_value")
    assert (answer.status_code, num_wakes(tmp_path / "model")) == (200, 1)
    sleeping.refresh_from_db()
    assert sleeping.num_failed == 0, "the caller's limit is no failure of the engine"


def test_when_one_replica_is_woken_the_supervisor_wakes_the_others(
    client: httpx2.Client, scaled: Deployment, supervisor: Supervisor, tmp_path: Path
) -> None:
    deployment_scale(deployment=scaled, num_replicas=3)
    tick_until_state(supervisor, scaled, State.READY)
    tick_until_asleep(supervisor, scaled)
    assert num_wakes(tmp_path / "model") == 0

    assert post(client, chat("hello")).status_code == 200
    tick_until(supervisor, lambda: Replica.objects.filter(state=Replica.State.READY).count() == 3)

    assert num_wakes(tmp_path / "model") == 3


@pytest.mark.wide
def test_a_real_engine_sleeps_and_gives_the_same_answer_after_waking(
    client: httpx2.Client, real_deployment: Deployment, supervisor: Supervisor
) -> None:
    def answer() -> str:
        response = post(client, chat("hello", temperature=0, max_tokens=24))
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["message"]["content"])

    before = answer()
    scaling = ScalingOptions(scale_to_zero_seconds=MIN_IDLE_SECONDS)
    deployment_scaling_set(deployment=real_deployment, scaling=scaling)
    tick_until_state(supervisor, real_deployment, State.SLEEPING, seconds=60)

    assert answer() == before
    tick_until_state(supervisor, real_deployment, State.READY, seconds=60)

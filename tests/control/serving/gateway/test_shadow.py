"""In mode `shadow`, copies of requests are answered by the candidate and compared. Callers notice nothing of it."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from django.db.models import Sum

from control.billing.usage.models import UsageRecord
from control.core.database_threads import DatabaseThreads
from control.core.storage.backends import get_storage
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_delete
from control.serving.deployments.supervisor import Supervisor
from control.serving.gateway import shadowing
from control.serving.gateway.routes import Trial
from control.serving.gateway.shadowing import Copy, Shadows
from control.serving.rollouts.decision import Evidence
from control.serving.rollouts.evidence import Observation, Side, evidence_of
from control.serving.rollouts.models import Rollout
from control.serving.rollouts.services import rollouts_reconcile
from control.tenants.accounts.models import Organization
from tests.control.serving.deployments.support import (
    State,
    identity_of,
    make_model_folder,
    make_speculator,
    tick_until_state,
)
from tests.control.serving.gateway.test_gateway import chat, events_of, post, wait_for


@pytest.fixture
def client(base_url: str, token: str) -> Iterator[httpx2.Client]:
    headers = {"Authorization": f"Bearer {token}"}
    with httpx2.Client(base_url=base_url, headers=headers, trust_env=False, timeout=10) as client:
        yield client


@pytest.fixture
def rollout(
    client: httpx2.Client, deployment: Deployment, supervisor: Supervisor, caller: Organization, tmp_path: Path
) -> Rollout:
    """A shadow rollout whose candidate is ready and gets a copy of every request."""
    get_storage().put_folder("speculators/one", make_model_folder(tmp_path / "artifact"))
    speculator = make_speculator(deployment.base_model, caller)
    body = {"speculator_id": speculator.pk, "mode": "shadow", "min_requests": 3, "max_acceptance_drop": 1.0}
    assert client.post(f"/deployments/{deployment.pk}/rollouts", json=body).status_code == 201
    rollout = Rollout.objects.get()
    tick_until_state(supervisor, rollout.canary, State.READY)
    rollouts_reconcile()
    Rollout.objects.update(share_percent=100)
    return Rollout.objects.get()


def behave(deployment: Deployment, behaviour: str) -> None:
    """Changes how the candidate answers."""
    Path(deployment.base_model.path, "candidate").write_text(behaviour)


def candidate_of(rollout: Rollout) -> Evidence:
    return evidence_of(rollout)[Side.CANDIDATE]


def wait_for_evidence(rollout: Rollout, condition: Callable[[Evidence], bool]) -> Evidence:
    wait_for(lambda: condition(candidate_of(rollout)))
    return candidate_of(rollout)


REQUESTS = {
    "chat": ("/chat/completions", chat("hello")),
    "greedy": ("/chat/completions", chat("hello", temperature=0)),
    "sampled with a seed": ("/chat/completions", chat("sample", seed=5)),
    "sampled without a seed": ("/chat/completions", chat("sample")),
    "stream": ("/chat/completions", chat("sample", stream=True)),
    "stream with usage": ("/chat/completions", chat("hello", stream=True, stream_options={"include_usage": True})),
    "text": ("/completions", {"model": "fast", "prompt": "sample"}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_candidates_answer_to_a_copy_is_compared_and_discarded(
    client: httpx2.Client, deployment: Deployment, rollout: Rollout, name: str
) -> None:
    path, body = REQUESTS[name]

    response = post(client, body, path)

    assert response.status_code == 200
    if not body.get("stream"):
        assert response.json()["pid"] == identity_of(deployment).pid
        assert response.json()["echo"] == body
    found = wait_for_evidence(rollout, lambda evidence: evidence.num_equal + evidence.num_different == 1)
    assert (found.num_equal, found.num_not_comparable, found.num_dropped) == (1, 0, 0)
    wait_for(lambda: evidence_of(rollout)[Side.STABLE].num_requests == 1)
    stable = evidence_of(rollout)[Side.STABLE]
    assert found.num_requests == 1
    assert (stable.passes.mean, found.passes.mean) == (1.0, 0.5)  # the candidate accepts one of its two tokens
    assert UsageRecord.objects.aggregate(sum=Sum("requests"))["sum"] == 1, "copies are not billed"


@pytest.mark.parametrize("stream", [False, True])
def test_a_candidate_with_another_answer_is_rolled_back_and_the_caller_gets_the_deployments_answer(
    client: httpx2.Client, deployment: Deployment, rollout: Rollout, stream: bool
) -> None:
    behave(deployment, "differ")

    response = post(client, chat("hello", stream=stream))

    assert "other " not in response.text
    assert "token1 " in response.text
    found = wait_for_evidence(rollout, lambda evidence: evidence.num_different == 1)
    assert found.different_request == response.headers["x-request-id"]
    rollouts_reconcile()
    rollout.refresh_from_db()
    assert (rollout.status, (rollout.reason or {})["code"]) == ("rolled_back", "answers_differ")


def test_equal_answers_promote_the_candidate(client: httpx2.Client, deployment: Deployment, rollout: Rollout) -> None:
    for _ in range(3):
        post(client, chat("hello"))
    wait_for_evidence(rollout, lambda evidence: evidence.num_equal == 3)
    wait_for(lambda: evidence_of(rollout)[Side.STABLE].num_requests == 3)

    rollouts_reconcile()

    rollout.refresh_from_db()
    assert rollout.status == "promoting"
    assert rollout.trial is not None
    assert rollout.trial["evidence"]["candidate"]["num_equal"] == 3


def test_a_candidate_that_hangs_delays_no_request_and_further_copies_are_dropped(
    client: httpx2.Client, deployment: Deployment, rollout: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadowing, "MAX_WAITING", 2)
    monkeypatch.setattr(shadowing, "MAX_RUNNING", 1)
    behave(deployment, "wait")

    responses = [post(client, chat("hello")) for _ in range(8)]

    assert {response.status_code for response in responses} == {200}
    assert {response.json()["pid"] for response in responses} == {identity_of(deployment).pid}
    # one copy runs, and two wait
    path = f"/deployments/{deployment.pk}/rollouts/{rollout.pk}/cancel"
    wait_for_evidence(rollout, lambda evidence: evidence.num_dropped == 5)
    assert client.post(path).status_code == 200
    wait_for(lambda: Path(deployment.base_model.path, "hung_up").exists())


def test_a_candidate_that_hangs_does_not_hold_up_the_copies_of_another_rollout() -> None:
    """The copies of the first rollout wait for ever."""

    async def run() -> list[str]:
        threads, compared = DatabaseThreads(2), list[str]()

        async def answered(copy: Copy) -> Observation:
            if copy.trial.rollout_id == "first":
                await asyncio.Event().wait()
            compared.append(copy.request_id)
            return copy.observation("equal")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(shadowing, "_answered", answered)
            patched.setattr(shadowing, "_read_is_in_trial", lambda *_: True)
            patched.setattr(shadowing, "evidence_add", lambda _: None)
            shadows = Shadows(threads)
            for rollout_id in ("first", "second"):
                for number in range(10):
                    shadows.offer(make_copy(rollout_id, f"{rollout_id} {number}"))
            async with asyncio.timeout(10):
                while len(compared) < 10:
                    await asyncio.sleep(0.005)
            await shadows.close()
        await threads.close()
        return sorted(compared)

    assert asyncio.run(run()) == [f"second {number}" for number in range(10)]


def make_copy(rollout_id: str, request_id: str) -> Copy:
    trial = Trial(rollout_id=rollout_id, side=None, canary_id="canary")
    return Copy(
        organization_id="o", trial=trial, request_id=request_id, path="/v1/completions", body=b"", answer=b"",
        memory=None,
    )  # fmt: skip


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_running_copies_end_with_the_rollout_and_with_the_deployment(
    client: httpx2.Client, deployment: Deployment, rollout: Rollout, end: str
) -> None:
    behave(deployment, "wait")
    post(client, chat("hello"))
    hung_up = Path(deployment.base_model.path, "hung_up")
    assert not hung_up.exists()

    if end == "cancel":
        client.post(f"/deployments/{deployment.pk}/rollouts/{rollout.pk}/cancel")
    else:
        deployment_delete(deployment=deployment)

    wait_for(hung_up.exists)
    assert candidate_of(rollout).num_requests == 0


def test_a_candidate_that_dies_counts_as_failed_and_the_caller_notices_nothing(
    client: httpx2.Client, deployment: Deployment, rollout: Rollout
) -> None:
    behave(deployment, "die")

    responses = [post(client, chat("hello")) for _ in range(3)]

    assert {response.status_code for response in responses} == {200}
    found = wait_for_evidence(rollout, lambda evidence: evidence.num_failed == 1)
    assert (found.num_equal, found.num_different) == (0, 0)
    deployment.refresh_from_db()
    assert deployment.num_failed == 0


def test_a_stream_that_its_caller_ends_early_is_not_compared(
    client: httpx2.Client, deployment: Deployment, rollout: Rollout
) -> None:
    with client.stream("POST", "/chat/completions", json=chat("linger", stream=True)) as response:
        next(response.iter_text())

    found = wait_for_evidence(rollout, lambda evidence: evidence.num_not_comparable == 1)
    assert found.num_requests == 0
    assert evidence_of(rollout)[Side.STABLE].num_failed == 0


@pytest.mark.parametrize("content", ["die", "hang up"])
def test_a_request_that_fails_is_not_copied(
    client: httpx2.Client, deployment: Deployment, rollout: Rollout, content: str
) -> None:
    post(client, chat(content, stream=True))

    found = wait_for_evidence(rollout, lambda evidence: evidence.num_not_comparable == 1)
    assert found.num_requests == 0
    wait_for(lambda: evidence_of(rollout)[Side.STABLE].num_failed == 1)


def test_a_request_that_the_engine_refuses_is_not_counted_as_evidence(
    client: httpx2.Client, deployment: Deployment, rollout: Rollout
) -> None:
    assert post(client, chat("refuse")).status_code == 400
    post(client, chat("hello"))

    found = wait_for_evidence(rollout, lambda evidence: evidence.num_equal == 1)
    assert (found.num_requests, found.num_not_comparable) == (1, 0)


def test_a_caller_gets_the_same_stream_with_and_without_a_shadow_rollout(
    client: httpx2.Client, deployment: Deployment, rollout: Rollout
) -> None:
    def received() -> list[Any]:
        events = events_of(post(client, chat("hello", stream=True)))
        return [event if event == "[DONE]" else json.loads(event)["choices"] for event in events]

    with_shadow = received()
    client.post(f"/deployments/{deployment.pk}/rollouts/{rollout.pk}/cancel")
    wait_for(lambda: Rollout.objects.get().status == "rolled_back")

    assert received() == with_shadow

"""The gateway in front of real engines, which run a tiny model: a stop, audits, rollouts, captures and adapters."""

import json
import queue
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from django.db.models import Sum

from control.billing.usage.models import UsageRecord
from control.core.storage.backends import get_storage
from control.serving.deployments.models import Deployment
from control.serving.deployments.supervisor import Supervisor
from control.serving.rollouts.services import rollouts_reconcile
from control.tenants.accounts.models import Organization
from slipstream import APIStatusError, Client
from tests.control.serving.deployments.support import make_deployment, make_speculator, tick_until, tick_until_state
from tests.control.serving.gateway.test_deaths import check_usage
from tests.control.serving.gateway.test_gateway import wait_for
from tests.engine.lora.test_adapters import make_adapter
from tests.plain_engine import PlainAnswer, plain_answers
from tests.workers.exports.speculators import write_speculator

pytestmark = [pytest.mark.wide, pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")]

CONTENTS = [f"Count to {number}." for number in range(6)]
MAX_TOKENS = 24


@pytest.fixture
def api(base_url: str, token: str) -> Iterator[Client]:
    with Client(base_url, token, max_retries=0) as client:
        yield client


def answer(api: Client, model: str, content: str) -> PlainAnswer:
    messages = [{"role": "user", "content": content}]
    answer = api.chat.create(model=model, messages=messages, max_tokens=MAX_TOKENS, temperature=0)
    assert answer.usage is not None
    return PlainAnswer(answer.text, answer.usage["prompt_tokens"], answer.usage["completion_tokens"])


def test_a_stopped_deployment_completes_its_streams_and_refuses_new_requests(
    api: Client, real_deployment: Deployment, supervisor: Supervisor
) -> None:
    folder = Path(real_deployment.base_model.path)
    expected = plain_answers(folder, CONTENTS, max_tokens=1000, ignore_eos=True)
    begun: queue.SimpleQueue[None] = queue.SimpleQueue()

    def stream(content: str) -> str:
        messages = [{"role": "user", "content": content}]
        limits = {"max_tokens": 1000, "temperature": 0, "ignore_eos": True}
        pieces = api.chat.stream(model="fast", messages=messages, **limits)
        first = next(pieces).text
        begun.put(None)
        return first + "".join(piece.text for piece in pieces)

    with ThreadPoolExecutor(len(CONTENTS)) as pool:
        streams = [pool.submit(stream, content) for content in CONTENTS]
        for _ in CONTENTS:
            begun.get(timeout=60)
        api.deployments.stop(real_deployment.pk)
        tick_until_state(supervisor, real_deployment, Deployment.State.STOPPED, seconds=120)

        assert [stream.result(timeout=60) for stream in streams] == [answer.text for answer in expected]

    with pytest.raises(APIStatusError) as refused:
        answer(api, "fast", "One more.")
    assert refused.value.code == "deployment_stopped"
    check_usage(num_requests=len(CONTENTS), num_tokens=1000 * len(CONTENTS))


@pytest.mark.usefixtures("real_deployment")
def test_an_answer_is_audited_through_the_gateway_and_metered_as_a_prompt(
    api: Client, base_url: str, token: str
) -> None:
    request = {"prompt": "Count.", "max_tokens": MAX_TOKENS, "seed": 3, "return_token_ids": True, "logprobs": 0}
    headers = {"Authorization": f"Bearer {token}"}
    with httpx2.Client(base_url=base_url, headers=headers, trust_env=False, timeout=60) as client:
        response = client.post("/completions", json={"model": "fast", **request}).json()

    assert api.audits.create(model="fast", request=request, response=response).is_equal
    response["choices"][0]["token_ids"][5] ^= 1
    found = api.audits.create(model="fast", request=request, response=response)

    assert (found.verdict, found.choices[0]["position"]) == ("different", 5)
    num_tokens = response["usage"]["completion_tokens"]
    check_usage(num_requests=3, num_tokens=num_tokens)
    read = 3 * response["usage"]["prompt_tokens"] + 2 * num_tokens
    assert UsageRecord.objects.aggregate(sum=Sum("input_tokens"))["sum"] == read


def test_a_rollout_from_one_real_engine_to_another_changes_no_answer_and_loses_no_request(
    api: Client, real_deployment: Deployment, supervisor: Supervisor, caller: Organization, tmp_path: Path
) -> None:
    folder = Path(real_deployment.base_model.path)
    expected = plain_answers(folder, CONTENTS, max_tokens=MAX_TOKENS)
    get_storage().put_folder("speculators/one", write_speculator("medusa", tmp_path / "heads", folder))
    speculator = make_speculator(real_deployment.base_model, caller)
    api.captures.set(real_deployment.pk, hours=1)
    rollout = api.rollouts.create(
        real_deployment.pk,
        speculator_id=speculator.pk,
        share_percent=50,
        min_requests=5,
        max_acceptance_drop=1.0,
        max_error_rate=0.0,
    )
    num_sent = num_tokens = num_since_promotion = 0
    deadline = time.monotonic() + 240

    while num_since_promotion < 2 * len(CONTENTS):
        assert time.monotonic() < deadline, rollout
        supervisor.tick()
        rollouts_reconcile()
        number = num_sent % len(CONTENTS)
        received = answer(api, "fast", CONTENTS[number])
        assert received == expected[number]
        num_sent, num_tokens = num_sent + 1, num_tokens + received.num_tokens
        rollout = api.rollouts.retrieve(real_deployment.pk, rollout.id)
        assert rollout.status != "rolled_back", rollout.reason
        num_since_promotion += rollout.status == "promoted"

    assert rollout.figures is not None
    assert rollout.figures["canary"]["num_requests"] >= 5
    assert rollout.figures["stable"]["num_requests"] > 0
    assert api.deployments.retrieve(real_deployment.pk).speculator_id == speculator.pk
    check_usage(num_requests=num_sent, num_tokens=num_tokens)
    wait_for(lambda: api.captures.retrieve(real_deployment.pk).num_requests == num_sent)
    rows = [json.loads(line) for line in api.files.content(api.captures.file(real_deployment.pk).id).splitlines()]
    assert sorted(row["body"]["messages"][0]["content"] for row in rows) == CONTENTS


def test_a_real_engine_with_a_speculator_gives_equal_answers_to_copies_and_is_promoted(
    api: Client, real_deployment: Deployment, supervisor: Supervisor, caller: Organization, tmp_path: Path
) -> None:
    """Half of the requests sample without a seed, and half of them are streams."""
    folder = Path(real_deployment.base_model.path)
    get_storage().put_folder("speculators/one", write_speculator("medusa", tmp_path / "heads", folder))
    speculator = make_speculator(real_deployment.base_model, caller)
    rollout = api.rollouts.create(
        real_deployment.pk,
        speculator_id=speculator.pk,
        mode="shadow",
        share_percent=50,
        min_requests=8,
        max_acceptance_drop=1.0,
        max_error_rate=0.0,
    )
    num_sent = 0
    deadline = time.monotonic() + 240

    while rollout.status != "promoted":
        assert time.monotonic() < deadline, rollout
        supervisor.tick()
        rollouts_reconcile()
        if rollout.status == "canary":
            messages = [{"role": "user", "content": CONTENTS[num_sent % len(CONTENTS)]}]
            sampling: dict[str, Any] = {"max_tokens": MAX_TOKENS, "temperature": float(num_sent % 2)}
            if num_sent % 4 < 2:
                api.chat.create(model="fast", messages=messages, **sampling)
            else:
                assert list(api.chat.stream(model="fast", messages=messages, **sampling))
            num_sent += 1
        rollout = api.rollouts.retrieve(real_deployment.pk, rollout.id)
        assert rollout.status != "rolled_back", rollout.reason

    assert rollout.trial is not None
    candidate = rollout.trial["evidence"]["candidate"]
    assert candidate["num_equal"] >= 8
    assert (candidate["num_different"], candidate["num_not_comparable"], candidate["num_failed"]) == (0, 0, 0)
    assert candidate["acceptance_length"] >= 1.0
    wait_for(lambda: UsageRecord.objects.aggregate(sum=Sum("requests"))["sum"] == num_sent)


def test_an_adapter_changes_only_the_answers_of_requests_that_name_it(
    api: Client, real_deployment: Deployment, supervisor: Supervisor, caller: Organization, tmp_path: Path
) -> None:
    folder = Path(real_deployment.base_model.path)
    adapter_dir = make_adapter(folder, tmp_path / "adapter", ["q_proj", "v_proj", "up_proj"], rank=4)
    plain = plain_answers(folder, CONTENTS, max_tokens=MAX_TOKENS)
    adapted = plain_answers(folder, CONTENTS, max_tokens=MAX_TOKENS, adapter_dir=adapter_dir)
    assert all(one.text != other.text for one, other in zip(plain, adapted, strict=True))
    tone = api.adapters.upload(adapter_dir, name="tone", model=real_deployment.base_model.name)
    make_deployment(real_deployment.base_model, caller, "untouched")

    api.deployments.update(real_deployment.pk, adapters=[tone.id])

    ready = Deployment.objects.filter(state=Deployment.State.READY)
    tick_until(
        supervisor,
        lambda: ready.filter(name="fast", observed_generation=2).exists() and ready.filter(name="untouched").exists(),
        seconds=120,
    )
    for model, expected in (("fast:tone", adapted), ("fast", plain), ("untouched", plain)):
        assert [answer(api, model, content) for content in CONTENTS] == expected
    check_usage(num_requests=3 * len(CONTENTS), num_tokens=sum(one.num_tokens for one in (*adapted, *plain, *plain)))

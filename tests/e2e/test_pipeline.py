"""A pipeline from prompts to an endpoint: distil, train, evaluate, gate, deploy, with a tiny random model."""

import io
import json
from typing import Any, cast

import openai

from tests.e2e.conftest import MODEL
from tests.e2e.stack import wait_for

NUM_HELD_OUT = 4
ENDED = ("live", "rejected", "failed", "cancelled")


def prompts(numbers: range) -> bytes:
    rows = (
        {
            "custom_id": f"prompt-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "", "messages": [{"role": "user", "content": f"Count to {number}"}], "max_tokens": 24},
        }
        for number in numbers
    )
    return "".join(
        json.dumps({**row, "body": {**cast(dict[str, Any], row["body"]), "temperature": 0}}) + "\n" for row in rows
    ).encode()


def upload(client: openai.OpenAI, content: bytes) -> str:
    return client.files.create(file=("prompts.jsonl", io.BytesIO(content)), purpose="batch").id


def get(client: openai.OpenAI, path: str) -> dict[str, Any]:
    return cast(dict[str, Any], client.get(path, cast_to=object))


def test_a_pipeline_turns_prompts_into_an_endpoint_whose_answers_equal_those_of_plain_decoding(
    client: openai.OpenAI, endpoint: str
) -> None:
    request = {
        "name": "faster",
        "model": MODEL,
        "prompts_file": upload(client, prompts(range(20))),
        "held_out_file": upload(client, prompts(range(100, 100 + NUM_HELD_OUT))),
        "training": {"kind": "medusa", "num_heads": 2, "epochs": 2, "warmup_steps": 2, "evaluate_every": 10},
        "evaluation": {"concurrencies": [1, 4]},
        "gate": {"min_speedup": 0.0, "outputs_equal": True},  # speculation cannot make so small a model faster
    }

    pipeline = cast(dict[str, Any], client.post("/pipelines", cast_to=object, body=request))
    path = f"/pipelines/{pipeline['id']}"
    wait_for(lambda: get(client, path)["status"] in ENDED, 180.0, "the pipeline has not ended")
    pipeline = get(client, path)

    assert pipeline["status"] == "live", pipeline
    assert [(stage["name"], stage["status"]) for stage in pipeline["stages"]] == [
        (name, "succeeded") for name in ("distil", "train", "evaluate", "gate", "deploy")
    ]
    report = pipeline["report"]
    assert report["prompts_held_out"] == report["outputs_equal"] == NUM_HELD_OUT
    assert report["acceptance_length"] >= 1.0
    assert [entry["concurrency"] for entry in report["concurrencies"]] == [1, 4]
    _check_speculator(client, pipeline["speculator_id"])
    _check_deployment(client, pipeline)
    _check_equal_answers(client, endpoint, "faster")


def _check_speculator(client: openai.OpenAI, speculator_id: str) -> None:
    speculator = get(client, f"/speculators/{speculator_id}")
    assert (speculator["status"], speculator["kind"], speculator["model"]) == ("ready", "medusa", MODEL)
    plot = client.get(f"/speculators/{speculator_id}/plot", cast_to=openai.HttpxBinaryResponseContent)
    assert plot.read().startswith(b"\x89PNG")


def _check_deployment(client: openai.OpenAI, pipeline: dict[str, Any]) -> None:
    deployment = get(client, f"/deployments/{pipeline['deployment_id']}")
    assert (deployment["name"], deployment["state"]) == ("faster", "ready")
    assert deployment["speculator_id"] == pipeline["speculator_id"]


def _check_equal_answers(client: openai.OpenAI, plain: str, speculative: str) -> None:
    for temperature in (0.0, 0.8):
        answers = [
            client.chat.completions.create(
                model=name,
                messages=[{"role": "user", "content": "Count to 300"}],
                max_tokens=40,
                temperature=temperature,
                seed=11,
            )
            for name in (plain, speculative)
        ]
        assert answers[0].choices[0].message.content == answers[1].choices[0].message.content
        assert "metrics" in (answers[1].model_extra or {})

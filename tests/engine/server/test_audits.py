"""The route POST /v1/audit: a response can be sent back to the server, which scores its answers again."""

import copy
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.load import load_engine
from engine.tokenizer import Tokenizer
from tests.engine.server.live import Live, serve
from tests.tiny_model import make_tiny_model

QUESTION: dict[str, Any] = {"temperature": 0.9, "max_tokens": 12, "return_token_ids": True}


def audit(live: Live, request: dict[str, Any], response: dict[str, Any], **fields: object) -> Any:
    body = {"model": "tiny", "request": request, "response": response, **fields}
    return live.http.post("/v1/audit", json=body)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path, "llama")


def test_a_response_with_token_ids_can_be_sent_back_for_an_audit(folder: Path) -> None:
    engine = load_engine(folder, drafter="ngram", config=EngineConfig(max_seq_len=128, max_batch_size=4))
    with serve(engine, Tokenizer.load(folder), max_body_bytes=1 << 20) as live:
        chat = {"messages": [{"role": "user", "content": "hello"}], "logprobs": True, "n": 3, **QUESTION}
        text = {"prompt": ["one", "two"], "n": 2, "logprobs": 1, "stop": ["a", "b"], **QUESTION}
        for path, request in (("/v1/chat/completions", chat), ("/v1/completions", text)):
            response = live.http.post(path, json=request).json()
            found = audit(live, request | {"model": "tiny", "stream": False}, response).json()
            assert found["verdict"] == "equal", found
            assert found["system_fingerprint"] == response["system_fingerprint"]
            assert [choice["index"] for choice in found["choices"]] == list(range(len(response["choices"])))
            usage = response["usage"]
            assert found["usage"]["prompt_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            assert found["usage"]["completion_tokens"] == 0

            wrong = copy.deepcopy(response)
            wrong["choices"][2]["token_ids"][0] ^= 1
            found = audit(live, request, wrong).json()
            assert found["verdict"] == "different"
            assert [choice["verdict"] for choice in found["choices"]].count("different") == 1
            assert (found["choices"][2]["differs"], found["choices"][2]["position"]) == ("token", 0)

            assert audit(live, request, response | {"seed": response["seed"] + 1}).json()["verdict"] == "different"
        assert not engine.has_work
        assert engine.scheduler.pool.num_available == engine.scheduler.pool.num_slots


def test_an_audit_detects_an_answer_of_another_build_and_refuses_invalid_input_with_a_code(folder: Path) -> None:
    engine = load_engine(folder, config=EngineConfig(max_seq_len=128))
    with serve(engine, Tokenizer.load(folder), max_body_bytes=1 << 20) as live:
        request = {"prompt": "one", **QUESTION}
        response = live.http.post("/v1/completions", json=request).json()
        parts = response["system_fingerprint"].split(".")
        other_build = ".".join([*parts[:4], "0123456789abcdef", *parts[5:]])
        found = audit(live, request, response | {"system_fingerprint": other_build}).json()
        assert found["verdict"] == "fingerprint_mismatch"
        assert found["parts"] == [{"part": "build", "expected": parts[4], "actual": "0123456789abcdef"}]
        assert found["usage"]["prompt_tokens"] == 0

        without_ids = copy.deepcopy(response)
        del without_ids["choices"][0]["token_ids"]
        cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
            (request, without_ids, "missing_token_ids"),
            (request, response | {"system_fingerprint": "fp_12"}, "unknown_fingerprint"),
            (request, {**response, "seed": None}, "missing_seed"),
            (request | {"best_of": 4}, response, "unsupported_parameter"),
            (request | {"prompt": "x" * 200}, response, "context_length_exceeded"),
        ]
        for asked, answered, code in cases:
            refused = audit(live, asked, answered)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, code)
        assert audit(live, request, response, model="unknown").json()["error"]["code"] == "model_not_found"
        assert audit(live, request, response, extra=1).json()["error"]["code"] == "unknown_parameter"
        echoed = audit(live, request | {"echo": True}, response)
        assert echoed.json()["error"]["param"] == "request.echo"

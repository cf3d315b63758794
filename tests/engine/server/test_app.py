"""The HTTP server with a fake engine: response bodies, errors, limits, and clients that disconnect."""

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from engine.server.log import add_request_id
from engine.tokenizer import Tokenizer
from tests.engine.server.fake_engine import FakeEngine
from tests.engine.server.live import MODEL, Live, serve, wait_until
from tests.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_tiny_model(tmp_path_factory.mktemp("model"), "llama", num_layers=1))


@pytest.fixture(scope="module")
def engine(tokenizer: Tokenizer) -> FakeEngine:
    return FakeEngine(lambda _: tokenizer.encode("Grüße, 漢!"), tokens_per_step=2)


@pytest.fixture(scope="module")
def live(engine: FakeEngine, tokenizer: Tokenizer) -> Iterator[Live]:
    with serve(engine, tokenizer) as live:
        yield live


def events(response: httpx2.Response) -> list[Any]:
    """Returns the stream's JSON events, and "[DONE]" as a string."""
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def error_of(response: httpx2.Response) -> dict[str, Any]:
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error, dict)
    return error


def test_a_chat_completion_has_openais_fields(live: Live) -> None:
    body = live.chat(seed=5).json()

    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert (body["model"], body["seed"]) == (MODEL, 5)
    message = {"role": "assistant", "content": "Grüße, 漢!", "refusal": None}
    assert body["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    usage = body["usage"]
    assert usage["completion_tokens"] == len("Grüße, 漢!".encode()) + 1
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_response_contains_speculation_statistics(live: Live) -> None:
    statistics = live.chat().json()["metrics"]["speculative_decoding"]

    assert statistics == {
        "mean_acceptance_length": 1.75,
        "draft_acceptance_rate": 0.5,
        "acceptance_histogram": [2, 1, 1],
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 3,
        "num_draft_tokens": 6,
        "num_spec_tokens": 2,
    }


def test_a_stream_sends_the_role_then_the_text_then_the_finish_reason(live: Live) -> None:
    chunks = events(live.chat(stream=True))

    assert chunks[-1] == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    assert "".join(delta["content"] for delta in deltas[:-1]) == "Grüße, 漢!"
    assert (deltas[-1], chunks[-2]["choices"][0]["finish_reason"]) == ({}, "stop")
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks[:-1])
    assert len({chunk["id"] for chunk in chunks[:-1]}) == 1
    assert all("usage" not in chunk and "metrics" not in chunk for chunk in chunks[:-1])


def test_include_usage_adds_a_last_chunk_with_usage_and_speculation_statistics(live: Live) -> None:
    whole = live.chat().json()

    *before, last, done = events(live.chat(stream=True, stream_options={"include_usage": True}))

    assert done == "[DONE]"
    assert last["choices"] == []
    assert (last["usage"], last["metrics"]) == (whole["usage"], whole["metrics"])
    assert all(chunk["usage"] is None for chunk in before)


def test_a_streamed_text_completion_equals_the_unstreamed_completion(live: Live) -> None:
    whole = live.complete().json()
    chunks = events(live.complete(stream=True))

    assert (whole["object"], whole["choices"][0]["text"]) == ("text_completion", "Grüße, 漢!")
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == "Grüße, 漢!"
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"


def test_streamed_log_probabilities_equal_those_of_an_unstreamed_response(live: Live) -> None:
    whole = live.chat(logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]
    chunks = events(live.chat(logprobs=True, top_logprobs=2, stream=True))[:-1]

    streamed = [entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == whole
    assert bytes(byte for entry in whole for byte in entry["bytes"]).decode() == "Grüße, 漢!"
    assert all(len(entry["top_logprobs"]) == 2 for entry in whole)


def test_the_choices_of_several_prompts_are_numbered_in_order(live: Live) -> None:
    body = live.complete(["a", "b"], n=2).json()

    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == 2
    assert body["metrics"]["speculative_decoding"]["num_spec_steps"] == 16


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_answer_and_cancels_the_engine_request(tokenizer: Tokenizer, stream: bool) -> None:
    engine = FakeEngine(lambda _: tokenizer.encode("Grüße, 漢!"), endless=True)
    with serve(engine, tokenizer) as live:
        options: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
        response = live.chat(stop=["ße"], stream=stream, **options)

    if stream:
        chunks = events(response)[:-1]
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
        ending, usage = chunks[-2]["choices"][0]["finish_reason"], chunks[-1]["usage"]
    else:
        choice, usage = response.json()["choices"][0], response.json()["usage"]
        text, ending = choice["message"]["content"], choice["finish_reason"]
    assert (text, ending) == ("Grü", "stop")
    assert usage["completion_tokens"] == len("Grüße".encode())
    assert len(engine.cancelled) == 1


def test_max_tokens_ends_an_answer_with_finish_reason_length(live: Live) -> None:
    choice = live.chat(max_tokens=2).json()["choices"][0]

    assert (choice["message"]["content"], choice["finish_reason"]) == ("Gr", "length")


def test_a_response_states_the_token_limit_if_the_request_sets_no_limit(live: Live) -> None:
    first, *_ = events(live.chat(stream=True))
    body, limited = live.chat().json(), live.chat(max_tokens=2).json()

    room = FakeEngine.max_seq_len - body["usage"]["prompt_tokens"]
    assert body["limits"] == first["limits"] == {"max_tokens": room, "set_by": "context"}
    assert "limits" not in limited
    refused = live.chat(max_tokens=room + 1)
    assert (refused.status_code, error_of(refused)["code"]) == (400, "max_tokens_too_large")


def test_the_model_is_listed_and_can_be_retrieved_by_name(live: Live) -> None:
    (model,) = live.http.get("/v1/models").json()["data"]

    assert (model["id"], model["object"], model["max_model_len"]) == (MODEL, "model", 512)
    assert live.http.get(f"/v1/models/{MODEL}").json() == model
    assert live.http.get("/v1/models/other/one").status_code == 404


def test_a_request_for_an_unknown_model_gets_404(live: Live) -> None:
    response = live.chat(model="gpt-9")

    assert response.status_code == 404
    assert (error_of(response)["code"], error_of(response)["param"]) == ("model_not_found", "model")
    assert "gpt-9" in error_of(response)["message"]
    assert MODEL in error_of(response)["message"]


@pytest.mark.parametrize("header", [None, "Bearer wrong", "secret-of-the-test", "Bearer é"])
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/v1/chat/completions", "/nowhere"])
def test_without_the_token_every_route_but_health_returns_401(live: Live, path: str, header: str | None) -> None:
    headers = {} if header is None else {b"authorization": header.encode("latin-1")}

    response = httpx2.get(live.url + path, headers=headers)

    assert response.status_code == 401
    assert error_of(response)["code"] == "invalid_api_key"
    assert httpx2.get(f"{live.url}/health").status_code == 200


def test_the_error_for_an_invalid_value_names_its_parameter(live: Live) -> None:
    response = live.chat(temperature=3)

    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"
    assert error_of(response)["param"] == "temperature"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"a"', b"\xff\xfe", b'{"seed": NaN}', b"[" * 3000, b'{"model": "\\ud800"}']
)
def test_an_invalid_json_body_is_refused(live: Live, body: bytes) -> None:
    response = live.http.post("/v1/chat/completions", content=body)

    assert response.status_code == 400
    assert error_of(response)["code"] == "invalid_json"


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_over_the_limit_is_refused(live: Live, declared: bool) -> None:
    content = b" " * 5000

    response = live.http.post("/v1/chat/completions", content=content if declared else iter([content]))

    assert response.status_code == 413
    assert error_of(response)["code"] == "request_too_large"
    assert "4096" in error_of(response)["message"]


def test_errors_for_unknown_routes_and_methods_have_openais_format(live: Live) -> None:
    assert error_of(live.http.get("/v1/nothing"))["code"] == "http_404"
    response = live.http.get("/v1/chat/completions")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert error_of(response)["code"] == "http_405"


def test_the_callers_request_id_is_used_if_it_is_valid_and_otherwise_a_new_one(live: Live) -> None:
    assert live.http.get("/health").headers["x-request-id"].startswith("req_")
    assert live.http.get("/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert live.http.get("/health", headers={"x-request-id": "a b"}).headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("stream", [False, True])
def test_log_lines_of_a_request_contain_its_id(live: Live, caplog: pytest.LogCaptureFixture, stream: bool) -> None:
    caplog.set_level(logging.INFO, "engine.server.run")
    caplog.handler.addFilter(add_request_id)
    try:
        live.http.post("/v1/completions", json={"prompt": "x", "stream": stream}, headers={"x-request-id": "abc-1"})
    finally:
        caplog.handler.removeFilter(add_request_id)

    logged = [record for record in caplog.records if record.name == "engine.server.run"]
    assert [record.__dict__["request"] for record in logged] == ["abc-1"] * 2
    begins, ends = (record.getMessage() for record in logged)
    assert begins.split()[0] == ends.split()[0], "both lines name the same response"
    assert "begins: 1 tokens to read" in begins
    assert "ends: stop, 14 tokens" in ends


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_the_engine_refuses_gets_400(live: Live, stream: bool) -> None:
    response = live.complete("x" * 200, stream=stream)

    assert response.status_code == 400
    assert "100 tokens, got 200" in error_of(response)["message"]


def test_metrics_have_vllms_names_and_count_requests_and_tokens(tokenizer: Tokenizer) -> None:
    with serve(FakeEngine(tokens_per_step=2), tokenizer) as live:
        live.complete("hello")
        live.complete("hello")
        text = live.http.get("/metrics").text

    label = f'{{model_name="{MODEL}"}}'
    for line in [
        f"vllm:prompt_tokens_total{label} 10.0",
        f"vllm:generation_tokens_total{label} 12.0",  # five tokens and the end token, twice
        f"vllm:spec_decode_num_drafts_total{label} 6.0",  # counted by the engine: three steps per request
        f"vllm:spec_decode_num_draft_tokens_total{label} 12.0",
        f"vllm:spec_decode_num_accepted_tokens_total{label} 6.0",
        f"vllm:num_preemptions_total{label} 0.0",
        f"vllm:prefix_cache_queries_total{label} 0.0",
        f"vllm:prefix_cache_hits_total{label} 0.0",
        f"vllm:kv_cache_usage_perc{label} 0.0",
        f"vllm:num_requests_running{label} 0.0",
        f"vllm:num_requests_waiting{label} 0.0",
        f"vllm:time_to_first_token_seconds_count{label} 2.0",
        f"vllm:e2e_request_latency_seconds_count{label} 2.0",
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{model_name="{MODEL}",position="0"}} 6.0',
    ]:
        assert line in text.splitlines()


def endless_engine(tokenizer: Tokenizer) -> FakeEngine:
    return FakeEngine(lambda _: tokenizer.encode("x"), tokens_per_step=1, endless=True)


def test_a_full_queue_refuses_requests_with_a_retry_time(tokenizer: Tokenizer) -> None:
    engine = endless_engine(tokenizer)
    with serve(engine, tokenizer, max_waiting=0) as live:  # at most 4 choices, all of them running
        engine.gate.clear()
        with httpx2.Client(base_url=live.url, headers=live.http.headers) as other_client:
            body = {"prompt": "a", "n": 3, "stream": True}
            request = other_client.build_request("POST", "/v1/completions", json=body)
            with ThreadPoolExecutor() as pool:
                waiting = pool.submit(other_client.send, request, stream=True)
                wait_until(lambda: live.app.async_engine.num_open == 3)

                refused = live.complete(n=2)
                too_many = live.complete(n=5)  # more choices than the server could ever run
                engine.gate.set()
                waiting.result().close()

        wait_until(lambda: live.app.async_engine.num_open == 0)
        accepted = live.complete(n=2, stop=["xx"])

    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert error_of(refused)["code"] == "engine_overloaded"
    assert "limit is 4" in error_of(refused)["message"]
    assert too_many.status_code == 400
    assert accepted.status_code == 200


def test_disconnecting_during_a_stream_cancels_the_engine_requests(tokenizer: Tokenizer) -> None:
    engine = endless_engine(tokenizer)
    with serve(engine, tokenizer) as live:
        body = {"prompt": "a", "n": 2, "stream": True}
        with live.http.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())
            engine.gate.clear()  # the generation cannot end before the client disconnects
        wait_until(lambda: live.app.async_engine.num_open == 0)
        engine.gate.set()

        wait_until(lambda: not engine.has_work)
        assert len(engine.cancelled) == 2
        wait_until(lambda: live.app.generations.num_active == 0)


def test_disconnecting_before_the_response_cancels_the_engine_request(tokenizer: Tokenizer) -> None:
    engine = endless_engine(tokenizer)
    with serve(engine, tokenizer) as live:
        engine.gate.clear()
        with pytest.raises(httpx2.ReadTimeout):
            live.http.post("/v1/completions", json={"prompt": "a"}, timeout=0.3)
        wait_until(lambda: live.app.async_engine.num_open == 0)
        engine.gate.set()

        wait_until(lambda: not engine.has_work)
        assert len(engine.cancelled) == 1
        assert live.app.generations.num_active == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_fails_before_its_first_token_gets_500(tokenizer: Tokenizer, stream: bool) -> None:
    (poison,) = tokenizer.encode("!")
    with serve(FakeEngine(poison=poison, poison_at=0), tokenizer) as live:
        response = live.complete("bad!", stream=stream)
        healthy = live.complete("good").json()

    assert response.status_code == 500
    assert (error_of(response)["type"], error_of(response)["code"]) == ("server_error", "generation_failed")
    assert healthy["choices"][0]["text"] == "good"


def test_a_request_that_fails_during_a_stream_gets_an_error_event(tokenizer: Tokenizer) -> None:
    (poison,) = tokenizer.encode("!")
    with serve(FakeEngine(poison=poison, poison_at=2), tokenizer) as live:
        chunks = events(live.complete("bad!", stream=True))

    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == "ba"
    assert chunks[-1]["error"]["code"] == "generation_failed"


def test_a_broken_engine_makes_the_server_unhealthy(tokenizer: Tokenizer) -> None:
    engine = FakeEngine()
    with serve(engine, tokenizer) as live:
        assert live.http.get("/health").status_code == 200
        engine.broken = True
        failed = live.complete()
        refused = live.complete()
        health = live.http.get("/health")

    assert (failed.status_code, error_of(failed)["code"]) == (503, "engine_unavailable")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert health.status_code == 503
    assert "device is lost" in health.json()["reason"]


def test_a_draining_server_refuses_new_requests(tokenizer: Tokenizer) -> None:
    with serve(FakeEngine(), tokenizer) as live:
        live.app.drain()
        refused, health = live.complete(), live.http.get("/health")

    assert (refused.status_code, error_of(refused)["code"]) == (503, "server_draining")
    assert refused.headers["retry-after"] == "1"
    assert (health.status_code, health.json()["reason"]) == (503, "draining")

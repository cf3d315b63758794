"""An audit finds an answer equal whichever drafter produced it, and locates every change of the answer."""

import copy
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.fields import InvalidRequest
from engine.load import load_engine, load_model
from engine.loop import Engine
from engine.row_invariance import RowInvariance
from engine.tokenizer import Tokenizer
from tests.engine.audit.answers import SAMPLINGS, Body, bodies, drafters, respond, verdict
from tests.engine.lora.test_adapters import make_adapter
from tests.engine.openai.thinking_model import make_thinking_model
from tests.tiny_model import make_tiny_model

# peft uses a deprecated name of transformers.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), "llama", dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


def make_engine(folder: Path, **config: object) -> Engine:
    return load_engine(folder, config=EngineConfig(max_seq_len=256, max_batch_size=4, **config))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    """Returns the engine that answers. Tests swap its drafter; its batches and chunks differ from the auditor's."""
    return make_engine(folder, draft_budget=11)


@pytest.fixture(scope="module")
def auditor(folder: Path) -> Engine:
    return make_engine(folder, prefill_chunk=48)


@pytest.fixture(scope="module")
def sampled(engine: Engine, tokenizer: Tokenizer) -> tuple[Body, Body]:
    """Returns a request at temperature 0.8 with log-probabilities, and the response to this request."""
    request = {"prompt": "one two", "max_tokens": 90, "temperature": 0.8, "seed": 5, "logprobs": 2, "ignore_eos": True}
    request["return_token_ids"] = True
    return request, respond(engine, tokenizer, [request])[0]


@pytest.mark.parametrize("count", [len(SAMPLINGS) * 2, pytest.param(200, marks=pytest.mark.wide)])
def test_answers_under_every_drafter_and_sampling_are_equal_when_they_are_scored_again(
    engine: Engine, auditor: Engine, tokenizer: Tokenizer, tmp_path: Path, count: int
) -> None:
    draft_model = load_model(make_tiny_model(tmp_path, "llama", seed=1, num_layers=1), dtype="bfloat16")
    requests = bodies(count=count)
    plain: list[Body] = []
    for drafter in drafters(engine.model, draft_model):
        engine.swap_drafter(drafter)
        responses = respond(engine, tokenizer, requests)
        ends = [(r["choices"][0]["finish_reason"], r["choices"][0]["token_ids"][-1] == 2) for r in responses]
        assert set(ends) == {("length", False), ("stop", False), ("stop", True)}
        choices = [response["choices"] for response in responses]
        plain = plain or choices
        assert choices == plain, drafter.name  # log-probabilities are equal to the last bit, too
        for request, response in zip(requests, responses, strict=True):
            found = verdict(auditor, tokenizer, request, response)
            assert found["verdict"] == "equal", (drafter.name, request, found)


@pytest.mark.parametrize("config", [{}, {"weights": "int8"}, {"dtype": "float32"}, {"prefill_chunk": 1}])
def test_log_probabilities_have_the_same_bits_when_an_answer_is_scored_again(
    folder: Path, tokenizer: Tokenizer, tmp_path: Path, config: dict[str, object]
) -> None:
    engine, auditor = make_engine(folder, draft_budget=7, **config), make_engine(folder, **config)
    for one in (engine, auditor):
        one.adapters.load("adapted", make_adapter(folder, tmp_path, ["q_proj", "down_proj"], rank=4))
    requests = [request | {"logprobs": 0} for request in bodies(count=18) if "prompt" in request]
    for adapter in (None, "adapted"):
        for request, response in zip(requests, respond(engine, tokenizer, requests, adapter=adapter), strict=True):
            assert len(response["choices"][0]["logprobs"]["token_logprobs"]) > 0
            found = verdict(auditor, tokenizer, request, response, model=adapter or "")
            assert found["verdict"] == "equal", (adapter, request, found)


def test_answers_with_reasoning_traces_are_equal_when_they_are_scored_again(tmp_path: Path) -> None:
    """A thinking budget ends the reasoning traces. Stop strings end the answers, but not the traces."""
    folder = make_thinking_model(tmp_path, dtype=torch.bfloat16)
    tokenizer, engine = Tokenizer.load(folder), load_engine(folder, config=EngineConfig(max_batch_size=4))
    chat: Body = {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"opened": True}}
    chat |= {"thinking_token_budget": 20, "max_tokens": 60, "temperature": 1.0, "return_token_ids": True}
    requests = [chat | {"seed": seed, "stop": list("aeiou")} for seed in range(6)]

    responses = respond(engine, tokenizer, requests)

    traces = [response["choices"][0]["message"]["reasoning_content"] for response in responses]
    assert any(set(trace) & set("aeiou") for trace in traces)
    for request, response in zip(requests, responses, strict=True):
        found = verdict(engine, tokenizer, request, response)
        assert found["verdict"] == "equal", (request, found)


def test_a_request_for_a_stream_with_accepted_tokens_is_audited_like_one_without(
    auditor: Engine, tokenizer: Tokenizer, sampled: tuple[Body, Body]
) -> None:
    request, response = sampled
    found = verdict(auditor, tokenizer, request | {"stream": True, "return_acceptance": True}, response)
    assert found["verdict"] == "equal"


def test_an_answer_is_scored_in_passes_of_many_tokens(
    auditor: Engine, tokenizer: Tokenizer, sampled: tuple[Body, Body], monkeypatch: pytest.MonkeyPatch
) -> None:
    num_passes = 0
    forward = auditor.model.forward

    def counting(*args: object) -> object:
        nonlocal num_passes
        num_passes += 1
        return forward(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(auditor.model, "forward", counting)
    assert verdict(auditor, tokenizer, *sampled)["verdict"] == "equal"
    assert num_passes == 3  # one pass each for the prompt, for tokens 2 to 66, and for the other tokens


def test_a_flipped_token_is_located_at_every_position(
    auditor: Engine, tokenizer: Tokenizer, sampled: tuple[Body, Body]
) -> None:
    request, response = sampled
    ids = response["choices"][0]["token_ids"]
    for position in (0, 1, 2, 31, 63, 64, 65, 66, 88, 89):
        flipped = copy.deepcopy(response)
        flipped["choices"][0]["token_ids"][position] = (ids[position] + 1) % 259
        (choice,) = verdict(auditor, tokenizer, request, flipped)["choices"]
        assert (choice["verdict"], choice["differs"], choice["position"]) == ("different", "token", position)
        assert (choice["expected"], choice["actual"]) == (ids[position], (ids[position] + 1) % 259)


def test_a_log_probability_that_differs_in_its_last_bit_is_located(
    auditor: Engine, tokenizer: Tokenizer, sampled: tuple[Body, Body]
) -> None:
    request, response = sampled
    for position in (0, 64, 89):
        changed = copy.deepcopy(response)
        logprobs = changed["choices"][0]["logprobs"]["token_logprobs"]
        logprobs[position] = float(np.nextafter(np.float32(logprobs[position]), np.float32(-math.inf)))
        (choice,) = verdict(auditor, tokenizer, request, changed)["choices"]
        assert (choice["differs"], choice["position"]) == ("logprob", position)


def cut(choice: Body) -> None:
    del choice["token_ids"][-1:]


def extended(choice: Body) -> None:
    choice["token_ids"].append(70)


def other_reason(choice: Body) -> None:
    choice["finish_reason"] = "length" if choice["finish_reason"] == "stop" else "stop"


@pytest.mark.parametrize(("change", "offset"), [(cut, -1), (extended, 0), (other_reason, 0)])
@pytest.mark.parametrize("sampling", ["greedy", "end token", "stop tokens", "stop strings", "grammar"])
def test_a_different_end_of_an_answer_is_located(
    engine: Engine, auditor: Engine, tokenizer: Tokenizer, sampling: str, change: Callable[[Body], None], offset: int
) -> None:
    request = {"prompt": "x", "max_tokens": 64, "seed": 3, "return_token_ids": True} | SAMPLINGS[sampling]
    (response,) = respond(engine, tokenizer, [request])
    length = len(response["choices"][0]["token_ids"])
    assert response["choices"][0]["finish_reason"] == ("length" if sampling == "greedy" else "stop")
    assert verdict(auditor, tokenizer, request, response)["verdict"] == "equal"
    change(response["choices"][0])
    (choice,) = verdict(auditor, tokenizer, request, response)["choices"]
    assert (choice["differs"], choice["position"]) == ("end", length + offset)


def test_a_wrong_seed_is_detected(auditor: Engine, tokenizer: Tokenizer, sampled: tuple[Body, Body]) -> None:
    request, response = sampled
    response = copy.deepcopy(response)
    del response["choices"][0]["logprobs"]
    for seed in range(6, 16):
        (choice,) = verdict(auditor, tokenizer, request | {"seed": seed}, response)["choices"]
        assert choice["differs"] == "token"
        assert choice["position"] < 20


def other_weights(folder: Path, copied: Path) -> Engine:
    copied.mkdir()
    for path in folder.iterdir():
        (copied / path.name).write_bytes(path.read_bytes())
    tensors = load_file(copied / "model.safetensors")
    tensors["model.layers.0.mlp.down_proj.weight"][3, 5] += 0.01
    save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
    return make_engine(copied)


def int8_weights(folder: Path, copied: Path) -> Engine:
    return make_engine(folder, weights="int8")


def other_adapter(folder: Path, copied: Path) -> Engine:
    engine = make_engine(folder)
    engine.adapters.load("adapted", make_adapter(folder, copied, ["q_proj"], rank=2))
    engine.adapters.default = engine.adapters.get("adapted")
    return engine


@pytest.mark.parametrize(
    ("other", "part"), [(other_weights, "weights"), (int8_weights, "format"), (other_adapter, "adapter")]
)
def test_other_weights_are_detected_by_the_fingerprint_and_by_the_bits_of_log_probabilities(
    folder: Path,
    auditor: Engine,
    tokenizer: Tokenizer,
    tmp_path: Path,
    other: Callable[[Path, Path], Engine],
    part: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = [request | {"logprobs": 0} for request in bodies(count=18) if "prompt" in request]
    responses = respond(other(folder, tmp_path / "other"), tokenizer, requests)
    with monkeypatch.context() as context:
        context.setattr(auditor, "step", None)  # nothing may be scored
        found = [verdict(auditor, tokenizer, *pair) for pair in zip(requests, responses, strict=True)]
    assert {one["verdict"] for one in found} == {"fingerprint_mismatch"}
    assert {tuple(p["part"] for p in one["parts"]) for one in found} == {(part,)}
    assert part in found[0]["message"]
    for request, response in zip(requests, responses, strict=True):
        forged = response | {"system_fingerprint": str(auditor.fingerprint())}
        assert verdict(auditor, tokenizer, request, forged)["verdict"] == "different"


def test_the_first_difference_of_a_prompt_is_located(engine: Engine, auditor: Engine, tokenizer: Tokenizer) -> None:
    request = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "seed": 1, "return_token_ids": True}
    (response,) = respond(engine, tokenizer, [request])
    assert verdict(auditor, tokenizer, request, response)["verdict"] == "equal"
    changed = request | {"messages": [{"role": "user", "content": "hallo"}]}
    (choice,) = verdict(auditor, tokenizer, changed, response)["choices"]
    first = response["prompt_token_ids"].index(tokenizer.encode("e")[0], 7)
    assert (choice["differs"], choice["position"]) == ("prompt", first)


def test_an_engine_whose_rows_are_not_invariant_does_not_audit(
    auditor: Engine, tokenizer: Tokenizer, sampled: tuple[Body, Body], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditor, "row_invariance", RowInvariance(False, "a product is not exact"))
    with pytest.raises(InvalidRequest, match="a product is not exact") as refused:
        verdict(auditor, tokenizer, *sampled)
    assert refused.value.code == "audit_unavailable"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"choices": [{"finish_reason": "stop"}]}, "missing_token_ids"),
        ({"choices": [{"token_ids": []}]}, "missing_token_ids"),
        ({"choices": [{"token_ids": [70, 259]}]}, "invalid_value"),
        ({"choices": [{"token_ids": [70, True]}]}, "invalid_value"),
        ({"choices": [{"token_ids": "70"}]}, "invalid_value"),
        ({"choices": []}, "invalid_value"),
        ({"choices": [{"token_ids": [70]}] * 2}, "invalid_value"),
        ({"choices": [{"token_ids": [70], "index": 1}]}, "invalid_value"),
        ({"choices": [{"token_ids": [70], "logprobs": {"token_logprobs": [math.nan]}}]}, "invalid_value"),
        ({"choices": [{"token_ids": [70], "logprobs": {"content": [3]}}]}, "invalid_value"),
        ({"choices": [{"token_ids": [70], "prompt_token_ids": [1.5]}]}, "invalid_value"),
        ({"system_fingerprint": None}, "unknown_fingerprint"),
        ({"system_fingerprint": "fp_44709d6fcb"}, "unknown_fingerprint"),
        ({"seed": None}, "missing_seed"),
        ({"seed": "5"}, "invalid_value"),
    ],
)
def test_a_claim_that_cannot_be_audited_is_refused_with_its_code(
    auditor: Engine, tokenizer: Tokenizer, sampled: tuple[Body, Body], change: Body, code: str
) -> None:
    request, response = {name: value for name, value in sampled[0].items() if name != "seed"}, sampled[1]
    assert verdict(auditor, tokenizer, request, response)["verdict"] == "equal"
    with pytest.raises(InvalidRequest) as refused:
        verdict(auditor, tokenizer, request, response | change)
    assert refused.value.code == code

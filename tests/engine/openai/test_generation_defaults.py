"""The values of generation_config.json apply to all sampling parameters that a request does not set."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.openai.limits import limits_block
from engine.openai.requests import parse_chat, parse_completion
from engine.tokenizer import Tokenizer
from tests.tiny_model import make_tiny_model

MAX_SEQ_LEN = 100
RECOMMENDED = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.01, "repetition_penalty": 1.05}
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("model"), "llama", num_layers=1)
    write(folder, **RECOMMENDED, do_sample=False, eos_token_id=2)
    return folder


def write(folder: Path, **values: Any) -> None:
    (folder / "generation_config.json").write_text(json.dumps(values))


def sampled_with(tokenizer: Tokenizer, **body: Any) -> dict[str, Any]:
    chat = {"messages": [{"role": "user", "content": "hi"}]} | body
    parsed = parse_chat(chat, tokenizer=tokenizer, max_seq_len=MAX_SEQ_LEN).sampling
    text = parse_completion({"prompt": "hi"} | body, tokenizer=tokenizer, max_seq_len=MAX_SEQ_LEN).sampling
    assert [getattr(text, name) for name in NEUTRAL] == [getattr(parsed, name) for name in NEUTRAL]
    return {name: getattr(parsed, name) for name in NEUTRAL}


def test_the_models_defaults_apply_unless_they_are_turned_off(folder: Path) -> None:
    assert sampled_with(Tokenizer.load(folder)) == RECOMMENDED
    assert sampled_with(Tokenizer.load(folder, use_generation_config=False)) == NEUTRAL


def test_a_request_overrides_each_default(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)

    assert sampled_with(tokenizer, temperature=0) == RECOMMENDED | {"temperature": 0.0}
    assert sampled_with(tokenizer, **NEUTRAL) == NEUTRAL
    assert sampled_with(tokenizer, top_k=-1, top_p=None) == RECOMMENDED | {"top_k": 0}


def test_max_new_tokens_limits_requests_without_a_limit(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "llama", num_layers=1)
    write(folder, max_new_tokens=7)
    tokenizer = Tokenizer.load(folder)

    def limits(**body: Any) -> tuple[int, dict[str, Any]]:
        parsed = parse_completion({"prompt": "hi"} | body, tokenizer=tokenizer, max_seq_len=MAX_SEQ_LEN)
        return parsed.sampling.max_tokens, limits_block(parsed.limits)

    assert limits() == (7, {"limits": {"max_tokens": 7, "set_by": "generation_config"}})
    assert limits(max_tokens=50) == (50, {})
    assert limits(prompt="a" * 95) == (5, {"limits": {"max_tokens": 5, "set_by": "context"}})


def test_the_error_for_an_invalid_default_names_the_default(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "llama", num_layers=1)
    write(folder, top_p=1.5)

    with pytest.raises(ValueError, match=r"generation_config.json.top_p must be .* got 1.5"):
        Tokenizer.load(folder)

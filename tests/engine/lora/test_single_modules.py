"""LoRA on models that run through `transformers` agrees with peft, and neither batching nor drafts change an answer."""

from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.drafters.none import NoDrafter
from engine.errors import AdapterNotLoadable
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.request import Request, SamplingParams
from tests.engine.drafters import OracleDrafter
from tests.engine.lora.test_adapters import ALL_MODULES, answers_of, log_probability_error, make_adapter
from tests.tiny_model import make_tiny_model

WINDOW: dict[str, Any] = {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]}
GPT_OSS: dict[str, Any] = WINDOW | {"num_local_experts": 4, "num_experts_per_tok": 2}
FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "gpt_oss": (GPT_OSS, ALL_MODULES[:4]),
    "gemma3_text": (WINDOW, ALL_MODULES),
    "phi3": ({}, ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]),
}

# peft uses a deprecated name of transformers.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_agree_with_peft(tmp_path: Path, family: str) -> None:
    values, modules = FAMILIES[family]
    base = make_tiny_model(tmp_path / "m", family, **values)
    adapter = make_adapter(base, tmp_path / "a", modules, rank=5)
    engine = Engine(load_model(base), NoDrafter(), EngineConfig())
    engine.adapters.load("a", adapter)
    assert log_probability_error(engine, base, adapter, "a") <= 1e-4
    assert log_probability_error(engine, base, adapter, None) > 1e-2  # without the adapter


@pytest.mark.parametrize("family", ["gpt_oss", "gemma3_text"])
def test_batching_and_drafts_do_not_change_answers(tmp_path: Path, family: str) -> None:
    values, modules = FAMILIES[family]
    base = make_tiny_model(tmp_path / "m", family, **values)
    model = load_model(base, dtype="bfloat16")
    engine = Engine(model, NoDrafter(), EngineConfig(max_batch_size=3, draft_budget=10))
    for name, rank in (("a", 4), ("b", 5)):
        engine.adapters.load(name, make_adapter(base, tmp_path / name, modules, rank=rank, seed=rank))
    params = SamplingParams(max_tokens=12, temperature=0.7, seed=3, num_logprobs=1, ignore_eos=True)
    requests = [Request(f"r{i}", (*range(40, 65), i), params, (None, "a", "b")[i % 3]) for i in range(6)]
    single = [generate(engine, [request])[0] for request in requests]
    answers = {completion.request_id: completion.token_ids for completion in single}
    assert len(set(answers.values())) > 3

    assert answers_of(generate(engine, requests)) == answers_of(single)
    vocab_size = model.config.vocab_size
    engine.swap_drafter(OracleDrafter(answers, max_depth=4, error=0.2, tree=True, vocab_size=vocab_size))
    drafted = generate(engine, requests)
    assert answers_of(drafted) == answers_of(single)
    assert max(c.speculation.mean_acceptance_length for c in drafted) > 1.5


def test_modules_that_a_layer_does_not_have_are_refused(tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path / "m", "gpt_oss", **GPT_OSS)
    adapter = make_adapter(make_tiny_model(tmp_path / "d", "qwen3"), tmp_path / "a", ["q_proj", "up_proj"], rank=4)
    engine = Engine(load_model(base), NoDrafter(), EngineConfig())
    served = "k_proj, o_proj, q_proj, v_proj"
    with pytest.raises(AdapterNotLoadable, match=f"LoRA is served on {served} of layer 0, got up_proj"):
        engine.adapters.load("a", adapter)


def test_an_adapter_whose_matrices_have_another_shape_is_refused(tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path / "m", "gpt_oss", **GPT_OSS)
    wider = make_tiny_model(tmp_path / "d", "qwen3", hidden_size=128)
    adapter = make_adapter(wider, tmp_path / "a", ["q_proj"], rank=4)
    engine = Engine(load_model(base), NoDrafter(), EngineConfig())
    with pytest.raises(AdapterNotLoadable, match=r"q_proj of layer 0 must have A \[r, 64\]"):
        engine.adapters.load("a", adapter)

"""The engine serves other model families through transformers with exact rows, or refuses them with the reason."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.config import EngineConfig
from engine.drafters.none import NoDrafter
from engine.errors import ModelNotLoadable
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.request import Request, SamplingParams
from tests.engine.drafters import OracleDrafter
from tests.engine.test_parity import difference, edit_config
from tests.tiny_model import make_tiny_model

EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    # learned positions, Conv1D, scaled attention scores
    "gpt2": {"n_inner": 128, "scale_attn_by_inverse_layer_idx": True},
    "gpt_neox": {"num_key_value_heads": 4},  # partial rotary embedding, parallel attention and MLP
    "phi": {},  # biases, also on the head
    "granite": {"attention_multiplier": 0.1, "logits_scaling": 2.0, "embedding_multiplier": 3.0},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_agree_with_transformers(tmp_path: Path, family: str) -> None:
    assert difference(make_tiny_model(tmp_path, family, **FAMILIES[family])) <= 1e-4


@pytest.mark.parametrize(
    ("family", "dtype"), [("gpt2", "float32"), ("gpt_neox", "bfloat16"), ("phi", "float32"), ("olmoe", "bfloat16")]
)
def test_answers_with_draft_trees_equal_answers_without_drafts(tmp_path: Path, family: str, dtype: str) -> None:
    model = load_model(make_tiny_model(tmp_path, family, **FAMILIES[family]), dtype=dtype)
    params = SamplingParams(max_tokens=12, num_logprobs=2, temperature=0.8, seed=3, ignore_eos=True)
    requests = [Request(f"r{i}", tuple(range(i + 1, 5 * i + 4)), params) for i in range(5)]

    plain = [generate(Engine(model, NoDrafter(), EngineConfig(max_batch_size=1)), [r])[0] for r in requests]
    answers = {answer.request_id: answer.token_ids for answer in plain}
    oracle = OracleDrafter(answers, max_depth=4, error=0.3, tree=True, vocab_size=model.config.vocab_size)
    drafted = generate(Engine(model, oracle, EngineConfig(max_batch_size=4, draft_budget=9)), requests)

    assert [(a.token_ids, a.logprobs) for a in drafted] == [(a.token_ids, a.logprobs) for a in plain]
    assert sum(a.speculation.num_accepted_draft_tokens for a in drafted) > 5


def test_tapped_hidden_states_equal_the_layer_outputs_of_transformers(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "granite")
    token_ids = torch.arange(20)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    outputs: list[torch.Tensor] = []
    for layer in reference.model.layers:
        layer.register_forward_hook(lambda _, __, out: outputs.append(out[0]))
    reference(token_ids.unsqueeze(0))

    model = load_model(folder, dtype="float32")
    taps = model.hidden_states(token_ids, (2, 1)).taps  # tap n is the output of layer n - 1

    assert taps is not None
    assert (taps[:, 0] - outputs[1]).abs().max() <= 1e-4
    assert (taps[:, 1] - outputs[0]).abs().max() <= 1e-4


def test_the_maximum_context_is_limited_by_the_rope_length_but_not_by_sliding_windows(tmp_path: Path) -> None:
    def limit(folder: str, family: str, **overrides: Any) -> int:
        return load_model(make_tiny_model(tmp_path / folder, family, **overrides)).max_positions

    assert limit("a", "starcoder2", sliding_window=None) == 1024
    assert limit("b", "starcoder2", sliding_window=48) == 1024
    longrope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    longrope["original_max_position_embeddings"] = 64
    assert limit("c", "phi3", rope_parameters=longrope, original_max_position_embeddings=64) == 64


def test_sliding_windows_that_the_adapter_does_not_see_limit_the_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_tiny_model(tmp_path, "starcoder2", sliding_window=100)
    monkeypatch.setattr("engine.models.transformers_rows.row_mask", lambda **_: None)
    assert load_model(folder).max_positions == 100


@pytest.mark.parametrize(
    ("family", "overrides", "message"),
    [
        ("gemma2", {}, r"gemma2 is not served: attention with a soft cap on scores \(softcap\)"),
        ("llama4_text", EXPERTS, "experts like Llama4TextExperts are not supported"),
        ("bloom", {"n_layer": 2, "n_head": 4}, "a product with torch"),
    ],
)
def test_models_that_the_adapter_cannot_run_exactly_are_refused_with_the_reason(
    tmp_path: Path, family: str, overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelNotLoadable, match=message):
        load_model(make_tiny_model(tmp_path, family, **overrides))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"auto_map": {"AutoConfig": "theirs.Config"}}, r"refers to code in the folder \(auto_map\)"),
        ({"quantization_config": {"quant_method": "hqq"}}, r"quantized checkpoint \(method hqq\)"),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
        ({"num_hidden_layers": 3}, "tensors are missing in the folder, such as gpt_neox.layers.2"),
    ],
)
def test_model_folders_that_the_adapter_does_not_support_are_refused_with_the_reason(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelNotLoadable, match=message):
        load_model(edit_config(make_tiny_model(tmp_path, "gpt_neox"), **changes))

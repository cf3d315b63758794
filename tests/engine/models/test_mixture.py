"""Mixtral and Qwen3-MoE agree with transformers and peft, and their answers are equal with every drafter."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.drafters.none import NoDrafter
from engine.errors import AdapterNotLoadable, ModelNotLoadable
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.models.dense import Decoder
from engine.request import Request, SamplingParams
from engine.row_invariance import find_fault
from tests.engine.drafters import every_drafter
from tests.engine.lora.test_adapters import ALL_MODULES, log_probability_error, make_adapter
from tests.engine.test_equality import SAMPLINGS, answers_only, complete, make_requests
from tests.engine.test_parity import difference, edit_config
from tests.tiny_model import make_tiny_model

MIXTRAL: dict[str, Any] = {"num_local_experts": 8, "num_experts_per_tok": 2}
QWEN: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 96}
ATTENTION = ALL_MODULES[:4]

# peft uses a deprecated name of transformers.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@pytest.mark.parametrize(
    ("architecture", "values"),
    [
        ("mixtral", MIXTRAL),
        ("qwen3_moe", QWEN),
        ("qwen3_moe", QWEN | {"norm_topk_prob": True, "mlp_only_layers": [0], "tie_word_embeddings": True}),
        ("qwen3_moe", QWEN | {"decoder_sparse_step": 2}),
        ("qwen3_moe", QWEN | {"moe_intermediate_size": 24}),  # has no C kernel
    ],
    ids=["mixtral", "qwen", "normalized, with a dense layer", "every second layer dense", "odd size"],
)
def test_logits_agree_with_transformers(tmp_path: Path, architecture: str, values: dict[str, Any]) -> None:
    folder = make_tiny_model(tmp_path, architecture, **values)
    model = load_model(folder)
    assert isinstance(model, Decoder)
    assert difference(folder) <= 1e-4


def test_num_experts_is_read_if_num_local_experts_is_missing(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "qwen3_moe", **QWEN)
    edit_config(folder, num_experts=8, num_local_experts=None)
    mixture = load_model(folder).config.mixture
    assert mixture is not None
    assert mixture.num_experts == 8


@pytest.mark.parametrize(("architecture", "values"), [("mixtral", MIXTRAL), ("qwen3_moe", QWEN)])
@pytest.mark.parametrize("weights", ["auto", "int8"])
def test_answers_are_equal_with_every_drafter(
    tmp_path: Path, architecture: str, values: dict[str, Any], weights: str
) -> None:
    model = load_model(make_tiny_model(tmp_path / "m", architecture, **values), dtype="bfloat16", weights=weights)
    draft_model = load_model(make_tiny_model(tmp_path / "d", "llama", seed=1, num_layers=1))
    requests = make_requests(model, SAMPLINGS["top-p"], count=6, max_tokens=16)
    plain = complete(model, NoDrafter(), requests, max_batch_size=1)
    for drafter in every_drafter(model, draft_model, {c.request_id: c.token_ids for c in plain}):
        drafted = complete(model, drafter, requests, max_batch_size=4, prefill_chunk=7, draft_budget=12)
        assert answers_only(drafted) == answers_only(plain), drafter.name


def test_the_rows_of_a_mixture_are_invariant_on_this_machine(tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path, "qwen3_moe", **QWEN), dtype="bfloat16")
    assert isinstance(model, Decoder)
    assert find_fault(model) is None


def test_adapters_on_attention_agree_with_peft_and_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path / "m", "qwen3_moe", **QWEN)
    adapter = make_adapter(base, tmp_path / "a", ATTENTION, rank=4)
    engine = Engine(load_model(base), NoDrafter(), EngineConfig())
    engine.adapters.load("a", adapter)
    assert log_probability_error(engine, base, adapter, "a") <= 1e-4
    sampling = SamplingParams(max_tokens=12, temperature=0.7, seed=3, num_logprobs=1, ignore_eos=True)
    requests = [Request(f"r{i}", (*range(40, 60), i), sampling, (None, "a")[i % 2]) for i in range(5)]
    single = [answers_only(generate(engine, [request]))[0] for request in requests]
    assert answers_only(generate(engine, requests)) == single


def test_an_adapter_on_experts_is_refused(tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path / "m", "qwen3_moe", **QWEN)
    dense = make_tiny_model(tmp_path / "d", "qwen3")
    adapter = make_adapter(dense, tmp_path / "a", ["q_proj", "up_proj"], rank=4)
    engine = Engine(load_model(base), NoDrafter(), EngineConfig())
    with pytest.raises(AdapterNotLoadable, match="LoRA is served on k_proj, o_proj, q_proj, v_proj, got up_proj"):
        engine.adapters.load("a", adapter)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": 9}, r"num_experts_per_tok must be in 1..8"),
        ({"num_experts_per_tok": 0}, r"num_experts_per_tok must be in 1..8"),
        ({"num_local_experts": None}, "must have num_local_experts"),
        ({"num_local_experts": 9}, r"gate.weight must be \[9, 64\], got \[8, 64\]"),
    ],
)
def test_a_config_with_a_wrong_number_of_experts_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelNotLoadable, match=message):
        load_model(edit_config(make_tiny_model(tmp_path, "mixtral", **MIXTRAL), **changes))


def test_all_products_of_an_int4_mixture_but_the_router_are_int4(tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path, "mixtral", **MIXTRAL), dtype="bfloat16", weights="int4")
    assert isinstance(model, Decoder)
    (first, *_) = model.weights.layers
    assert {name: weight.format_name for name, weight in first.products.items()} == {
        "qkv": "int4", "output": "int4", "router": "bfloat16", "gate_up": "int4", "down": "int4",
    }  # fmt: skip
    assert torch.isfinite(model.hidden_states(torch.arange(30)).final).all()

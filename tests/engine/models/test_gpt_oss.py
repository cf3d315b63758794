"""gpt-oss agrees with transformers beyond its sliding windows, and its answers are equal with every drafter."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from engine.drafters.none import NoDrafter
from engine.errors import AdapterNotLoadable, ModelNotLoadable
from engine.load import load_engine, load_model
from engine.lora.adapters import Adapters
from engine.models.transformers_model import TransformersModel
from engine.models.transformers_rows import CURRENT, RowPass, row_attention
from engine.row_invariance import EXACT
from kernels.decoder import DecoderRows
from kernels.memory import trim_heap
from tests.engine.drafters import every_drafter
from tests.engine.test_equality import SAMPLINGS, answers_only, complete, make_requests
from tests.engine.test_parity import difference
from tests.kernels.test_attention import make_rows
from tests.tiny_model import make_tiny_model

WINDOW = 20
YARN = {"rope_type": "yarn", "factor": 8.0, "rope_theta": 1e4, "original_max_position_embeddings": 64,
        "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}  # fmt: skip


def make_gpt_oss(folder: Path, **values: Any) -> Path:
    """Makes a model with sliding and full attention. Its swiglu_limit is so low that experts clamp values."""
    sizes = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW, "swiglu_limit": 0.5}
    return make_tiny_model(folder, "gpt_oss", num_layers=2, **(sizes | values))


@pytest.mark.parametrize(
    "values",
    [{}, {"rope_parameters": YARN}, {"sliding_window": 1}, {"sliding_window": 17, "dtype": torch.bfloat16},
     {"intermediate_size": 24}],
    ids=["as published", "yarn", "window of one", "bf16 checkpoint", "experts without a C kernel"],
)  # fmt: skip
def test_logits_agree_with_transformers_beyond_the_window(tmp_path: Path, values: dict[str, Any]) -> None:
    assert difference(make_gpt_oss(tmp_path, **values), length=90) <= 1e-4


@pytest.mark.parametrize("name", ["sinks", "router.bias", "gate_up_proj_bias", "down_proj_bias", "q_proj.bias"])
def test_changing_any_part_of_the_model_changes_its_hidden_states(tmp_path: Path, name: str) -> None:
    """Shows that `test_logits_agree_with_transformers_beyond_the_window` would fail if the engine left out a part."""
    folder, token_ids = make_gpt_oss(tmp_path), torch.arange(60)
    states = load_model(folder).hidden_states(token_ids).final
    reference = AutoModelForCausalLM.from_pretrained(folder)
    for key, parameter in reference.named_parameters():
        if key.endswith(name):
            nn.init.constant_(parameter, -1e4 if name == "sinks" else 0.0)
    reference.save_pretrained(folder)
    assert not torch.allclose(states, load_model(folder).hidden_states(token_ids).final, atol=1e-2)


def test_rows_are_exact_and_the_context_is_not_limited_by_the_window(tmp_path: Path) -> None:
    engine = load_engine(make_gpt_oss(tmp_path))
    assert engine.row_invariance == EXACT
    assert engine.model.max_positions == 1024


@pytest.mark.parametrize("sampling", ["greedy", "top-p"])
def test_answers_are_equal_with_every_drafter(tmp_path: Path, sampling: str) -> None:
    model = load_model(make_gpt_oss(tmp_path / "m", rope_parameters=YARN), dtype="bfloat16")
    draft_model = load_model(make_tiny_model(tmp_path / "d", "llama", seed=1, num_layers=1))
    requests = make_requests(model, SAMPLINGS[sampling], count=4, max_tokens=12)
    plain = complete(model, NoDrafter(), requests, max_batch_size=1)
    for drafter in every_drafter(model, draft_model, {c.request_id: c.token_ids for c in plain}):
        drafted = complete(model, drafter, requests, max_batch_size=3, prefill_chunk=7, draft_budget=12)
        assert answers_only(drafted) == answers_only(plain), drafter.name


def test_attention_sinks_and_adapters_are_refused_on_other_devices_than_cpus(tmp_path: Path) -> None:
    model = load_model(make_gpt_oss(tmp_path))
    assert isinstance(model, TransformersModel)
    states, slots = torch.empty(1, 4, 64, 16, device="meta"), torch.zeros(1, dtype=torch.int64)
    rows = DecoderRows(slots, slots, make_rows(torch.zeros(1, 1, dtype=torch.int32), [1], [[]]))
    token = CURRENT.set(RowPass(rows, [], []))
    try:
        with pytest.raises(ModelNotLoadable, match=r"sinks .* are served on CPUs only") as raised:
            row_attention(nn.Module(), states, states, states, None, s_aux=torch.zeros(4, device="meta"))
    finally:
        CURRENT.reset(token)
    assert raised.value.code == "model_not_loadable"
    model.device = torch.device("cuda")  # as if the model were on a GPU
    with pytest.raises(AdapterNotLoadable, match="LoRA of a gpt_oss is only served on CPUs, got cuda"):
        Adapters(model).read("a", tmp_path)


def test_the_memory_of_unpacked_experts_is_returned_to_the_system(tmp_path: Path) -> None:
    folder = make_gpt_oss(tmp_path, hidden_size=512, intermediate_size=1024)
    trim_heap()
    model = load_model(folder)
    before = anonymous_bytes()
    trim_heap()
    held_bytes = before - anonymous_bytes()
    experts_bytes = 4 * 2 * 4 * 3 * 512 * 1024  # float32, in two layers with four experts
    assert held_bytes < experts_bytes / 2
    assert model.config.num_layers == 2  # keeps the model alive until here


def anonymous_bytes() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

"""DeepSeek-V3 agrees with transformers; its answers do not depend on drafts, on the batch or on prefill chunks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import DeepseekV3ForCausalLM
from transformers.modeling_layers import MtpLayer
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer, DeepseekV3RMSNorm

from engine.config import EngineConfig
from engine.drafters.none import NoDrafter
from engine.errors import SpeculatorNotLoadable
from engine.generate import generate
from engine.load import load_engine, load_model
from engine.loop import Engine
from engine.models.deepseek import Deepseek
from engine.models.deepseek_mtp import MtpModule
from engine.models.reading import prefix_rows
from engine.request import Request, SamplingParams
from kernels.decoder import DecoderRows
from tests.engine.drafters import OracleDrafter
from tests.engine.test_parity import difference
from tests.tiny_model import make_tiny_model


def load(folder: Path, dtype: str = "float32") -> Deepseek:
    model = load_model(folder, dtype=dtype)
    assert isinstance(model, Deepseek)
    return model


def add_mtp_module(folder: Path, reference: DeepseekV3ForCausalLM) -> MtpLayer:
    """Adds a file with a random MTP module and DeepSeek's tensor names. Returns the module as one of transformers."""
    config = reference.config
    torch.manual_seed(1)
    module = MtpLayer(config, DeepseekV3DecoderLayer, DeepseekV3RMSNorm, config.num_hidden_layers)
    for parameter in module.parameters():
        parameter.data = torch.randn_like(parameter) * 0.1 + (1.0 if parameter.dim() == 1 else 0.0)
    for buffer in module.buffers():  # the bias that corrects the router's scores
        buffer.normal_()
    tensors: dict[str, Tensor] = {}
    base = f"model.layers.{config.num_hidden_layers}"
    for name, tensor in module.state_dict().items():
        renamed = "shared_head.norm.weight" if name == "post_norm.weight" else name.removeprefix("mtp_block.")
        if "experts." in renamed and "shared" not in renamed:
            for index, expert in enumerate(tensor):
                names, parts = (("gate", "up"), expert.chunk(2)) if "gate_up" in name else (("down",), (expert,))
                for part, weight in zip(names, parts, strict=True):
                    tensors[f"{base}.mlp.experts.{index}.{part}_proj.weight"] = weight
        else:
            tensors[f"{base}.{renamed}"] = tensor
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "mtp.safetensors")
    return module


YARN = {
    **{"rope_type": "yarn", "factor": 32.0, "rope_theta": 1e4, "original_max_position_embeddings": 32},
    **{"mscale": 1.0, "mscale_all_dim": 0.8, "beta_fast": 32, "beta_slow": 1},
}


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"q_lora_rank": None, "rope_interleave": False},
        {"n_group": 1, "topk_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 1.0},
        {"rope_parameters": YARN, "attention_bias": True},
    ],
    ids=["as published", "no query rank, half-split rotary layout", "one group", "yarn, biases"],
)
def test_logits_agree_with_transformers(tmp_path: Path, overrides: dict[str, Any]) -> None:
    assert difference(make_tiny_model(tmp_path, "deepseek_v3", **overrides)) <= 1e-4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_draft_trees_batching_and_prefill_chunks_do_not_change_answers(tmp_path: Path, dtype: str) -> None:
    model = load(make_tiny_model(tmp_path, "deepseek_v3"), dtype)
    params = SamplingParams(max_tokens=12, num_logprobs=2, temperature=0.8, seed=3, ignore_eos=True)
    requests = [Request(f"r{i}", tuple(range(i + 1, 5 * i + 4)), params) for i in range(5)]

    plain = [generate(Engine(model, NoDrafter(), EngineConfig(max_batch_size=1)), [r])[0] for r in requests]
    answers = {answer.request_id: answer.token_ids for answer in plain}
    oracle = OracleDrafter(answers, max_depth=4, error=0.3, tree=True, vocab_size=model.config.vocab_size)
    config = EngineConfig(max_batch_size=4, draft_budget=9, prefill_chunk=7)
    drafted = generate(Engine(model, oracle, config), requests)

    assert [(a.token_ids, a.logprobs) for a in drafted] == [(a.token_ids, a.logprobs) for a in plain]
    assert sum(a.speculation.num_accepted_draft_tokens for a in drafted) > 5


def test_tapped_hidden_states_equal_the_layer_outputs_of_transformers(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "deepseek_v3")
    token_ids = torch.arange(20)
    reference = DeepseekV3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    outputs: list[Tensor] = []
    for layer in reference.model.layers:
        layer.register_forward_hook(lambda _, __, out: outputs.append(out[0]))
    reference(token_ids.unsqueeze(0))

    taps = load(folder).hidden_states(token_ids, (2, 1)).taps  # tap n is the output of layer n - 1

    assert taps is not None
    assert (taps[:, 0] - outputs[1]).abs().max() <= 1e-4
    assert (taps[:, 1] - outputs[0]).abs().max() <= 1e-4


def test_float8_weights_are_multiplied_by_their_block_scales(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "deepseek_v3", hidden_size=192)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.gate_proj.weight"  # [384, 192]: the second block of 128 columns is incomplete
    factors = torch.rand(3, 2) + 0.5
    scales = factors.repeat_interleave(128, 0).repeat_interleave(128, 1)[:, :192]
    float8 = (tensors[name] / scales).to(torch.float8_e4m3fn)
    tensors[name] = float8.float() * scales
    save_file(tensors, folder / "model.safetensors")
    token_ids = torch.arange(40)
    expected = load(folder).hidden_states(token_ids).final

    save_file(tensors | {name: float8, f"{name}_scale_inv": factors}, folder / "model.safetensors")

    assert torch.equal(load(folder).hidden_states(token_ids).final, expected)


def test_the_mtp_module_agrees_with_transformers_on_target_states_and_on_its_own_output(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "deepseek_v3")
    reference = DeepseekV3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    reference_module = add_mtp_module(folder, reference)
    token_ids = torch.randint(0, 250, (51,), generator=torch.Generator().manual_seed(1))
    model = load(folder)
    module = MtpModule.load(model)
    hidden = model.hidden_states(token_ids[:-1]).final

    def actual_from(first: int, hidden: Tensor) -> Tensor:
        """Runs our module over the positions `first` .. 49, which use the first cache slots."""
        slots = torch.arange(50 - first)
        table = slots.int().view(1, -1)
        rows = DecoderRows(slots + first, slots, prefix_rows(table, slots))
        return module.forward(hidden, token_ids[first + 1 :], rows, module.make_keys(50))

    def expected_from(first: int, hidden: Tensor) -> Tensor:
        embedded = reference.model.embed_tokens(token_ids[first + 1 :]).unsqueeze(0)
        positions = torch.arange(first, 50).unsqueeze(0)
        rotary = reference.model.rotary_emb(embedded, positions)
        return reference_module(embedded, hidden.unsqueeze(0), rotary, None, positions, None)[0]  # type: ignore[no-any-return]

    once = actual_from(0, hidden)  # on the target's hidden states
    twice = actual_from(1, once[:-1])  # on the module's own outputs
    with torch.inference_mode():
        expected_once = expected_from(0, hidden)
        expected_twice = expected_from(1, expected_once[:-1])
        expected_logits = reference.lm_head(expected_twice)

    assert (once - expected_once).abs().max() <= 1e-4
    assert (twice - expected_twice).abs().max() <= 1e-4
    assert (module.logits(twice) - expected_logits).abs().max() <= 1e-4
    assert (once[1:] - twice).abs().max() > 0.1, "a module that ignores the hidden state would agree, too"


def test_loading_a_missing_mtp_module_raises_an_error(tmp_path: Path) -> None:
    model = load(make_tiny_model(tmp_path, "deepseek_v3"))
    with pytest.raises(SpeculatorNotLoadable, match=r"no multi-token .* holds no tensor model.layers.2.enorm.weight"):
        MtpModule.load(model)


@pytest.mark.parametrize("drafter", ["native_mtp", "native_mtp+suffix"])
def test_answers_with_the_models_own_mtp_module_equal_answers_without_drafts(tmp_path: Path, drafter: str) -> None:
    folder = make_tiny_model(tmp_path, "deepseek_v3")
    add_mtp_module(folder, DeepseekV3ForCausalLM.from_pretrained(folder, dtype=torch.float32))
    params = SamplingParams(max_tokens=12, num_logprobs=2, temperature=0.8, seed=3, ignore_eos=True)
    requests = [Request(f"r{i}", tuple(range(i + 1, 5 * i + 4)), params) for i in range(5)]
    plain = [generate(Engine(load(folder), NoDrafter(), EngineConfig(max_batch_size=1)), [r])[0] for r in requests]

    drafted = generate(load_engine(folder, drafter=drafter, config=EngineConfig(draft_budget=9)), requests)

    assert [(a.token_ids, a.logprobs) for a in drafted] == [(a.token_ids, a.logprobs) for a in plain]
    assert sum(a.speculation.num_draft_tokens for a in drafted) > 50


def test_native_mtp_is_refused_for_a_model_without_an_mtp_module(tmp_path: Path) -> None:
    with pytest.raises(SpeculatorNotLoadable, match="no multi-token prediction module of its own"):
        load_engine(make_tiny_model(tmp_path, "llama"), drafter="native_mtp")

"""Multi-token prediction: training and serving compute the papers' formulas, and memorized answers are accepted.

Shape letters: T positions, H hidden size, D head dimension, V vocabulary.
"""

import json
import math
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional
from transformers import DeepseekV3ForCausalLM

from engine.config import EngineConfig
from engine.draft import Draft
from engine.drafters.base import Drafter
from engine.drafters.mtp import MtpDrafter
from engine.drafters.mtp_layer import DensePrediction, PredictionModule
from engine.drafters.mtp_model import Mtp, MtpConfig
from engine.drafters.none import NoDrafter
from engine.errors import SpeculatorNotLoadable
from engine.generate import generate
from engine.load import load_drafter, load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.models.deepseek import Deepseek
from engine.models.deepseek_mtp import MtpModule
from engine.models.reading import prefix_rows
from engine.request import Completion, Request, SamplingParams
from engine.sequence import Sequence
from kernels.decoder import DecoderRows
from tests.engine.models.test_deepseek import add_mtp_module
from tests.engine.tiny_speculators import make_mtp, mtp_values
from tests.tiny_model import make_tiny_model

LAYERS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "llama": {"model_type": "llama"},
    "qwen2": {"model_type": "qwen2", "head_dim": None},
}
GREEDY = {"temperature": 0.0}
PROMPTS = tuple(tuple((7 * i + 5 * j) % 259 for j in range(9 + 12 * i)) for i in range(2))  # 21 tokens need two chunks


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(make_tiny_model(tmp_path_factory.mktemp("model"), "llama"), dtype="float32")


def mtp_drafter(module: Mtp, model: Model) -> MtpDrafter:
    return MtpDrafter(DensePrediction(module, model), model, max_depth=module.config.num_steps)


def answers(
    model: Model, drafter: Drafter, sampling: dict[str, Any], *, budget: int, max_tokens: int = 40
) -> list[Completion]:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **sampling)
    requests = [Request(f"r{i}", prompt, params) for i, prompt in enumerate(PROMPTS)]
    return generate(Engine(model, drafter, EngineConfig(draft_budget=budget, prefill_chunk=16)), requests)


def acceptance_length(completions: list[Completion]) -> float:
    """Returns the mean number of tokens per verify pass."""
    histograms = [completion.speculation.acceptance_histogram for completion in completions]
    accepted = sum(sum(length * passes for length, passes in enumerate(histogram)) for histogram in histograms)
    return 1.0 + accepted / sum(completion.speculation.num_spec_steps for completion in completions)


# Takes the hidden states [T, H] and the next tokens [T] of all positions; returns the module's outputs [T, H].
AllRows = Callable[[Tensor, Tensor], Tensor]


def chances_after(rows: AllRows, model: Model, text: Many[int], path: Many[int]) -> Tensor:
    """Returns the probabilities [V] of the token after `text` and the drafted `path`, with all rows recomputed."""
    hidden = model.hidden_states(torch.tensor(text[:-1])).final
    for length in range(len(path) + 1):
        outputs = rows(hidden, torch.tensor([*text[1:], *path[:length]]))
        hidden = torch.cat([hidden, outputs[-1:]])  # the drafted token's state is the module's own output
    return model.logits(outputs[-1:])[0].softmax(-1)


def all_rows(module: Mtp, hidden: Tensor, embeddings: Tensor) -> Tensor:
    """Returns the module's outputs [T, H], computed as in the paper with one attention matrix per head."""
    weights: dict[str, Tensor] = module.layer.state_dict()
    layer, T = module.config.layer, len(hidden)
    D, group = module.layer.self_attn.head_dim, layer.num_attention_heads // layer.num_key_value_heads

    def norm(x: Tensor, name: str) -> Tensor:
        scaled = x / (x.pow(2).mean(-1, keepdim=True) + layer.rms_norm_eps).sqrt()
        return scaled * weights[f"{name}.weight"] if f"{name}.weight" in weights else x

    def linear(x: Tensor, name: str) -> Tensor:
        return torch.as_tensor(x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", torch.tensor(0.0)))

    def rotated(x: Tensor) -> Tensor:
        pairs = torch.complex(x[:, : D // 2], x[:, D // 2 :])
        angles = torch.arange(T).unsqueeze(1) * 500.0 ** (-torch.arange(D // 2) * 2.0 / D)
        rotated_pairs = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([rotated_pairs.real, rotated_pairs.imag], dim=1)

    inputs = torch.cat([norm(embeddings, "token_layernorm"), norm(hidden, "hidden_layernorm")], dim=1)
    x = linear(inputs, "input_proj")
    normed = norm(x, "input_layernorm")
    heads = []
    for head in range(layer.num_attention_heads):
        q_columns, kv_columns = slice(head * D, (head + 1) * D), slice(head // group * D, (head // group + 1) * D)
        query = rotated(norm(linear(normed, "self_attn.q_proj")[:, q_columns], "self_attn.q_norm"))
        keys = rotated(norm(linear(normed, "self_attn.k_proj")[:, kv_columns], "self_attn.k_norm"))
        scores = (query @ keys.T / D**0.5).masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)
        heads.append(scores.softmax(-1) @ linear(normed, "self_attn.v_proj")[:, kv_columns])
    x = x + linear(torch.cat(heads, dim=1), "self_attn.o_proj")
    normed = norm(x, "post_attention_layernorm")
    gate = linear(normed, "mlp.gate_proj")
    x = x + linear(gate * gate.sigmoid() * linear(normed, "mlp.up_proj"), "mlp.down_proj")
    return norm(x, "final_layernorm")


class ComparingMtpDrafter(MtpDrafter):
    """Checks that the survival of every node is the product of the probabilities along its path."""

    def __init__(self, module: PredictionModule, model: Model, rows: AllRows) -> None:
        super().__init__(module, model, max_depth=4)
        self.model, self.rows = model, rows
        self.num_compared = 0
        self.depths: list[int] = []

    @torch.no_grad()
    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        drafts = super().propose(sequences, budget)
        for sequence, draft in zip(sequences, drafts, strict=True):
            chances = {-1: 1.0}
            for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
                path = [draft.tokens[ancestor] for ancestor in draft.path(node)[:-1]]
                after = chances_after(self.rows, self.model, sequence.tokens, path)
                chances[node] = chances[parent] * float(after[token])
                assert math.isclose(draft.survival[node], chances[node], rel_tol=1e-3)
            self.depths += draft.depths()
            self.num_compared += 1
        return drafts


@pytest.mark.parametrize("changes", LAYERS.values(), ids=LAYERS.keys())
@torch.no_grad()
def test_training_computes_the_formulas_of_the_papers(changes: dict[str, Any]) -> None:
    torch.manual_seed(1)
    module = make_mtp(**changes)
    hidden, embeddings = torch.randn(2, 9, 64)
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    trained = module(hidden, embeddings, torch.arange(9), causal)
    torch.testing.assert_close(trained, all_rows(module, hidden, embeddings), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("changes", LAYERS.values(), ids=LAYERS.keys())
def test_the_survival_of_every_node_is_the_probability_of_the_path_to_it(model: Model, changes: dict[str, Any]) -> None:
    module = make_mtp(**changes)
    learn(module, model, greedy := answers(model, NoDrafter(), GREEDY, budget=9, max_tokens=16), num_steps=20)

    def rows(hidden: Tensor, tokens: Tensor) -> Tensor:
        return all_rows(module, hidden, model.weights.embedding[tokens])

    drafter = ComparingMtpDrafter(DensePrediction(module, model), model, rows)

    drafted = answers(model, drafter, GREEDY, budget=9, max_tokens=16)

    assert [c.token_ids for c in drafted] == [c.token_ids for c in greedy]
    assert drafter.num_compared == sum(c.speculation.num_spec_steps for c in drafted)
    assert drafter.depths.count(3) >= 5
    assert acceptance_length(drafted) > 1.3  # drafts after accepted nodes were compared, too


def test_the_survival_of_every_node_is_the_probability_of_its_path_with_the_module_of_deepseek(
    tmp_path: Path,
) -> None:
    folder = make_tiny_model(tmp_path, "deepseek_v3")
    add_mtp_module(folder, DeepseekV3ForCausalLM.from_pretrained(folder, dtype=torch.float32))
    model = load_model(folder, dtype="float32")
    assert isinstance(model, Deepseek)
    assert isinstance(MtpDrafter.load(None, model), MtpDrafter)
    module = MtpModule.load(model)
    module.weights.final_norm.mul_(8.0)  # sharper probabilities give deeper trees

    def rows(hidden: Tensor, tokens: Tensor) -> Tensor:
        positions = torch.arange(len(tokens))
        decoder_rows = DecoderRows(positions, positions, prefix_rows(positions.int().view(1, -1), positions))
        return module.forward(hidden, tokens, decoder_rows, module.make_keys(len(tokens)))

    drafter = ComparingMtpDrafter(module, model, rows)
    plain = answers(model, NoDrafter(), GREEDY, budget=9, max_tokens=12)

    drafted = answers(model, drafter, GREEDY, budget=9, max_tokens=12)

    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    assert drafter.num_compared == sum(c.speculation.num_spec_steps for c in drafted)
    assert drafter.depths.count(2) >= 5


def test_drafts_of_memorized_answers_are_accepted(model: Model) -> None:
    """Uses sampled answers: greedy answers of a random model repeat themselves, which would hide off-by-one errors."""
    sampling = {"temperature": 1.0, "seed": 1}
    plain = answers(model, NoDrafter(), sampling, budget=12)
    module = make_mtp()
    learn(module, model, plain, num_steps=60)

    drafted = answers(model, mtp_drafter(module, model), sampling, budget=12)

    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    assert acceptance_length(drafted) >= 0.8 * (module.config.num_steps + 1)  # the last draft is cut short


def learn(module: Mtp, model: Model, completions: list[Completion], *, num_steps: int) -> None:
    """Trains the module: at step k, the row of position t reads token t + k + 1 and must predict token t + k + 2."""
    depth = module.config.num_steps
    optimizer = torch.optim.Adam(module.parameters(), lr=2e-3)
    texts = [torch.tensor(prompt + c.token_ids) for prompt, c in zip(PROMPTS, completions, strict=True)]
    # Tensors that were created in inference mode cannot be used in training, but their clones can.
    states = [model.hidden_states(text).final.clone() for text in texts]
    for _ in range(num_steps):
        losses = []
        for text, state, prompt in zip(texts, states, PROMPTS, strict=True):
            T = len(text) - depth - 1
            positions, hidden = torch.arange(T), state[:T]
            visible = positions <= positions.unsqueeze(1)
            for step in range(depth):
                hidden = module(hidden, model.weights.embedding[text[step + 1 : step + 1 + T]], positions, visible)
                logits = hidden[len(prompt) - 2 :] @ model.lm_head.T
                losses.append(functional.cross_entropy(logits, text[len(prompt) + step : step + 2 + T]))
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()


@pytest.mark.parametrize("changes", LAYERS.values(), ids=LAYERS.keys())
def test_a_module_is_read_back_from_its_files_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    values = mtp_values(**changes)
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in make_mtp(**changes).state_dict().items()}
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    save_file(tensors, first / "model.safetensors")
    (first / "config.json").write_text(json.dumps(values))

    loaded = Mtp.load(first)
    loaded.save(second)

    saved = load_file(second / "model.safetensors")
    assert saved.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert saved[name].dtype == tensor.dtype, name
        assert torch.equal(saved[name], tensor), name
    written = json.loads((second / "config.json").read_text())
    assert {key: written[key] for key in values} == values


def test_an_mtp_module_that_does_not_fit_the_model_is_refused(model: Model, tmp_path: Path) -> None:
    for values in ({}, mtp_values() | {"num_nextn_predict_layers": 2}, mtp_values(model_type="mistral")):
        with pytest.raises(SpeculatorNotLoadable):
            MtpConfig.from_values(values)
    with pytest.raises(SpeculatorNotLoadable):
        DensePrediction(make_mtp(hidden_size=32), model)
    with pytest.raises(SpeculatorNotLoadable):
        MtpDrafter.load(None, model)
    with pytest.raises(SpeculatorNotLoadable):
        MtpDrafter.load(tmp_path, model)


@pytest.mark.parametrize(("steps", "refused"), [(64, False), (65, True)])
def test_an_mtp_module_with_more_than_64_steps_is_refused(
    model: Model, tmp_path: Path, steps: int, refused: bool
) -> None:
    module = make_mtp()
    module.config = replace(module.config, num_steps=steps)
    module.save(tmp_path)
    if refused:
        with pytest.raises(SpeculatorNotLoadable, match="may draft at most 64 tokens ahead, got 65"):
            load_drafter("suffix+mtp", model, tmp_path)
    else:
        assert load_drafter("suffix+mtp", model, tmp_path).max_depth == 64

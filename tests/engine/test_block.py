"""The block drafter computes the formulas of its papers in training and serving, and reads other trainers' files.

The papers are DFlash and DSpark.

Shape letters: S positions before the anchor, T tap layers, B rows of a block, H hidden size, D head dimension. The
anchor is the last token of the text; the block drafts the tokens after the anchor.
"""

import itertools
import json
from collections.abc import Sequence as Many
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from engine.cache.kv_cache import KVCache
from engine.config import EngineConfig
from engine.draft import Draft
from engine.drafters.base import Drafter
from engine.drafters.block import BlockDrafter
from engine.drafters.block_config import BlockConfig, LayerAttention
from engine.drafters.block_heads import Anchor, BlockHeads
from engine.drafters.block_layers import BlockLayers
from engine.drafters.block_model import BlockModel
from engine.drafters.none import NoDrafter
from engine.errors import SpeculatorNotLoadable
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.models.dense import Decoder
from engine.request import Completion, Request, SamplingParams, SpeculationStats
from engine.sequence import Sequence
from tests.engine.tiny_speculators import (
    block_values,
    make_block,
    make_memoryless,
    next_token_logits,
    transformer_values,
)
from tests.tiny_model import make_tiny_model

SLIDING = {"sliding_window": 3, "use_sliding_window": True}
MIXED = transformer_values(**SLIDING, layer_types=["full_attention", "sliding_attention", "sliding_attention"])
VARIANTS: dict[str, dict[str, Any]] = {
    "dflash": {},
    "causal": {"transformer": transformer_values(is_causal=True)},
    "biases": {"transformer": transformer_values(attention_bias=True), "block_size": 2},
    "sliding": {"transformer": MIXED},
    "sliding, not causal": {"transformer": MIXED, "sliding_window_non_causal": True},
}
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
DSPARK: dict[str, Any] = {"speculators_model_type": "dspark", "markov_rank": 16}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return dense_model(tmp_path_factory.mktemp("model"))


def dense_model(folder: Path) -> Decoder:
    model = load_model(make_tiny_model(folder, "llama"), dtype="float32")
    assert isinstance(model, Decoder)
    return model


def reference_block(block: BlockModel, taps: Tensor, embeddings: Tensor) -> Tensor:
    """Returns the hidden states [B, H] of the block after a text, computed as in the papers, one head at a time.

    taps: [S, T, H]. Tapped hidden states of the positions before the anchor.
    embeddings: [B, H]. Embeddings of the block's tokens.
    """
    weights: dict[str, Tensor] = block.state_dict()
    config = block.config
    S, B, D = taps.shape[0], config.block_size, config.head_dim

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", torch.tensor(0.0))

    def rotated(x: Tensor, first: int) -> Tensor:
        """Applies rotary embeddings to rows at the positions first, first + 1, ..."""
        pairs = torch.complex(x[:, : D // 2], x[:, D // 2 :])
        angles = torch.arange(first, first + len(x)).unsqueeze(1) * 500.0 ** (-torch.arange(D // 2) * 2.0 / D)
        rotated_pairs = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([rotated_pairs.real, rotated_pairs.imag], dim=1)

    context = norm(linear(taps.flatten(1), "fc"), "hidden_norm")
    x = embeddings
    for index, attention in enumerate(config.attention):
        layer = f"layers.{index}"
        normed = norm(x, f"{layer}.input_layernorm")
        all_rows = torch.cat([context, normed])  # [S + B, H]
        heads = []
        for head in range(config.num_heads):
            kv_head = head // (config.num_heads // config.num_kv_heads)
            q_columns, kv_columns = slice(head * D, (head + 1) * D), slice(kv_head * D, (kv_head + 1) * D)
            query = rotated(
                norm(linear(normed, f"{layer}.self_attn.q_proj")[:, q_columns], f"{layer}.self_attn.q_norm"), S
            )
            keys = rotated(
                norm(linear(all_rows, f"{layer}.self_attn.k_proj")[:, kv_columns], f"{layer}.self_attn.k_norm"), 0
            )
            scores = query @ keys.T / D**0.5  # [B, S + B]
            for row, key in itertools.product(range(B), range(S + B)):
                too_old = attention.window is not None and key < S - attention.window
                if too_old or (attention.causal and key > S + row):
                    scores[row, key] = -torch.inf
            heads.append(scores.softmax(-1) @ linear(all_rows, f"{layer}.self_attn.v_proj")[:, kv_columns])
        x = x + linear(torch.cat(heads, dim=1), f"{layer}.self_attn.o_proj")
        normed = norm(x, f"{layer}.post_attention_layernorm")
        gate = linear(normed, f"{layer}.mlp.gate_proj")
        x = x + linear(gate * gate.sigmoid() * linear(normed, f"{layer}.mlp.up_proj"), f"{layer}.mlp.down_proj")
    return norm(x, "norm")


def taps_and_blocks(block: BlockModel, *lengths: int) -> tuple[list[Tensor], Tensor]:
    """Returns random taps of texts of these lengths, and the embeddings of the block after each text."""
    torch.manual_seed(1)
    taps = [torch.randn(length, len(block.config.tap_layers), block.config.hidden_size) for length in lengths]
    return taps, torch.randn(len(lengths), block.config.block_size, block.config.hidden_size)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
@torch.no_grad()
def test_training_and_serving_compute_the_formulas_of_the_papers(model: Decoder, changes: dict[str, Any]) -> None:
    block = make_block(**changes)
    lengths = (11, 1, 4)
    taps, embeddings = taps_and_blocks(block, *lengths)
    expected = torch.stack([reference_block(block, t, e) for t, e in zip(taps, embeddings, strict=True)])

    positions = torch.cat([torch.arange(length) for length in lengths])
    text_of_row = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))
    visible = text_of_row == torch.arange(3).view(3, 1)
    trained = block(torch.cat(taps), positions, embeddings, torch.tensor(lengths), visible)

    layers = BlockLayers(block, model)
    cache = KVCache(model.config, num_slots=40, max_sequences=5, max_seq_len=16, dtype=model.dtype, device=model.device)
    slots = torch.randperm(40)[: sum(lengths)]
    sequences = []
    for row, text_slots in zip((4, 0, 2), slots.split(lengths), strict=True):
        tokens = [1] * (len(text_slots) + 1)
        sequence = Sequence(Request("r", (1,), GREEDY), tokens, None, SpeculationStats(), table_row=row)
        sequence.slots, sequence.num_tabled = text_slots.tolist(), len(text_slots) // 2  # half are in the slot table
        cache.slot_tables[row, : sequence.num_tabled] = text_slots[: sequence.num_tabled].int()
        sequences.append(sequence)
    layers.prepare(cache)
    layers.write_contexts(torch.cat(taps), positions, slots)
    served = layers.blocks(embeddings.clone(), sequences)

    torch.testing.assert_close(trained, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(served, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("heads", [{}, DSPARK, {**DSPARK, "markov_head_type": "gated"}])
def test_a_module_is_read_back_from_its_files_bit_for_bit(tmp_path: Path, heads: dict[str, Any], reduced: bool) -> None:
    values = block_values(**heads, draft_vocab_size=100 if reduced else 259)
    block = make_block(**values)
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in block.state_dict().items()}
    tensors["lm_head.weight"] = torch.randn(values["draft_vocab_size"], 64).to(torch.bfloat16)
    tensors["embed_tokens.weight"] = torch.randn(259, 64).to(torch.bfloat16)
    if reduced:
        in_draft = (torch.arange(259) % 2 == 1) & (torch.arange(259) < 200)  # 100 of the target's 259 tokens
        tensors |= {"t2d": in_draft, "d2t": in_draft.nonzero().flatten() - torch.arange(100)}  # d2t: target - draft id
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    save_file(tensors, first / "model.safetensors")
    (first / "config.json").write_text(json.dumps(values))

    loaded = BlockModel.load(first)
    loaded.save(second)

    saved = load_file(second / "model.safetensors")
    assert saved.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert saved[name].dtype == tensor.dtype, name
        assert torch.equal(saved[name], tensor), name
    written = json.loads((second / "config.json").read_text())
    assert {key: written[key] for key in values} == values
    assert BlockModel.load(second).config == loaded.config


def specforge_values(**changes: Any) -> dict[str, Any]:
    """Returns config.json of the DFlash drafter of `block_values`, in the format that SpecForge writes."""
    section = {"mask_token_id": 7, "target_layer_ids": [0, 1], **changes}
    return transformer_values(architectures=["DFlashDraftModel"], block_size=5, dflash_config=section)


def deepspec_values() -> dict[str, Any]:
    """Returns config.json of a DSpark drafter in the format that DeepSpec writes."""
    values = {"target_layer_ids": [0, 1], "mask_token_id": 7, "block_size": 5, "num_anchors": 512, "markov_rank": 16}
    heads = {"markov_head_type": "gated", "enable_confidence_head": True, "confidence_head_with_markov": True}
    return transformer_values(architectures=["Qwen3DSparkModel"], **values, **heads)


def test_files_of_other_trainers_are_read_as_the_same_drafter() -> None:
    speculators = BlockConfig.from_values(block_values())
    dflash = BlockConfig.from_values(specforge_values())
    jetspec = BlockConfig.from_values(specforge_values(causal_head=True))
    heads = {"projector_type": "dspark", "markov_rank": 8, "confidence_head_alpha": 1.0}
    dspark = BlockConfig.from_values(specforge_values(**heads))
    deepspec = BlockConfig.from_values(deepspec_values())

    assert dflash == speculators
    assert dflash.tap_layers == (1, 2)  # the inputs of layers 1 and 2 are the outputs of 0 and 1
    assert (dflash.max_depth, dflash.sample_from_anchor) == (4, False)
    assert jetspec.attention == (LayerAttention(causal=True),) * 3
    assert (dspark.max_depth, dspark.markov_rank, dspark.confidence) == (5, 8, True)
    assert (dspark.confidence_with_markov, deepspec.confidence_with_markov) == (False, True)
    assert (deepspec.max_depth, deepspec.markov_rank, deepspec.markov_type) == (5, 16, "gated")
    for config in (jetspec, dspark, deepspec):
        assert BlockConfig.from_values(config.to_values()) == config


def test_a_config_of_another_drafter_or_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    for values in (
        {},
        block_values(speculators_model_type="eagle3"),
        block_values(speculators_model_type="dspark", markov_head_type="rnn"),
        block_values(mask_token_id=259),
        specforge_values(projector_type="domino"),
    ):
        with pytest.raises(SpeculatorNotLoadable):
            BlockConfig.from_values(values)
    block = make_block()
    block.save(tmp_path)
    del (tensors := load_file(tmp_path / "model.safetensors"))["layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(SpeculatorNotLoadable):
        BlockModel.load(tmp_path)


def test_a_drafter_for_another_model_is_refused(model: Decoder) -> None:
    for changes in (
        {"transformer": transformer_values(hidden_size=32)},
        {"transformer": transformer_values(vocab_size=260)},
        {"aux_hidden_state_layer_ids": [3]},
    ):
        with pytest.raises(SpeculatorNotLoadable):
            BlockDrafter(make_block(**changes), model)


PROMPTS = tuple(tuple((7 * i + 5 * j) % 259 for j in range(9 + 12 * i)) for i in range(2))  # 21 tokens need two chunks


def answers(model: Decoder, drafter: Drafter, sampling: dict[str, Any], *, budget: int) -> list[Completion]:
    params = SamplingParams(max_tokens=40, ignore_eos=True, **sampling)
    requests = [Request(f"r{i}", prompt, params) for i, prompt in enumerate(PROMPTS)]
    return generate(Engine(model, drafter, EngineConfig(draft_budget=budget, prefill_chunk=16)), requests)


def acceptance_length(completions: list[Completion]) -> float:
    """Returns the mean number of tokens per verify pass."""
    histograms = [completion.speculation.acceptance_histogram for completion in completions]
    accepted = sum(sum(length * passes for length, passes in enumerate(histogram)) for histogram in histograms)
    return 1.0 + accepted / sum(completion.speculation.num_spec_steps for completion in completions)


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 3}])
@pytest.mark.parametrize("sample_from_anchor", [False, True])
def test_drafts_of_a_markov_head_with_the_same_distribution_as_the_target_are_always_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any], sample_from_anchor: bool
) -> None:
    """The target would reject every draft if the previous token, the depth or the noise were off by one position."""
    model = dense_model(tmp_path)
    make_memoryless(model)
    plain = answers(model, NoDrafter(), sampling, budget=12)
    vocab = torch.tensor(sorted({token for c in plain for token in c.token_ids}))
    monkeypatch.setattr("engine.drafters.block_heads.PAIRED", len(vocab))
    sizes = {"markov_rank": 259, "draft_vocab_size": len(vocab)}  # rank 259: one-hot vectors of the tokens
    block = make_block(**DSPARK | sizes, enable_confidence_head=False, sample_from_anchor=sample_from_anchor)
    block.draft_vocab.copy_(vocab)
    assert block.markov_head is not None
    with torch.no_grad():
        block.norm.weight.zero_()  # the logits consist only of the Markov head's correction
        block.markov_head.markov_w1.weight.copy_(torch.eye(259))
        block.markov_head.markov_w2.weight.copy_(next_token_logits(model).T[vocab])

    drafted = answers(model, BlockDrafter(block, model), sampling, budget=12)

    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    assert acceptance_length(drafted) >= block.config.max_depth + 0.5  # the last draft is cut at the end of the answer


@pytest.mark.parametrize("with_confidence", [False, True])
@pytest.mark.parametrize("markov_type", ["vanilla", "gated"])
@torch.no_grad()
def test_the_survival_of_a_node_follows_from_the_markov_and_confidence_heads(
    model: Decoder, monkeypatch: pytest.MonkeyPatch, markov_type: str, with_confidence: bool
) -> None:
    monkeypatch.setattr("engine.drafters.block_heads.PAIRED", 259)
    block = make_block(**DSPARK, markov_head_type=markov_type, enable_confidence_head=with_confidence)
    hidden = 4.0 * torch.randn(1, 4, 64, generator=torch.Generator().manual_seed(2))

    (draft,) = BlockHeads(block, model).drafts(hidden, [Anchor(42, 9, GREEDY)], 30)

    assert len(draft) == 30
    chances = {-1: 1.0}
    for node, (parent, depth) in enumerate(zip(draft.parents, draft.depths(), strict=True)):
        previous = torch.tensor(draft.tokens[parent] if parent >= 0 else 42)
        p = block.logits(hidden[0, depth - 1], model.lm_head, previous).softmax(-1)
        chance = p[draft.tokens[node]]
        if with_confidence:
            confidence = block.confidence(hidden[0, depth - 1], previous).sigmoid()
            share = chance / (1 - p.max())  # this token's share of the probability that the best token is wrong
            chance = confidence if chance == p.max() else torch.minimum(confidence, 1 - confidence) * share
        chances[node] = chances[parent] * float(chance)
        assert draft.survival[node] == pytest.approx(chances[node], rel=1e-3)
    assert max(draft.depths()) >= 3


def learn(block: BlockModel, model: Decoder, completions: list[Completion]) -> None:
    """Trains the block on completions: row `first_row + d` must predict the token d + 1 positions after the anchor."""
    texts = [torch.tensor(prompt + c.token_ids) for prompt, c in zip(PROMPTS, completions, strict=True)]
    taps = [model.hidden_states(text, block.config.tap_layers).taps for text in texts]
    # Tensors that were created in inference mode cannot be used in training, but their clones can.
    taps = [tap.clone() for tap in taps if tap is not None]
    first, depths = block.config.first_row, block.config.max_depth
    optimizer = torch.optim.Adam(block.parameters(), lr=2e-3)
    for _ in range(60):
        losses = []
        for text, tap, prompt in zip(texts, taps, PROMPTS, strict=True):
            positions = torch.arange(len(text))
            anchors = positions[len(prompt) : -1]
            tokens = torch.full((len(anchors), block.config.block_size), block.config.mask_token_id)
            tokens[:, 0] = text[anchors]
            visible = positions < anchors.unsqueeze(1)
            hidden = block(tap, positions, model.weights.embedding[tokens], anchors, visible)
            target_positions = anchors.unsqueeze(1) + torch.arange(depths + 1)  # [anchors, depths + 1]
            padded = functional.pad(text, (0, depths), value=-1)  # the loss ignores -1, which stands beyond the text
            targets = padded[target_positions]
            logits = block.logits(hidden[:, first : first + depths], model.lm_head, targets[:, :-1].clamp(min=0))
            losses.append(functional.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten(), ignore_index=-1))
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()


CAUSAL = {"transformer": transformer_values(is_causal=True), "sample_from_anchor": True}


class ComparingBlockDrafter(BlockDrafter):
    """Checks that every served block equals the block that training computes for the same text."""

    def __init__(self, block: BlockModel, model: Decoder) -> None:
        super().__init__(block, model)
        self.block, self.model = block, model
        self.num_compared = 0

    @torch.no_grad()
    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        embeddings = self._embeddings([Anchor(s.tokens[-1], 0, GREEDY) for s in sequences])
        served = self.layers.blocks(embeddings.clone(), sequences)
        for sequence, embedded, served_block in zip(sequences, embeddings, served, strict=True):
            text = torch.tensor(sequence.tokens[:-1])
            taps = self.model.hidden_states(text, self.block.config.tap_layers).taps
            assert taps is not None
            anchor, all_visible = torch.tensor([len(text)]), torch.ones(1, len(text), dtype=torch.bool)
            trained = self.block(taps, torch.arange(len(text)), embedded.unsqueeze(0), anchor, all_visible)
            torch.testing.assert_close(served_block, trained[0], rtol=1e-3, atol=1e-3)
            self.num_compared += 1
        return super().propose(sequences, budget)


@pytest.mark.parametrize("changes", [{}, CAUSAL])
def test_drafts_of_memorized_answers_are_accepted(model: Decoder, changes: dict[str, Any]) -> None:
    """Uses sampled answers: greedy answers of a random model repeat themselves, which would hide off-by-one errors."""
    sampling = {"temperature": 1.0, "seed": 1}
    plain = answers(model, NoDrafter(), sampling, budget=12)
    block = make_block(**changes)
    learn(block, model, plain)
    drafter = ComparingBlockDrafter(block, model)

    drafted = answers(model, drafter, sampling, budget=12)

    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    assert acceptance_length(drafted) >= 0.8 * (block.config.max_depth + 1)  # the last draft is cut short
    assert drafter.num_compared == sum(c.speculation.num_spec_steps for c in drafted)

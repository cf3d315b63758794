"""EAGLE-3 reads and writes its file layouts, agrees with a reference, changes no answer, and drafts likely trees."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.cache.kv_cache import KVCache
from engine.config import EngineConfig
from engine.draft import Draft
from engine.drafters.base import Kept, Pass
from engine.drafters.eagle3 import Eagle3Drafter
from engine.drafters.eagle3_config import Eagle3Config, Layout
from engine.drafters.eagle3_module import WEIGHTS_FILE, Eagle3
from engine.drafters.growing_tree import GrowingTree
from engine.drafters.none import NoDrafter
from engine.errors import SpeculatorNotLoadable
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.request import Request, SamplingParams, SpeculationStats
from engine.sequence import Sequence
from tests.engine.eagle3_reference import make_config, make_module, reference_chain
from tests.tiny_model import make_tiny_model

OPTIONS: dict[str, dict[str, Any]] = {
    "EAGLE-3": {},
    "EAGLE-3.1": {"fc_norm": True, "norm_output": True},
    "normed first": {"norm_before_residual": True, "norm_before_fc": True},
}


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(make_tiny_model(tmp_path_factory.mktemp("model"), num_layers=4), dtype=request.param)


# Files


@pytest.mark.parametrize("layout", ["speculators", "specforge"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_loaded_checkpoint_is_saved_with_the_same_bytes(
    tmp_path: Path, layout: Layout, options: dict[str, Any]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    make_module(make_config(**options), own_embedding=layout == "speculators").save(
        first, base_model="target", layout=layout
    )
    Eagle3.load(first).save(second, base_model="target", layout=layout)
    for name in (WEIGHTS_FILE, "config.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_tensor_names_and_shapes_follow_the_speculators_layout(tmp_path: Path) -> None:
    make_module(make_config(), own_embedding=True).save(tmp_path, base_model="target")
    shapes = {name: list(tensor.shape) for name, tensor in load_file(tmp_path / WEIGHTS_FILE).items()}
    attention, mlp = "layers.0.self_attn", "layers.0.mlp"
    assert shapes == {
        "embed_tokens.weight": [259, 64],
        "fc.weight": [64, 192],
        f"{attention}.q_proj.weight": [64, 128],
        f"{attention}.k_proj.weight": [32, 128],
        f"{attention}.v_proj.weight": [32, 128],
        f"{attention}.o_proj.weight": [64, 64],
        f"{mlp}.gate_proj.weight": [96, 64],
        f"{mlp}.up_proj.weight": [96, 64],
        f"{mlp}.down_proj.weight": [64, 96],
        "layers.0.input_layernorm.weight": [64],
        "layers.0.hidden_norm.weight": [64],
        "layers.0.post_attention_layernorm.weight": [64],
        "norm.weight": [64],
        "lm_head.weight": [100, 64],
        "d2t": [100],
        "t2d": [259],
    }
    values = json.loads((tmp_path / "config.json").read_text())
    assert values["speculators_model_type"] == "eagle3"
    assert values["eagle_aux_hidden_state_layer_ids"] == [1, 2, 4]


def test_both_layouts_store_the_same_drafter(tmp_path: Path) -> None:
    module = make_module(make_config(fc_norm=True))
    layouts: tuple[Layout, ...] = ("speculators", "specforge")
    for layout in layouts:
        (tmp_path / layout).mkdir()
        module.save(tmp_path / layout, base_model="target", layout=layout)
    assert "midlayer.self_attn.q_proj.weight" in load_file(tmp_path / "specforge" / WEIGHTS_FILE)
    first, second = (Eagle3.load(tmp_path / layout) for layout in layouts)
    assert first.config == second.config
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


def test_the_specforge_layout_numbers_a_tap_by_the_layer_whose_output_it_is() -> None:
    values = make_config().to_values("specforge", base_model="", depth=5)
    assert values["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 1, 3]  # SGLang adds one to each
    assert Eagle3Config.from_values(values).tap_layers == (1, 2, 4)


def test_tap_layers_default_to_an_early_a_middle_and_a_late_layer() -> None:
    values = make_config(tap_layers=None).to_values("specforge", base_model="", depth=5)
    assert "eagle_config" not in values
    assert Eagle3Config.from_values(values).taps_of(32) == (2, 16, 29)


@pytest.mark.parametrize("damage", ["no weights", "another shape", "two layers"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, damage: str) -> None:
    make_module(make_config()).save(tmp_path, base_model="target")
    weights, config = tmp_path / WEIGHTS_FILE, tmp_path / "config.json"
    if damage == "no weights":
        weights.unlink()
    elif damage == "another shape":
        save_file(load_file(weights) | {"fc.weight": torch.zeros(64, 64)}, weights)
    else:
        values = json.loads(config.read_text())
        values["transformer_layer_config"]["num_hidden_layers"] = 2
        config.write_text(json.dumps(values))
    with pytest.raises(SpeculatorNotLoadable, match="holds no EAGLE-3 drafter"):
        Eagle3.load(tmp_path)


def test_a_drafter_of_another_model_is_refused(model: Model) -> None:
    with pytest.raises(SpeculatorNotLoadable, match="eagle3 is for hidden size 64 and a vocabulary of 300 tokens"):
        Eagle3Drafter(make_module(make_config(vocab_size=300)), model)
    with pytest.raises(SpeculatorNotLoadable, match=r"but the model has 0\.\.4"):
        Eagle3Drafter(make_module(make_config(tap_layers=(1, 2, 5))), model)


# Arithmetic


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_the_served_drafter_agrees_with_the_reference(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any]
) -> None:
    """The likely chains of the reference are paths of the served drafter's tree, with the same probabilities.

    The served drafter observes the text in several passes.
    """
    target = load_model(make_tiny_model(tmp_path_factory.mktemp("model"), num_layers=4), dtype="float32")
    module = make_module(make_config(**options))
    with torch.no_grad():
        module.lm_head.weight *= 3.0  # sharper probabilities give deeper chains
    drafter = Eagle3Drafter(module, target)
    generator = random.Random(1)
    tokens = [generator.randrange(259) for _ in range(40)]
    sizes = {"num_slots": 64, "max_sequences": 2, "max_seq_len": 64}
    cache = KVCache(target.config, **sizes, dtype=target.dtype, device=target.device)
    drafter.prepare(cache)
    slots = generator.sample(range(64), 40)
    cache.write_tables([1] * 40, range(40), slots)
    request = Request("r", tuple(tokens[:20]), SamplingParams(max_tokens=20, temperature=0.0))
    sequence = Sequence(request, tokens[:20], None, SpeculationStats(), table_row=1, slots=slots)
    states = target.hidden_states(torch.tensor(tokens), drafter.tap_layers)
    assert states.taps is not None
    sequence.num_tabled = 28  # the slots of the last pass are not in the slot table yet
    cache.slot_tables[1, 28:] = 0
    num_observed = 0
    for end in (9, 20, 24, 31):  # two chunks of the prompt, then accepted tokens
        # During prefill, the sequence has the whole prompt; later, the accepted tokens and one pending token.
        sequence.tokens = tokens[: 20 if end < 20 else end + 1]
        kept = Kept(sequence, num_observed, tuple(range(end - num_observed)))
        drafter.observe(Pass(states.final[num_observed:end], states.taps[num_observed:end], (kept,)))
        num_observed = end
    (draft,) = drafter.propose([sequence], 64)
    edges = zip(draft.parents, draft.tokens, strict=True)
    children = {(parent, token): node for node, (parent, token) in enumerate(edges)}
    for ranks in ([0, 0, 0], [1, 0]):
        with torch.no_grad():
            expected = reference_chain(module, target, tokens[:32], ranks)
        node = -1
        for token, probability in expected:
            node = children[node, token]
            assert draft.survival[node] == pytest.approx(probability, rel=1e-3)


# In the engine


def make_requests(*, temperature: float, count: int = 8) -> list[Request]:
    generator = random.Random(0)
    prompts = [[generator.randrange(259) for _ in range(generator.randint(1, 40))] for _ in range(count)]
    sampling = SamplingParams(max_tokens=30, temperature=temperature, top_p=0.9, seed=11)
    return [Request(f"r{index}", tuple(prompt), sampling) for index, prompt in enumerate(prompts)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("batch_size", [1, 5])
def test_answers_equal_those_of_plain_decoding(model: Model, temperature: float, batch_size: int) -> None:
    config = EngineConfig(max_batch_size=batch_size, draft_budget=12, prefill_chunk=16)
    requests = make_requests(temperature=temperature)
    plain = generate(Engine(model, NoDrafter(), config), requests)
    drafter = Eagle3Drafter(make_module(make_config()), model)
    drafted = generate(Engine(model, drafter, config), requests)
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    assert sum(c.speculation.num_draft_tokens for c in drafted) > 0


@pytest.mark.parametrize("options", [OPTIONS["EAGLE-3"], OPTIONS["EAGLE-3.1"]], ids=["EAGLE-3", "EAGLE-3.1"])
@pytest.mark.parametrize("budget", [3, 12, 40])
def test_the_compiled_function_grows_the_same_trees_as_the_single_operations(
    tmp_path: Path, options: dict[str, Any], budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_model(make_tiny_model(tmp_path, num_layers=4), dtype="float32")
    module = make_module(make_config(**options))
    with torch.no_grad():
        module.lm_head.weight *= 3.0  # sharper probabilities give deeper chains
    drafter = Eagle3Drafter(module, target)
    grower, propose = drafter._grower, drafter.propose
    assert grower is not None
    pairs: list[tuple[Draft, Draft]] = []  # compared later: the engine would catch an error of the drafter

    def propose_twice(sequences: list[Sequence], budget: int) -> list[Draft]:
        compiled = propose(sequences, budget)
        drafter._grower = None
        pairs.extend(zip(compiled, propose(sequences, budget), strict=True))
        drafter._grower = grower
        return compiled

    monkeypatch.setattr(drafter, "propose", propose_twice)
    prompts = [(5,) * 9, (7, 8), (9,) * 30, (4, 3, 2)]
    filters: list[dict[str, Any]] = [{}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 3}]
    samplings = [
        SamplingParams(max_tokens=24, temperature=temperature, seed=2**63 + number, ignore_eos=True, **values)
        for temperature in (0.0, 0.8)
        for number, values in enumerate(filters)
    ]
    requests = [Request(f"{n}", prompts[n % 4], sampling) for n, sampling in enumerate(samplings)]
    generate(Engine(target, drafter, EngineConfig(max_batch_size=5, draft_budget=budget, prefill_chunk=16)), requests)
    for compiled, expected in pairs:
        assert (compiled.tokens, compiled.parents) == (expected.tokens, expected.parents)
        assert compiled.survival == pytest.approx(expected.survival, rel=1e-4)
    assert sum(len(draft) for draft, _ in pairs) > 100
    assert max(depth for draft, _ in pairs for depth in draft.depths()) > 2


@pytest.mark.parametrize("options", [{}, OPTIONS["EAGLE-3.1"], {"norm_before_fc": True}], ids=["3", "3.1", "normed"])
@pytest.mark.parametrize("batch_size", [1, 5])
def test_the_compiled_function_observes_like_the_single_operations(
    tmp_path: Path, options: dict[str, Any], batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_model(make_tiny_model(tmp_path, num_layers=4), dtype="float32")
    drafter = Eagle3Drafter(make_module(make_config(**options)), target)
    grower, observe = drafter._grower, drafter.observe
    compared: list[tuple[Tensor, ...]] = []  # compared later: the engine would catch an error of the drafter

    def observe_twice(done: Pass) -> None:
        both: list[list[Tensor]] = []
        for drafter._grower in (None, grower):
            observe(done)
            assert drafter.keys_values is not None
            anchors = [anchor for kept in done.kept if (anchor := drafter.anchor(kept.sequence)) is not None]
            states = [tensor for anchor in anchors for tensor in (anchor.read, anchor.fed_back)]
            both.append([tensor.clone() for tensor in (*states, *drafter.keys_values)])
        compared.extend(zip(*both, strict=True))

    monkeypatch.setattr(drafter, "observe", observe_twice)
    requests = make_requests(temperature=0.0)
    generate(Engine(target, drafter, EngineConfig(max_batch_size=batch_size, draft_budget=12)), requests)
    assert grower is not None
    assert len(compared) > 30
    assert all(torch.equal(single, compiled) for single, compiled in compared)


def test_a_sequence_that_was_never_observed_gets_no_draft(model: Model) -> None:
    drafter = Eagle3Drafter(make_module(make_config()), model)
    cache = KVCache(model.config, num_slots=8, max_sequences=1, max_seq_len=8, dtype=model.dtype, device=model.device)
    drafter.prepare(cache)
    sequence = Sequence(make_requests(temperature=0.0)[0], [5, 6, 7], None, SpeculationStats(), table_row=0)
    assert len(drafter.propose([sequence], 8)[0]) == 0


def test_drafts_are_valid_if_earlier_positions_were_never_observed(model: Model) -> None:
    """The drafter has not observed the cached prefix: its keys there are zeros or those of another request."""
    drafter = Eagle3Drafter(make_module(make_config()), model)
    cache = KVCache(model.config, num_slots=32, max_sequences=1, max_seq_len=32, dtype=model.dtype, device=model.device)
    drafter.prepare(cache)
    cache.write_tables([0] * 20, range(20), range(20))
    request = Request("r", tuple(range(16)), SamplingParams(max_tokens=9, temperature=0.0))
    sequence = Sequence(request, list(range(18)), None, SpeculationStats(), table_row=0, slots=list(range(17)))
    states = model.hidden_states(torch.arange(18), drafter.tap_layers)
    assert states.taps is not None
    drafter.observe(Pass(states.final[16:17], states.taps[16:17], (Kept(sequence, 16, (0,)),)))
    (draft,) = drafter.propose([sequence], 8)
    assert len(draft) > 0
    assert all(0.0 < survival <= 1.0 for survival in draft.survival)


# The tree


def test_a_tree_keeps_the_likeliest_nodes_of_all_levels() -> None:
    tree = GrowingTree(budget=4)
    tree.offer(-1, [10, 11, 12], [0.6, 0.3, 0.05])
    assert [tree.token(node) for node in tree.frontier(2)] == [10, 11]
    tree.start_level()
    tree.offer(0, [20, 21], [0.9, 0.09])
    tree.offer(1, [22], [0.5])
    draft = tree.draft()
    assert draft.tokens == (10, 11, 20, 22)
    assert draft.parents == (-1, -1, 0, 1)
    assert draft.survival == pytest.approx((0.6, 0.3, 0.54, 0.15))


def test_the_frontier_has_only_nodes_that_would_be_verified() -> None:
    tree = GrowingTree(budget=2)
    tree.offer(-1, [10, 11, 12], [0.5, 0.3, 0.2])
    assert [tree.token(node) for node in tree.frontier(4)] == [10, 11]
    tree.start_level()
    tree.offer(0, [20], [0.2])  # its survival of 0.1 is below those of both nodes that would be verified
    assert tree.frontier(4) == []

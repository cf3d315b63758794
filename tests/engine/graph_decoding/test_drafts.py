"""In graph decoding, a drafter on the device drafts the same likely paths as the same drafter on the host."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.cache.kv_cache import KVCache
from engine.config import EngineConfig
from engine.draft import Draft
from engine.drafters.base import Drafter, Kept, Pass
from engine.drafters.block import BlockDrafter
from engine.drafters.eagle3 import Eagle3Drafter
from engine.drafters.mtp import MtpDrafter
from engine.drafters.mtp_layer import DensePrediction
from engine.graph_decoding.setup import GraphDecodingSetup
from engine.load import load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.models.dense import Decoder
from engine.request import Request, SamplingParams, SpeculationStats
from engine.sequence import Sequence
from tests.engine.drafters import random_medusa
from tests.engine.eagle3_reference import make_config, make_module
from tests.engine.tiny_speculators import make_block, make_mtp
from tests.tiny_model import make_tiny_model

BUDGET = 15


def eagle3(model: Model, **options: bool) -> Drafter:
    """Makes a drafter with random weights.

    Like `mtp` and `block` below, this function scales the logits, so that drafts have likely nodes at every depth.
    """
    drafter = Eagle3Drafter(make_module(make_config(**options)), model)
    drafter.layer.lm_head.data.mul_(20.0)
    return drafter


def mtp(model: Model) -> Drafter:
    module = make_mtp()
    module.layer.final_layernorm.weight.data.mul_(6.0)
    return MtpDrafter(DensePrediction(module, model), model, max_depth=4)


def block(model: Model, **changes: Any) -> Drafter:
    module = make_block(**changes)
    module.norm.weight.data.mul_(6.0)
    return BlockDrafter(module, model)


DRAFTERS: dict[str, Callable[[Model], Drafter]] = {
    "medusa": random_medusa,
    "eagle3": eagle3,
    "eagle3.1": lambda model: eagle3(model, fc_norm=True, norm_output=True),
    "mtp": mtp,
    "block": block,
    "dspark": lambda model: block(model, speculators_model_type="dspark", markov_rank=8),
}
SAMPLINGS = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 0.9, "top_p": 0.95, "seed": 5}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    model = load_model(make_tiny_model(tmp_path_factory.mktemp("model"), num_layers=4), device="cpu")
    assert isinstance(model, Decoder)
    model.weights.final_norm.mul_(4.0)
    return model


def engine_within_an_answer(model: Model, drafter: Drafter, sampling: SamplingParams) -> tuple[Engine, Sequence]:
    """Returns an engine and its sequence after 20 tokens of graph decoding, with no graph step in flight."""
    engine = Engine(model, drafter, EngineConfig(graph_decoding="on", draft_budget=BUDGET))
    engine.add(Request("r", tuple(range(7, 20)), sampling))
    while engine.scheduler.waiting or next(iter(engine.scheduler.running.values())).num_generated < 20:
        engine.step()
    engine._graph_decoder.read_all()  # type: ignore[union-attr]
    return engine, next(iter(engine.scheduler.running.values()))


def host_draft(model: Model, drafter: Drafter, tokens: list[int], sampling: SamplingParams) -> Draft:
    """Returns the draft of this drafter on the host, after it has observed the tokens in one pass."""
    length = len(tokens)
    sizes = {"num_slots": length, "max_sequences": 1, "max_seq_len": length}
    cache = KVCache(model.config, dtype=model.dtype, device=model.device, **sizes)
    drafter.prepare(cache)
    cache.write_tables([0] * length, range(length), range(length))
    request = Request("r", tuple(tokens[:13]), sampling)
    slots = list(range(length - 1))
    sequence = Sequence(request, tokens, None, SpeculationStats(), table_row=0, slots=slots, num_tabled=length - 1)
    states = model.hidden_states(torch.tensor(tokens), drafter.tap_layers)
    taps = None if states.taps is None else states.taps[:-1]
    drafter.observe(Pass(states.final[:-1], taps, (Kept(sequence, 0, tuple(range(length - 1))),)))
    (draft,) = drafter.propose([sequence], BUDGET)
    return draft


def survival_by_path(draft: Draft) -> dict[tuple[int, ...], float]:
    """Returns the tokens on the path to each node -> the survival estimate of the node."""
    return {tuple(draft.tokens[n] for n in draft.path(node)): draft.survival[node] for node in range(len(draft))}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@pytest.mark.parametrize("kind", DRAFTERS)
def test_the_device_drafts_the_same_trees_as_the_host(model: Model, kind: str, sampling: dict[str, float]) -> None:
    params = SamplingParams(max_tokens=60, ignore_eos=True, **sampling)  # type: ignore[arg-type]
    engine, sequence = engine_within_an_answer(model, DRAFTERS[kind](model), params)
    assert isinstance(engine._graph_setup, GraphDecodingSetup)
    state = engine._graph_setup.batch_slots.state(torch.tensor([sequence.table_row]), 200)
    assert state.lengths.tolist() == [len(sequence.tokens)]
    assert state.tokens.tolist() == sequence.tokens[-1:]
    assert engine._graph_decoder is not None
    assert engine._graph_decoder.drafter is not None
    with torch.inference_mode():
        trees = engine._graph_decoder.drafter.draft(state, BUDGET)
    count = int(trees.counts[0])
    values = (trees.tokens[0, :count], trees.parents[0, :count], trees.survival[0, :count])
    actual = survival_by_path(Draft(*(tuple(tensor.tolist()) for tensor in values)))
    expected = survival_by_path(host_draft(model, DRAFTERS[kind](model), list(sequence.tokens), params))

    # Drafters leave out nodes with a survival below 1 %, so only clearly likelier paths are compared.
    likeliest = sorted((path for path in expected if expected[path] >= 0.02), key=lambda path: -expected[path])[:5]
    assert likeliest
    for path in likeliest:
        assert actual[path] == pytest.approx(expected[path], rel=1e-3)


def test_a_batch_slot_without_drafter_state_gets_no_draft(model: Model, tmp_path: Path) -> None:
    for kind in ("medusa", "eagle3", "mtp"):
        engine = Engine(model, DRAFTERS[kind](model), EngineConfig(graph_decoding="on", draft_budget=BUDGET))
        assert engine._graph_setup is not None
        assert engine._graph_decoder is not None
        assert engine._graph_decoder.drafter is not None
        with torch.inference_mode():
            state = engine._graph_setup.batch_slots.state(torch.tensor([0, 3]), 200)
            trees = engine._graph_decoder.drafter.draft(state, BUDGET)
        assert trees.counts.tolist() == [0, 0]

"""Drafts of a draft model that equals the target are always accepted.

This holds only if the draft model's keys, positions and random draws are all correct.
"""

import shutil
from collections.abc import Sequence as Many
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.cache.kv_cache import KVCache
from engine.config import EngineConfig
from engine.draft import Draft
from engine.drafters.draft_model import DraftModelDrafter
from engine.drafters.none import NoDrafter
from engine.errors import SpeculatorNotLoadable
from engine.generate import generate
from engine.load import load_drafter, load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.request import Request, SamplingParams
from engine.sequence import Sequence
from tests.tiny_model import make_tiny_model

DEPTH = 3
PASSES = 9


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(make_tiny_model(tmp_path_factory.mktemp("model"), "llama"))


def identical_draft_model(model: Model) -> DraftModelDrafter:
    return DraftModelDrafter(model, model, max_depth=DEPTH, candidates=model.config.vocab_size, least_survival=0.0)


def make_requests(temperature: float) -> list[Request]:
    """Some prompts are equal, some share a prefix, one exceeds a prefill chunk, and one fills a block of 16 tokens."""
    shared = tuple(range(40, 75))
    prompts = [(5,), shared, (*shared, 3, 4), shared, tuple(range(16)), tuple(i * 7 % 200 for i in range(90)), (5,)]
    max_tokens = 1 + (1 + DEPTH) * PASSES  # one token from prefill, then DEPTH accepted ones and a sampled one per pass
    return [
        Request(
            f"r{number}",
            prompt,
            SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=number % 4, ignore_eos=True),
        )
        for number, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_drafts_of_a_model_equal_to_the_target_are_accepted_completely(
    model: Model, temperature: float, batch_size: int
) -> None:
    requests = make_requests(temperature)
    config = EngineConfig(max_batch_size=batch_size, prefill_chunk=32, draft_budget=16)
    plain = generate(Engine(model, NoDrafter(), config), requests)

    drafted = generate(Engine(model, identical_draft_model(model), config), requests)

    for actual, expected in zip(drafted, plain, strict=True):
        assert actual.token_ids == expected.token_ids
        assert actual.speculation.acceptance_histogram == [0] * DEPTH + [PASSES]


def test_drafts_stay_correct_when_requests_are_preempted_and_resumed(model: Model) -> None:
    requests = make_requests(0.8)
    config = EngineConfig(max_batch_size=4, prefill_chunk=32, draft_budget=16)
    plain = {c.request_id: c.token_ids for c in generate(Engine(model, NoDrafter(), config), requests)}
    drafter = identical_draft_model(model)
    propose = drafter.propose
    wrong = []

    def checked(sequences: Many[Sequence], budget: int) -> list[Draft]:
        drafts = propose(sequences, budget)
        for sequence, draft in zip(sequences, drafts, strict=True):
            parents = sorted(set(draft.parents))
            # The drafter ranks children with the target's own noise, so each first child must be the target's token.
            best = [draft.tokens[draft.parents.index(parent)] for parent in parents]
            upcoming = plain[sequence.request.request_id][sequence.num_generated :]
            if tuple(best) != upcoming[: len(best)]:
                wrong.append((best, upcoming))
        return drafts

    drafter.propose = checked  # type: ignore[method-assign]
    slot_bytes = 2 * KVCache.slot_bytes(model.config, model.dtype)  # of the target and of the draft model
    engine = Engine(model, drafter, replace(config, kv_cache_bytes=150 * slot_bytes))

    drafted = generate(engine, requests)

    assert {c.request_id: c.token_ids for c in drafted} == plain
    assert engine.counters.num_preemptions > 0
    assert wrong == []


def test_a_draft_model_with_another_vocabulary_is_refused(model: Model, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "same", "llama", seed=1, num_layers=1)
    assert load_drafter("draft_model", model, folder, model_dir=folder).name == "draft_model"

    changed = shutil.copytree(folder, tmp_path / "changed")
    vocabulary = (changed / "tokenizer.json").read_text()
    swapped = vocabulary.replace('"a"', '"..."').replace('"b"', '"a"').replace('"..."', '"b"')
    (changed / "tokenizer.json").write_text(swapped)
    with pytest.raises(SpeculatorNotLoadable, match="must be b'a' as in the target, got b'b'"):
        load_drafter("draft_model", model, changed, model_dir=folder)

    larger = SimpleNamespace(config=replace(model.config, vocab_size=5000))
    with pytest.raises(SpeculatorNotLoadable, match="must have the target's vocabulary of 5000, got"):
        DraftModelDrafter(model, larger)

"""`medusa` and `eagle3` draft the tokens of a request's own prompt, even those outside the draft vocabulary."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.draft import Draft
from engine.drafters.eagle3 import Eagle3Drafter
from engine.drafters.eagle3_module import Eagle3
from engine.drafters.medusa import MedusaDrafter
from engine.drafters.medusa_heads import MedusaConfig, MedusaHeads
from engine.drafters.none import NoDrafter
from engine.drafters.prompt_tokens import MAX_TOKENS, PromptVocabulary, extend
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.request import Request, SamplingParams
from engine.sequence import Sequence
from tests.engine.eagle3_reference import make_config
from tests.tiny_model import make_tiny_model

VOCAB = torch.arange(0, 200, 2)  # the even tokens below 200
CONFIG = EngineConfig(max_batch_size=5, draft_budget=24, prefill_chunk=16)
Make = Callable[[Model, bool], MedusaDrafter | Eagle3Drafter]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(make_tiny_model(tmp_path_factory.mktemp("model"), num_layers=4), dtype="float32")


def medusa(model: Model, enabled: bool) -> MedusaDrafter:
    torch.manual_seed(0)
    config = MedusaConfig(
        hidden_size=model.config.hidden_size, num_heads=3, draft_vocab_size=len(VOCAB), prompt_tokens=enabled
    )
    heads = MedusaHeads(config, VOCAB)
    torch.nn.init.normal_(heads.weight, std=0.3)
    return MedusaDrafter(heads, model)


def eagle3(model: Model, enabled: bool) -> Eagle3Drafter:
    torch.manual_seed(0)
    module = Eagle3(make_config(prompt_tokens=enabled), VOCAB)
    for parameter in module.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.15)
    with torch.no_grad():
        module.lm_head.weight *= 0.3  # otherwise, its logits would be far above those of the target's rows
    return Eagle3Drafter(module, model)


def single_operations(model: Model, enabled: bool) -> Eagle3Drafter:
    """Returns an EAGLE-3 drafter that uses single operations instead of the compiled function."""
    drafter = eagle3(model, enabled)
    assert drafter._grower is not None
    drafter._grower = None
    return drafter


def make_requests(temperature: float) -> list[Request]:
    """Every prompt has some odd tokens, which are not in the draft vocabulary. No two prompts share an odd token."""
    prompts = [range(1 + 20 * n, 15 + 20 * n) for n in range(6)]
    sampling = SamplingParams(max_tokens=24, temperature=temperature, seed=5, ignore_eos=True)
    return [Request(f"r{n}", (*prompt, 4, 6), sampling) for n, prompt in enumerate(prompts)]


def drafted_tokens(
    drafter: MedusaDrafter | Eagle3Drafter, model: Model, requests: list[Request]
) -> tuple[dict[str, set[int]], list[tuple[int, ...]]]:
    """Returns all tokens that were drafted for each request, and the answers."""
    propose, drafted = drafter.propose, {request.request_id: set[int]() for request in requests}

    def recorded(sequences: list[Sequence], budget: int) -> list[Draft]:
        drafts = propose(sequences, budget)
        for sequence, draft in zip(sequences, drafts, strict=True):
            drafted[sequence.request.request_id] |= set(draft.tokens)
        return drafts

    drafter.propose = recorded  # type: ignore[method-assign, assignment]
    answers = generate(Engine(model, drafter, CONFIG), requests)
    return drafted, [tuple(answer.token_ids) for answer in answers]


@pytest.mark.parametrize("make", [medusa, eagle3, single_operations])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_tokens_of_a_requests_own_prompt_are_drafted_and_answers_stay_equal(
    model: Model, make: Make, temperature: float
) -> None:
    requests = make_requests(temperature)
    plain = [tuple(answer.token_ids) for answer in generate(Engine(model, NoDrafter(), CONFIG), requests)]
    drafted, answers = drafted_tokens(make(model, True), model, requests)
    assert answers == plain
    vocab = set(VOCAB.tolist())
    for request in requests:
        assert drafted[request.request_id] <= vocab | set(request.prompt_token_ids)  # no tokens of other prompts
    assert sum(len(drafted[r.request_id] - vocab) for r in requests) > len(requests)


@pytest.mark.parametrize("make", [medusa, eagle3])
def test_a_speculator_that_was_trained_without_prompt_tokens_drafts_none(model: Model, make: Make) -> None:
    requests = make_requests(0.0)
    drafted, _ = drafted_tokens(make(model, False), model, requests)
    assert set.union(*drafted.values()) <= set(VOCAB.tolist())
    assert all(drafted.values())


def test_the_compiled_function_grows_the_same_trees_as_single_operations(model: Model) -> None:
    requests = make_requests(0.8)
    compiled, _ = drafted_tokens(eagle3(model, True), model, requests)
    assert compiled == drafted_tokens(single_operations(model, True), model, requests)[0]


def test_logits_of_prompt_tokens_are_those_of_the_targets_head(model: Model) -> None:
    prompts = PromptVocabulary(VOCAB, model)
    features, logits = torch.randn(4, model.config.hidden_size), torch.zeros(4, len(VOCAB))
    first, second = prompts.make((3, 8, 5)), prompts.make((7,))
    assert first is not None
    wide, tokens = extend(logits, features, VOCAB, [first, first, None, second])
    expected = features @ model.lm_head.float().T
    for row, own in enumerate([(5, 3), (5, 3), (), (7,)]):
        extra = {int(t): float(v) for t, v in zip(tokens[row], wide[row], strict=True) if v != 0.0 and v > -1e29}
        assert extra == pytest.approx({token: float(expected[row, token]) for token in own}, rel=1e-4)


def test_only_the_last_tokens_of_a_long_prompt_are_drafted(model: Model) -> None:
    vocabulary = PromptVocabulary(torch.tensor([0]), model)
    extra = vocabulary.make((*range(1, 259), 1))
    assert extra is not None
    assert extra.tokens.tolist() == [1, *range(258, 258 - MAX_TOKENS + 1, -1)]


def test_prompt_tokens_of_ended_requests_are_forgotten(model: Model) -> None:
    drafter = medusa(model, True)
    generate(Engine(model, drafter, CONFIG), make_requests(0.0))
    assert drafter._prompts is not None
    assert not drafter._prompts._kept


def test_the_config_says_whether_a_drafter_was_trained_with_prompt_tokens(tmp_path: Path) -> None:
    for enabled in (False, True):
        config = make_config(prompt_tokens=enabled)
        values = config.to_values("speculators", base_model="m", depth=5)
        assert type(config).from_values(values).prompt_tokens is enabled
        assert ("prompt_tokens" in values) is enabled  # the configs of earlier speculators do not change
    old = MedusaHeads(MedusaConfig(hidden_size=8, num_heads=2, draft_vocab_size=3), torch.tensor([1, 2, 5]))
    old.save(tmp_path, base_model="m")
    config_file = tmp_path / "config.json"
    config_file.write_text(config_file.read_text().replace(',\n    "prompt_tokens": false', ""))
    assert "prompt_tokens" not in config_file.read_text()
    assert MedusaHeads.load(tmp_path).config == replace(old.config, prompt_tokens=False)

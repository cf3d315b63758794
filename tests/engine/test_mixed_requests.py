"""In any mixture of requests, with any drafter, a request gets the answer that it gets alone without a drafter.

The mixtures combine response formats, tools, stop strings, log-probabilities, penalties and logit biases. Two answers
are the same if their tokens, finish reasons and log-probabilities are equal.
"""

import json
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from engine.cache.kv_cache import KVCache
from engine.config import EngineConfig
from engine.drafters.base import Drafter
from engine.drafters.block import BlockDrafter
from engine.drafters.combined import CombinedDrafter
from engine.drafters.draft_model import DraftModelDrafter
from engine.drafters.eagle3 import Eagle3Drafter
from engine.drafters.mtp import MtpDrafter
from engine.drafters.mtp_layer import DensePrediction
from engine.drafters.ngram import NgramDrafter
from engine.drafters.none import NoDrafter
from engine.drafters.suffix import SuffixDrafter
from engine.load import load_model
from engine.loop import Engine
from engine.models.dense import Decoder
from engine.tokenizer import Tokenizer
from tests.engine.audit.answers import respond
from tests.engine.drafters import BrokenDrafter, OracleDrafter, random_medusa
from tests.engine.eagle3_reference import make_config, make_module
from tests.engine.openai.thinking_model import END, make_thinking_model
from tests.engine.request_mixtures import Body, bodies
from tests.engine.tiny_speculators import make_block, make_mtp, transformer_values

_MAX_SEQ_LEN = 768
_VOCAB_SIZE = END + 1


class Models:
    """A target model, a draft model, and an engine that answers each request alone and without a drafter."""

    def __init__(self, folder: Path) -> None:
        target = load_model(make_thinking_model(folder / "target", num_hidden_layers=4))
        draft = load_model(make_thinking_model(folder / "draft", seed=1, num_hidden_layers=1))
        assert isinstance(target, Decoder)
        self.target, self.draft = target, draft
        self.tokenizer = Tokenizer.load(folder / "target")
        self._plain = Engine(target, NoDrafter(), EngineConfig(max_seq_len=_MAX_SEQ_LEN, max_batch_size=1))
        self._alone: dict[str, Body] = {}

    def answer_alone(self, body: Body) -> Body:
        key = json.dumps(body)
        if key not in self._alone:
            self._alone[key] = respond(self._plain, self.tokenizer, [body])[0]
        return self._alone[key]

    def drafter(self, kind: str, answers: dict[str, tuple[int, ...]]) -> Drafter:
        """Returns a drafter of this kind. `answers`: request id -> the true answer, which oracle drafters propose."""
        target, wide = self.target, transformer_values(vocab_size=_VOCAB_SIZE)
        match kind:
            case "ngram":
                return NgramDrafter()
            case "suffix":
                return SuffixDrafter(past_tokens=2000)
            case "medusa":
                return random_medusa(target)
            case "medusa+suffix":
                return CombinedDrafter([random_medusa(target), SuffixDrafter(past_tokens=100)])
            case "draft_model":
                return DraftModelDrafter(self.draft, target)
            case "eagle3":
                return Eagle3Drafter(make_module(make_config(vocab_size=_VOCAB_SIZE)), target)
            case "mtp":
                return MtpDrafter(DensePrediction(make_mtp(vocab_size=_VOCAB_SIZE), target), target, max_depth=4)
            case "block":
                return BlockDrafter(make_block(transformer=wide, draft_vocab_size=200), target)
            case "broken":
                return BrokenDrafter()
        error, is_tree = (0.1, False) if kind == "chain" else (0.2, True)
        return OracleDrafter(answers, max_depth=5, error=error, tree=is_tree, vocab_size=_VOCAB_SIZE)


KINDS = [
    "chain",
    "tree",
    "ngram",
    "suffix",
    "medusa",
    "medusa+suffix",
    "draft_model",
    "eagle3",
    "mtp",
    "block",
    "broken",
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.wide)])
def test_each_request_of_a_mixture_gets_the_answer_that_it_gets_alone(models: Models, count: int) -> None:
    num_accepted = dict.fromkeys(KINDS, 0)

    @settings(max_examples=count, derandomize=count < 100, phases=[Phase.generate])
    @given(st.data())
    def check(data: st.DataObject) -> None:
        requests = data.draw(st.lists(bodies(), min_size=2, max_size=5))
        alone = [models.answer_alone(body) for body in requests]
        answers = {str(number): tuple(body["choices"][0]["token_ids"]) for number, body in enumerate(alone)}
        for kind in data.draw(st.lists(st.sampled_from(KINDS), min_size=2, max_size=3, unique=True)):
            drafter = models.drafter(kind, answers)
            slot_bytes = KVCache.slot_bytes(models.target.config, models.target.dtype) + drafter.slot_bytes
            config = EngineConfig(
                max_seq_len=_MAX_SEQ_LEN,
                max_batch_size=data.draw(st.integers(1, 5)),
                draft_budget=data.draw(st.sampled_from([1, 4, 15])),
                prefill_chunk=data.draw(st.sampled_from([7, 64, 256])),
                kv_cache_bytes=data.draw(st.sampled_from([_MAX_SEQ_LEN, 4000])) * slot_bytes,
                graph_decoding=data.draw(st.sampled_from(["off", "on"])),
            )
            order = data.draw(st.permutations(range(len(requests))))
            engine = Engine(models.target, drafter, config)
            together = respond(engine, models.tokenizer, requests, order=order, concurrency=5)
            for body, expected, actual in zip(requests, alone, together, strict=True):
                assert actual["choices"] == expected["choices"], (kind, config, body)
            num_accepted[kind] += engine.counters.num_accepted_tokens

    check()
    assert num_accepted["chain"] + num_accepted["tree"] > 0

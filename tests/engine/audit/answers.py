"""Generates API responses with a real engine on a tiny model, and audits these responses with another engine."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from engine.audit.claim import parse_claim
from engine.audit.scoring import audit
from engine.drafters.base import Drafter
from engine.drafters.block import BlockDrafter
from engine.drafters.combined import CombinedDrafter
from engine.drafters.draft_model import DraftModelDrafter
from engine.drafters.medusa import MedusaDrafter
from engine.drafters.medusa_heads import MedusaConfig, MedusaHeads
from engine.drafters.mtp import MtpDrafter
from engine.drafters.mtp_layer import DensePrediction
from engine.drafters.ngram import NgramDrafter
from engine.drafters.none import NoDrafter
from engine.drafters.suffix import SuffixDrafter
from engine.grammars.compiler import GrammarCompiler
from engine.loop import Engine
from engine.models.base import Model
from engine.models.dense import Decoder
from engine.tokenizer import Tokenizer
from tests.engine.drafters import BrokenDrafter
from tests.engine.tiny_speculators import make_block, make_mtp
from workers.inference.driver import answer_rows
from workers.inference.rows import InputRow, RowAnswer, RowRequest, prepare_row

Body = dict[str, Any]

SAMPLINGS: dict[str, Body] = {
    "greedy": {"temperature": 0},
    "T=0.8": {"temperature": 0.8},
    "filters": {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    "penalties": {"temperature": 0.7, "presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.2},
    "biases": {"temperature": 0, "logit_bias": {"70": 3, "71": -100}, "min_tokens": 5},
    "end token": {"temperature": 1.0, "logit_bias": {"2": 9}, "min_tokens": 2},
    "stop tokens": {"temperature": 1.0, "stop_token_ids": [*range(30, 60)], "min_tokens": 2},
    "stop strings": {"temperature": 1.0, "stop": ["a", "e", "12", "é"]},
    "grammar": {"temperature": 1.0, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
        "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False,
    }}}},
}  # fmt: skip


def bodies(*, count: int, max_tokens: int = 24) -> list[Body]:
    """Makes requests with each of `SAMPLINGS` in turn. Half are chats, and every third asks for log-probabilities."""
    made = []
    for index in range(count):
        sampling = list(SAMPLINGS.values())[index % len(SAMPLINGS)]
        text = f"question {index} " * (1 + index % 3)
        is_chat = index % 2 == 0
        question: Body = {"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}
        logprobs: Body = {} if index % 3 else {"logprobs": True} if is_chat else {"logprobs": 0}
        common = {"max_tokens": max_tokens, "seed": 1000 + index, "return_token_ids": True}
        made.append(common | question | sampling | logprobs)
    return made


@cache
def grammars_of(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, frozenset({2}), trial_seconds=None)


def respond(
    engine: Engine,
    tokenizer: Tokenizer,
    requests: Sequence[Body],
    *,
    adapter: str | None = None,
    order: Sequence[int] | None = None,
    concurrency: int = 4,
) -> list[Body]:
    """Answers the requests like rows of a batch, and returns the responses in the order of `requests`.

    order: indices of `requests` in the order in which the engine gets them.
    """
    rows = [
        prepare_row(
            InputRow(number, "", "/v1/chat/completions" if "messages" in body else "/v1/completions", body),
            tokenizer=tokenizer,
            grammars=grammars_of(tokenizer),
            max_seq_len=engine.max_seq_len,
            seed_key="job",
        )
        for number, body in enumerate(requests)
    ]
    found: dict[int, Body] = {}
    arriving = [_with(rows[number], adapter) for number in order or range(len(rows))]
    for answer in answer_rows(engine, arriving, tokenizer=tokenizer, concurrency=concurrency):
        if answer is not None:
            assert isinstance(answer, RowAnswer), answer
            fingerprint = str(engine.fingerprint(adapter))
            body = answer.body(response_id="r", created=0, model="m", fingerprint=fingerprint)
            found[answer.request.row.number] = body
    return [found[number] for number in range(len(requests))]


def _with(row: Any, adapter: str | None) -> RowRequest:
    assert isinstance(row, RowRequest), row
    request = row.request
    made = type(request)(request.request_id, request.prompt_token_ids, request.sampling, adapter, request.memory)
    return RowRequest(row.row, row.parsed, made)


def verdict(engine: Engine, tokenizer: Tokenizer, request: Body, response: Mapping[str, Any], model: str = "") -> Body:
    body = {"model": model, "request": request, "response": response}
    claim = parse_claim(body, tokenizer=tokenizer, max_seq_len=engine.max_seq_len)
    return audit(engine, claim, tokenizer=tokenizer, grammars=grammars_of(tokenizer))


def drafters(model: Model, draft_model: Model) -> list[Drafter]:
    assert isinstance(model, Decoder)
    return [
        NoDrafter(),
        NgramDrafter(),
        SuffixDrafter(past_tokens=2000),
        random_medusa(model),
        DraftModelDrafter(draft_model, model),
        CombinedDrafter([random_medusa(model), SuffixDrafter(past_tokens=100)]),
        BlockDrafter(make_block(), model),
        MtpDrafter(DensePrediction(make_mtp(), model), model, max_depth=4),
        BrokenDrafter(),
    ]


def random_medusa(model: Model) -> MedusaDrafter:
    torch.manual_seed(0)
    size = model.config.vocab_size
    config = MedusaConfig(hidden_size=model.config.hidden_size, num_heads=3, draft_vocab_size=size)
    heads = MedusaHeads(config, torch.arange(size))
    torch.nn.init.normal_(heads.weight, std=0.3)
    return MedusaDrafter(heads, model)

"""Compares the speeds of plain decoding in our engine and in other engines, with the same weights.

    tokens per second = batch size * (long - short) / (seconds of long answers - seconds of short answers)

`long` and `short` are two answer lengths in tokens. The subtraction removes the time before the first token, which is
not compared, because the engines handle prompts differently.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from benchmarks.gpu.steps import make_engine
from benchmarks.peers.compiled_loop import CompiledLoop
from benchmarks.peers.static_transformers import StaticTransformers, model_over
from benchmarks.samples import Spread
from engine.generate import generate
from engine.models.dense import Decoder
from engine.models.rotary import tables_of
from engine.request import Request, SamplingParams

Answer = Callable[[int], Any]  # generates this number of tokens for each prompt
_ROUNDS = 3


def ours(model: Decoder, prompts: Tensor, longest: int) -> Answer:
    engine = make_engine(model, prompts.shape[1] + longest, batch_size=prompts.shape[0])
    rows = [tuple(row) for row in prompts.tolist()]

    def answer(num_tokens: int) -> list[tuple[int, ...]]:
        sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        requests = [Request(str(number), row, sampling) for number, row in enumerate(rows)]
        return [completion.token_ids for completion in generate(engine, requests)]

    return answer


def compiled_loop(
    model: Decoder, hf_config: PretrainedConfig, prompts: Tensor, longest: int, *, compiled: bool
) -> Answer:
    B, T = prompts.shape  # B prompts of T tokens each
    tables = tables_of(hf_config, model.config.head_dim, T + longest)
    loop = CompiledLoop(model.config, model.weights, tables, batch_size=B, max_seq_len=T + longest, compiled=compiled)

    def answer(num_tokens: int) -> list[tuple[int, ...]]:
        loop.start(prompts)
        found = [loop.tokens.clone()]
        for _ in range(num_tokens - 1):
            loop.step()
            found.append(loop.tokens.clone())
        return [tuple(row) for row in torch.cat(found, dim=1).tolist()]

    return answer


def hugging_face(model: Decoder, hf_config: PretrainedConfig, prompts: Tensor, *, compiled: bool) -> Answer:
    if compiled:
        torch._dynamo.reset()  # otherwise the second batch size would be compiled with dynamic shapes, which are slower
    peer = StaticTransformers(model_over(model.weights, model.config, hf_config), compiled=compiled)
    return lambda num_tokens: [tuple(row) for row in peer.answers(prompts, num_tokens).tolist()]


def rates(engines: Mapping[str, Answer], batch: int, short: int, long: int) -> dict[str, Spread]:
    """Returns the tokens per second of each engine. Every engine must have answered before, to be warmed up."""
    rates_of: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(_ROUNDS):
        for name in list(engines)[:: 1 if turn % 2 == 0 else -1]:  # every second round has the reverse order
            seconds = [_seconds(engines[name], count) for count in (short, long)]
            rates_of[name].append(rate(batch, short, long, *seconds))
    spreads = {name: Spread.of(values) for name, values in rates_of.items()}
    return {name: spread for name, spread in spreads.items() if spread is not None}


def rate(batch: int, short: int, long: int, short_seconds: float, long_seconds: float) -> float:
    """Returns tokens per second, or 0 if the short answers took as long as the long ones because of a disturbance."""
    return batch * (long - short) / (long_seconds - short_seconds) if long_seconds > short_seconds else 0.0


def _seconds(answer: Answer, num_tokens: int) -> float:
    started = time.perf_counter()
    answer(num_tokens)  # returns token ids on the host, so the device has finished
    return time.perf_counter() - started


def agreement(left: list[tuple[int, ...]], right: list[tuple[int, ...]]) -> float:
    """Returns the share of tokens that come before the first difference of the two answers to a prompt.

    Engines that round differently may select different tokens wherever two logits are almost equal.
    """
    num_equal = 0
    for left_answer, right_answer in zip(left, right, strict=True):
        pairs = zip(left_answer, right_answer, strict=True)
        num_equal += next((index for index, (a, b) in enumerate(pairs) if a != b), len(left_answer))
    return num_equal / sum(map(len, left))

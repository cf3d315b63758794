"""Measures how fast engines answer the held-out prompts of a training job, one engine with each trained speculator."""

import time
from collections.abc import Callable, Mapping, Sequence

from engine.generate import generate
from engine.loop import Engine
from engine.request import Request, SamplingParams
from workers.training.data import Conversation

_WARMUP_TOKENS = 8


def tokens_per_second(
    engines: Mapping[str, Engine],
    conversations: Sequence[Conversation],
    *,
    concurrency: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Answers the prompts greedily with each engine, `concurrency` prompts at a time. Returns the speeds by name.

    An answer gets at most as many tokens as the conversation's own answer. The engines take turns after every group of
    prompts, and each group reverses the order of the group before, so that a change of the machine's speed affects all
    engines. Before the measurement, each engine answers one prompt with a few tokens.
    """
    requests = [
        Request(
            request_id=str(number),
            prompt_token_ids=conversation.prompt_token_ids,
            sampling=SamplingParams(max_tokens=len(conversation.completion_token_ids), temperature=0.0),
        )
        for number, conversation in enumerate(conversations)
    ]
    warm_up = Request(
        request_id="warm-up",
        prompt_token_ids=conversations[0].prompt_token_ids,
        sampling=SamplingParams(max_tokens=_WARMUP_TOKENS, temperature=0.0),
    )
    for engine in engines.values():
        generate(engine, [warm_up])
    tokens, seconds = dict.fromkeys(engines, 0), dict.fromkeys(engines, 0.0)
    order = list(engines)
    for start in range(0, len(requests), concurrency):
        for name in order:
            began = clock()
            answers = generate(engines[name], requests[start : start + concurrency])
            seconds[name] += clock() - began
            tokens[name] += sum(len(answer.token_ids) for answer in answers)
        order.reverse()
    return {name: tokens[name] / seconds[name] for name in engines}

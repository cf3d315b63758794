"""Generates answers of the target with an adapter, and records the hidden states from which they were sampled."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.drafters.base import Pass
from engine.drafters.none import NoDrafter
from engine.generate import generate
from engine.load import apply_adapter
from engine.loop import Engine
from engine.models.base import Model
from engine.request import Request, SamplingParams
from workers.training.data import Conversation
from workers.training.hidden_states import HiddenRows


class _HiddenStateRecorder(NoDrafter):
    """A drafter that drafts nothing, and records hidden states when it observes a pass.

    hidden: request id -> number n of tokens -> the hidden state from which the token after the first n tokens was
        sampled.
    """

    name = "listener"
    max_depth = 1  # with 0 the engine would not call `observe`

    def __init__(self) -> None:
        self.hidden: dict[str, dict[int, Tensor]] = {}

    def observe(self, done: Pass) -> None:
        for kept in done.kept:
            states = self.hidden.setdefault(kept.sequence.request.request_id, {})
            states[kept.position + len(kept.rows)] = done.hidden[kept.rows[-1]].clone()


def generate_answers(target: Model, adapter: Path, conversations: Sequence[Conversation]) -> HiddenRows:
    """Answers each conversation's prompt at temperature 0. An answer has at most as many tokens as the stored answer.

    Returns: rows of the new answers. An answer's last hidden state is replaced by zeros: the engine's drafters do not
        observe the last pass of an answer, and no draft starts after its last token.
    """
    recorder = _HiddenStateRecorder()
    engine = Engine(target, recorder, EngineConfig(draft_budget=1))
    apply_adapter(engine, "turbo_lora", adapter)
    requests = [
        Request(str(n), c.prompt_token_ids, SamplingParams(max_tokens=len(c.completion_token_ids), temperature=0.0))
        for n, c in enumerate(conversations)
    ]
    answers = [completion.token_ids for completion in generate(engine, requests)]
    zero_state = torch.zeros(target.config.hidden_size, dtype=target.dtype, device=target.device)
    hidden, starts = [], [0]
    for request, answer in zip(requests, answers, strict=True):
        states, first = recorder.hidden.get(request.request_id, {}), len(request.prompt_token_ids)
        hidden += [*(states[first + row] for row in range(len(answer) - 1)), zero_state]
        starts.append(starts[-1] + len(answer))
    completions = torch.tensor([token for answer in answers for token in answer], device=target.device)
    prompts = tuple(request.prompt_token_ids for request in requests)
    return HiddenRows(torch.stack(hidden), completions, tuple(starts), prompts)

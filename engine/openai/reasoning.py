"""Separates the reasoning trace of a model from its answer.

A chat completion has the trace as `reasoning_content`, as in DeepSeek's API, SGLang and vLLM, and the text after the
trace as `content`. With `separate_reasoning: false`, as in SGLang, the trace remains part of the content.
"""

import re
from collections.abc import Sequence
from typing import Any

from engine.fields import Fields, InvalidRequest
from engine.openai.nesting import check_plain
from engine.text import TextStream
from engine.thinking import Channels, Phase, Thinking, ThinkMarkers
from engine.tokenizer import Tokenizer

_MAX_TOKENS_AFTER_MARKER = 8  # templates write at most some white space after the marker that opens a trace


BUDGET = "thinking_token_budget"  # as in vLLM
SWITCHES = frozenset({"chat_template_kwargs", "enable_thinking", "reasoning_effort"})
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


def template_variables(fields: Fields, tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the variables of the chat template that the request sets.

    `reasoning_effort` and `enable_thinking` are passed on under their names, and override `chat_template_kwargs`.
    For a template that uses only `enable_thinking`, `reasoning_effort: none` sets this variable to false.

    Raises: InvalidRequest: the template does not use a variable, so that the value would have no effect.
    """
    variables = dict(fields.mapping("chat_template_kwargs"))
    check_plain(variables, param="chat_template_kwargs")
    for name in variables:
        _check_known(name, tokenizer, param=f"chat_template_kwargs.{name[:80]}")
    if fields.get("enable_thinking") is not None:
        _check_known("enable_thinking", tokenizer, param="enable_thinking")
        variables["enable_thinking"] = fields.boolean("enable_thinking", True)
    if fields.get("reasoning_effort") is not None:
        effort = fields.string("reasoning_effort", "")
        if effort not in _EFFORTS:
            allowed = ", ".join(_EFFORTS)
            raise InvalidRequest(
                f"reasoning_effort must be one of {allowed}, got {effort[:40]!r}", param="reasoning_effort"
            )
        if (
            effort == "none"
            and not knows_variable("reasoning_effort", tokenizer)
            and knows_variable("enable_thinking", tokenizer)
        ):
            variables["enable_thinking"] = False
        else:
            _check_known("reasoning_effort", tokenizer, param="reasoning_effort")
            variables["reasoning_effort"] = effort
    return variables


def _check_known(name: str, tokenizer: Tokenizer, *, param: str) -> None:
    if not knows_variable(name, tokenizer):
        raise InvalidRequest(
            f"this model's chat template has no variable {name[:80]!r}, so {param} would have no effect: leave it out",
            param=param,
            code="unsupported_parameter",
        )


def knows_variable(name: str, tokenizer: Tokenizer) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", tokenizer.tool_template) is not None


def parse_thinking(fields: Fields, prompt: Sequence[int], tokenizer: Tokenizer) -> Thinking | None:
    """Returns the markers and the budget of the trace in an answer to a chat; None for models without think markers.

    prompt: token ids of the rendered chat.

    Raises: InvalidRequest
    """
    markers, budget = tokenizer.think_markers, fields.integer(BUDGET, at_least=0)
    if markers is None and budget is not None:
        raise InvalidRequest(
            f"{BUDGET} is not supported for this model: its chat template and vocabulary have no think markers",
            param=BUDGET,
            code="unsupported_parameter",
        )
    if markers is None:
        return None
    if markers.channels is not None:
        return _in_channels(markers, markers.channels, prompt, budget)
    tail = list(prompt[-_MAX_TOKENS_AFTER_MARKER:])
    after = tail[len(tail) - tail[::-1].index(markers.begin) :] if markers.begin in tail else None
    opened = after is not None and not tokenizer.decode(after, skip_special_tokens=False).strip()
    return Thinking(markers=markers, opened=opened, budget=budget)


def _in_channels(
    markers: ThinkMarkers, channels: Channels, prompt: Sequence[int], budget: int | None
) -> Thinking | None:
    """Like `parse_thinking`, for markers with channels. Returns None if the prompt's last marker is not `start`."""
    if budget is not None:
        raise InvalidRequest(
            f"{BUDGET} is not supported for models that write traces in channels",
            param=BUDGET,
            code="unsupported_parameter",
        )
    structure = {markers.begin, markers.end, channels.channel, channels.message}
    last = next((token for token in reversed(prompt) if token in structure), None)
    return Thinking(markers=markers, opened=True) if last == markers.begin else None


def check_budget(
    thinking: Thinking | None, *, num_prompt_tokens: int, max_tokens: int | None, max_seq_len: int
) -> None:
    """Raises: InvalidRequest: a trace that uses its budget, its markers and one token of the answer do not fit."""
    if thinking is None or thinking.budget is None:
        return
    room = max_seq_len - num_prompt_tokens
    by = f"the context of {max_seq_len} tokens, with a prompt of {num_prompt_tokens},"
    if max_tokens is not None:
        room, by = max_tokens, f"the limit of {max_tokens} tokens"
    most = room - (2 if thinking.opened else 3)
    if thinking.budget > most:
        raise InvalidRequest(
            f"{BUDGET} is {thinking.budget}, but {by} leaves at most {max(0, most)} for the trace beside its "
            "markers and one token of the answer: lower the budget, or raise the limit",
            param=BUDGET,
            code="thinking_budget_too_large",
        )


class ReasoningStream:
    """The trace of one answer. Its text has no markers and is otherwise as the model wrote it, as in vLLM."""

    def __init__(self, tokenizer: Tokenizer, thinking: Thinking, *, per_token: bool = False) -> None:
        """`per_token`: as in `TextStream`."""
        self._phases = thinking.start()
        self.stream = TextStream(tokenizer, per_token=per_token)
        self.shown: list[int] = []  # places of the ids of the latest `push` that are part of the text

    @property
    def text(self) -> str:
        return self.stream.text

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the trace, including its markers."""
        return self._phases.num_tokens

    def push(self, token_ids: Sequence[int]) -> tuple[str, int]:
        """Returns the new text of the trace, and how many of the ids belong to it; the other ids follow the trace."""
        count, self.shown = 0, []
        while count < len(token_ids) and self._phases.phase is not Phase.ANSWERING:
            if self._phases.accept(token_ids[count]) is Phase.THINKING:
                if not self._phases.is_marker:
                    self.shown.append(count)
                count += 1
        text = self.stream.push([token_ids[place] for place in self.shown])
        ended = self._phases.phase is Phase.ANSWERING
        return text + (self.stream.finish() if ended and count else ""), count

    def finish(self) -> str:
        """Ends an answer that may have ended within its trace. Returns text that was held back."""
        return self.stream.finish()

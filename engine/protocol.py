"""OpenAI's chat and text completions: from a JSON body to engine requests. The way back is `engine.responses`.

A body is either understood in full or refused: an option that would change the answer and that this engine lacks is
an error (`unsupported_parameter`), as is a name nobody knows (`unknown_parameter`). Nothing is quietly ignored but
what cannot change an answer, such as `user` or `metadata`.

    body ─ parse_chat / parse_completion ─ ParsedRequest ─ engine_requests ─ one Request per choice
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.fields import Fields, InvalidRequest
from engine.request import Request, SamplingParams
from engine.tokenizer import ChatTemplateError, Tokenizer

__all__ = ["InvalidRequest", "ParsedRequest", "parse_chat", "parse_completion"]

MAX_CHOICES = 16
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_LOGPROBS = 20
_UINT64 = 1 << 64

# Accepted and without effect on an answer.
_WITHOUT_EFFECT = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "parallel_tool_calls"})
_WITHOUT_EFFECT |= {"prompt_cache_key", "prompt_cache_retention"}
# Not in this release: refused unless it has one of the values that ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "continue_final_message": (False,),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
}
_SAMPLING = frozenset({"max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids"})
_SAMPLING |= {"ignore_eos", "n", "logprobs", "stream", "stream_options"}
_COMMON = frozenset({"model"}) | _SAMPLING | _WITHOUT_EFFECT
_CHAT = _COMMON | {"messages", "max_completion_tokens", "top_logprobs", "chat_template_kwargs"}
_COMPLETION = _COMMON | {"prompt"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """A request that has been understood. A choice has index `prompt index * n + choice of the prompt`."""

    model: str  # as asked for; "" where the body names none
    prompts: tuple[tuple[int, ...], ...]  # chat has one; completions may have several
    choices: tuple[tuple[int, SamplingParams], ...]  # by index: the place of its prompt, how it is sampled
    seed: int  # of the first choice; the others' are derived from it
    n: int
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """Of the first prompt, which for chat is the only one."""
        return self.prompts[0]

    @property
    def sampling(self) -> SamplingParams:
        """Of the first choice."""
        return self.choices[0][1]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)

    def engine_requests(self, request_id: str) -> list[Request]:
        """One for each choice, in order of index, with ids `<request_id>-<index>`."""
        return [
            Request(f"{request_id}-{index}", self.prompts[place], sampling)
            for index, (place, sampling) in enumerate(self.choices)
        ]


def parse_chat(
    body: Mapping[str, Any], *, tokenizer: Tokenizer, max_seq_len: int, default_seed: int | None = None
) -> ParsedRequest:
    """Reads the body of POST /v1/chat/completions.

    Args:
        default_seed: for a body without `seed`; None draws one. A caller that may run twice gives its own.

    Raises: InvalidRequest
    """
    fields = Fields(body)
    _refuse_foreign(fields, known=_CHAT)
    messages = _messages(fields)
    variables = fields.mapping("chat_template_kwargs")
    try:
        prompt = tokenizer.encode_chat(messages, template_variables=variables)
    except ChatTemplateError as error:
        raise InvalidRequest(str(error), param="messages") from error
    wanted = fields.boolean("logprobs", False)
    num_top = fields.integer("top_logprobs", at_least=0, at_most=MAX_LOGPROBS)
    if num_top is not None and not wanted:
        raise InvalidRequest(
            f"top_logprobs needs logprobs to be true, got top_logprobs {num_top}", param="top_logprobs"
        )
    max_tokens = fields.integer("max_completion_tokens", at_least=1)
    if max_tokens is None:
        max_tokens = fields.integer("max_tokens", at_least=1)
    return _parsed(
        fields,
        prompts=(tuple(prompt),),
        prompt_param="messages",
        max_tokens=max_tokens,
        num_logprobs=(num_top or 0) if wanted else None,
        max_seq_len=max_seq_len,
        default_seed=default_seed,
    )


def parse_completion(
    body: Mapping[str, Any], *, tokenizer: Tokenizer, max_seq_len: int, default_seed: int | None = None
) -> ParsedRequest:
    """Reads the body of POST /v1/completions; arguments as in `parse_chat`.

    Raises: InvalidRequest
    """
    fields = Fields(body)
    _refuse_foreign(fields, known=_COMPLETION)
    return _parsed(
        fields,
        prompts=_prompts(fields.get("prompt"), tokenizer),
        prompt_param="prompt",
        max_tokens=fields.integer("max_tokens", at_least=1),
        num_logprobs=fields.integer("logprobs", at_least=0, at_most=MAX_LOGPROBS),
        max_seq_len=max_seq_len,
        default_seed=default_seed,
    )


def _parsed(
    fields: Fields,
    *,
    prompts: tuple[tuple[int, ...], ...],
    prompt_param: str,
    max_tokens: int | None,
    num_logprobs: int | None,
    max_seq_len: int,
    default_seed: int | None,
) -> ParsedRequest:
    for prompt in prompts:
        _check_length(prompt, max_seq_len=max_seq_len, param=prompt_param)
    n = _num_choices(fields, num_prompts=len(prompts))
    seed = _seed(fields, default_seed)
    stream = fields.boolean("stream", False)
    sampling = SamplingParams(
        max_tokens=1,
        temperature=fields.number("temperature", 1.0, at_least=0.0, at_most=2.0),
        top_p=fields.number("top_p", 1.0, above=0.0, at_most=1.0),
        top_k=max(0, fields.integer("top_k", at_least=-1) or 0),  # -1 is vLLM's "no limit"
        min_p=fields.number("min_p", 0.0, at_least=0.0, at_most=1.0),
        stop_token_ids=_stop_token_ids(fields),
        ignore_eos=fields.boolean("ignore_eos", False),
        num_logprobs=num_logprobs,
    )
    choices = []
    for index in range(n * len(prompts)):
        room = max_seq_len - len(prompts[index // n])
        capped = room if max_tokens is None else min(max_tokens, room)
        choices.append((index // n, replace(sampling, max_tokens=capped, seed=choice_seed(seed, index))))
    return ParsedRequest(
        model=fields.string("model", ""),
        prompts=prompts,
        choices=tuple(choices),
        seed=seed,
        n=n,
        stop=_stop_strings(fields),
        stream=stream,
        include_usage=_include_usage(fields, stream=stream),
    )


def choice_seed(seed: int, index: int) -> int:
    """The first choice has the request's own seed, so that it equals the answer to the same request with n = 1.

    Source: splitmix64's finalizer, which maps different inputs to different outputs.
    """
    if index == 0:
        return seed
    mixed = (seed + index * 0x9E3779B97F4A7C15) % _UINT64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % _UINT64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % _UINT64
    return mixed ^ mixed >> 31


def _refuse_foreign(fields: Fields, *, known: frozenset[str]) -> None:
    for name in fields:
        value = fields.get(name)
        if name in known:
            continue
        if name not in _NEUTRAL:
            raise InvalidRequest(f"unknown parameter: {name}", param=name, code="unknown_parameter")
        if value is not None and value not in _NEUTRAL[name]:
            allowed = " or ".join(["absent", *(repr(neutral) for neutral in _NEUTRAL[name])])
            raise InvalidRequest(
                f"{name} is not supported by this release: it must be {allowed}, got {value!r:.80}",
                param=name,
                code="unsupported_parameter",
            )


def _messages(fields: Fields) -> list[dict[str, str]]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest(f"messages must be a list of at least one message, got {messages!r:.80}", param="messages")
    return [_message(Fields(message, path=f"messages[{i}]")) for i, message in enumerate(messages)]


def _message(message: Fields) -> dict[str, str]:
    role = message.string("role", "")
    if role in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
        raise InvalidRequest(
            f"{message.path}: tools are not supported by this release", param=message.path, code="unsupported_parameter"
        )
    if role not in ("system", "developer", "user", "assistant"):
        raise InvalidRequest(
            f"{message.path}.role must be system, developer, user or assistant, got {role!r:.40}",
            param=f"{message.path}.role",
        )
    # Templates know "system" alone; "developer" is its later name.
    return {"role": "system" if role == "developer" else role, "content": _content(message)}


def _content(message: Fields) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return _encodable(content, param=f"{message.path}.content")
    if not isinstance(content, list) or not content:
        raise InvalidRequest(
            f"{message.path}.content must be a string or a list of text parts, got {content!r:.80}",
            param=f"{message.path}.content",
        )
    parts = [Fields(part, path=f"{message.path}.content[{i}]") for i, part in enumerate(content)]
    for part in parts:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InvalidRequest(
                f"{part.path} must be {{'type': 'text', 'text': string}}, got type {part.get('type')!r:.40}",
                param=part.path,
            )
    return "\n".join(_encodable(part.string("text", ""), param=part.path) for part in parts)


def _encodable(text: str, *, param: str) -> str:
    """JSON can spell half a character, which no encoding has."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{param} must be valid Unicode, got a lone surrogate at character {error.start}", param=param
        ) from error
    return text


def _prompts(prompt: Any, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """A string, token ids, or a list of either."""
    if isinstance(prompt, str):
        return (tuple(tokenizer.encode(_encodable(prompt, param="prompt"))),)
    if _is_ids(prompt, tokenizer):
        return (tuple(prompt),)
    if isinstance(prompt, list) and prompt:
        if all(isinstance(item, str) for item in prompt):
            return tuple(tuple(tokenizer.encode(_encodable(item, param="prompt"))) for item in prompt)
        if all(_is_ids(item, tokenizer) for item in prompt):
            return tuple(tuple(item) for item in prompt)
    raise InvalidRequest(
        f"prompt must be a string, a list of token ids in 0..{tokenizer.vocab_size - 1}, or a list of one of these, "
        f"got {prompt!r:.80}",
        param="prompt",
    )


def _is_ids(value: Any, tokenizer: Tokenizer) -> bool:
    return (
        isinstance(value, list) and bool(value) and all(type(i) is int and 0 <= i < tokenizer.vocab_size for i in value)
    )


def _check_length(prompt: Sequence[int], *, max_seq_len: int, param: str) -> None:
    if not prompt:
        raise InvalidRequest("the prompt must have at least 1 token, got 0", param=param)
    if len(prompt) >= max_seq_len:
        raise InvalidRequest(
            f"this model's context holds {max_seq_len} tokens, prompt and answer; the prompt has {len(prompt)}",
            param=param,
            code="context_length_exceeded",
        )


def _num_choices(fields: Fields, *, num_prompts: int) -> int:
    n = fields.integer("n", at_least=1)
    n = 1 if n is None else n
    if n * num_prompts > MAX_CHOICES:
        raise InvalidRequest(
            f"n times the number of prompts must be at most {MAX_CHOICES}, got {n} times {num_prompts}",
            param="n" if n > MAX_CHOICES else "prompt",
            code="unsupported_parameter",
        )
    return n


def _seed(fields: Fields, default_seed: int | None) -> int:
    seed = fields.integer("seed", at_least=-(1 << 63), at_most=_UINT64 - 1)
    if seed is not None:
        return seed % _UINT64
    # Below 2**53, so that a client whose numbers are doubles can send it back.
    return secrets.randbits(53) if default_seed is None else default_seed % _UINT64


def _stop_strings(fields: Fields) -> tuple[str, ...]:
    stop = fields.get("stop")
    strings = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(strings, list) or len(strings) > MAX_STOP_STRINGS:
        raise InvalidRequest(f"stop must be a string or at most {MAX_STOP_STRINGS}, got {stop!r:.80}", param="stop")
    for string in strings:
        if not isinstance(string, str) or not 1 <= len(string) <= MAX_STOP_CHARACTERS:
            raise InvalidRequest(
                f"stop strings must have 1 to {MAX_STOP_CHARACTERS} characters, got {string!r:.80}", param="stop"
            )
    return tuple(strings)


def _stop_token_ids(fields: Fields) -> frozenset[int]:
    ids = fields.get("stop_token_ids")
    if ids is None:
        return frozenset()
    if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
        raise InvalidRequest(f"stop_token_ids must be a list of token ids, got {ids!r:.80}", param="stop_token_ids")
    return frozenset(ids)


def _include_usage(fields: Fields, *, stream: bool) -> bool:
    if fields.get("stream_options") is None:
        return False
    if not stream:
        raise InvalidRequest("stream_options needs stream to be true, got stream false", param="stream_options")
    options = Fields(fields.get("stream_options"), path="stream_options")
    if unknown := sorted(set(options) - {"include_usage", "include_obfuscation"}):
        raise InvalidRequest(
            f"stream_options knows include_usage, got {unknown}", param="stream_options", code="unknown_parameter"
        )
    return options.boolean("include_usage", False)

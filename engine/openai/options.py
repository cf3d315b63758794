"""Parses the options for sampling and output, which chat and text completions share."""

import re
import secrets
from typing import Any

from engine.fields import Fields, InvalidRequest, encodable, kind_of, reject_unknown, reject_unsupported
from engine.generation_defaults import GenerationDefaults
from engine.request import MAX_LOGIT_BIAS, SamplingParams
from engine.tokenizer import Tokenizer

MAX_CHOICES = 16
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKENS = 1024
MAX_LOGPROBS = 20
# limit of all choices together; an entry takes about 350 bytes until the response is sent
MAX_LOGPROB_ENTRIES = 1_000_000
_UINT64 = 1 << 64
_TOKEN_ID = re.compile(r"[0-9]{1,9}", re.ASCII)

SAMPLING = frozenset({"max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop"})
SAMPLING |= {"repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "stop_token_ids"}
SAMPLING |= {"ignore_eos", "n", "logprobs", "stream", "stream_options"}


def parse_sampling(
    fields: Fields, *, vocab_size: int, defaults: GenerationDefaults, num_logprobs: int | None
) -> SamplingParams:
    """Returns sampling parameters. The caller must then set `max_tokens`, `min_tokens`, `grammar` and `seed`.

    Raises: InvalidRequest
    """
    top_k = fields.integer("top_k", at_least=-1)  # vLLM's -1 means no limit
    return SamplingParams(
        max_tokens=1,
        temperature=fields.number("temperature", defaults.temperature, at_least=0.0, at_most=2.0),
        top_p=fields.number("top_p", defaults.top_p, above=0.0, at_most=1.0),
        top_k=defaults.top_k if top_k is None else max(0, top_k),
        min_p=fields.number("min_p", defaults.min_p, at_least=0.0, at_most=1.0),
        repetition_penalty=fields.number("repetition_penalty", defaults.repetition_penalty, above=0.0, at_most=10.0),
        presence_penalty=fields.number("presence_penalty", 0.0, at_least=-2.0, at_most=2.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0, at_least=-2.0, at_most=2.0),
        logit_bias=_logit_bias(fields, vocab_size),
        stop_token_ids=_stop_token_ids(fields),
        ignore_eos=fields.boolean("ignore_eos", False),
        num_logprobs=num_logprobs,
    )


def parse_min_tokens(fields: Fields, *, at_most: int) -> int:
    """Returns `min_tokens`, by default 0. `at_most`: max_tokens of the answer."""
    return fields.integer("min_tokens", at_least=0, at_most=at_most) or 0


def parse_num_choices(fields: Fields, *, num_prompts: int) -> int:
    n = fields.integer("n", at_least=1)
    n = 1 if n is None else n
    if n * num_prompts > MAX_CHOICES:
        raise InvalidRequest(
            f"n times the number of prompts must be at most {MAX_CHOICES}, got {n} times {num_prompts}",
            param="n" if n > MAX_CHOICES else "prompt",
            code="unsupported_parameter",
        )
    return n


def parse_seed(fields: Fields, default_seed: int | None) -> int:
    seed = fields.integer("seed", at_least=-(1 << 63), at_most=_UINT64 - 1)
    if seed is not None:
        return seed % _UINT64
    # The seed is below 2**53, so that clients that store numbers as doubles can send the same seed again.
    return secrets.randbits(53) if default_seed is None else default_seed % _UINT64


def choice_seed(seed: int, index: int) -> int:
    """Returns the seed of a choice. The first choice has the request's seed, so its answer is the same as with n = 1.

    Source: splitmix64's finalizer, which maps different inputs to different outputs.
    """
    if index == 0:
        return seed
    mixed = (seed + index * 0x9E3779B97F4A7C15) % _UINT64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % _UINT64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % _UINT64
    return mixed ^ mixed >> 31


def parse_stop_strings(fields: Fields) -> tuple[str, ...]:
    stop = fields.get("stop")
    strings = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(strings, list) or len(strings) > MAX_STOP_STRINGS:
        got = f"a list of {len(strings)}" if isinstance(strings, list) else kind_of(stop)
        raise InvalidRequest(
            f"stop must be a string or a list of at most {MAX_STOP_STRINGS} strings, got {got}", param="stop"
        )
    for string in strings:
        if not isinstance(string, str) or not 1 <= len(string) <= MAX_STOP_CHARACTERS:
            raise InvalidRequest(
                f"stop strings must have 1 to {MAX_STOP_CHARACTERS} characters, got {kind_of(string)}", param="stop"
            )
    return tuple(encodable(string, param="stop") for string in strings)


def parse_usage_options(fields: Fields, *, stream: bool) -> tuple[bool, bool]:
    """Returns two booleans: whether the stream ends with a usage chunk, and whether every chunk contains the usage so
    far."""
    if fields.get("stream_options") is None:
        return False, False
    if not stream:
        raise InvalidRequest("stream_options needs stream to be true, got stream false", param="stream_options")
    options = Fields(fields.get("stream_options"), path="stream_options")
    reject_unknown(options, known=("include_usage", "continuous_usage_stats", "include_obfuscation"))
    if options.boolean("include_obfuscation", False):
        raise InvalidRequest(
            "stream_options.include_obfuscation is not supported: it must be false or absent, got true",
            param="stream_options.include_obfuscation",
            code="unsupported_parameter",
        )
    include_usage = options.boolean("include_usage", False)
    return include_usage, include_usage and options.boolean("continuous_usage_stats", False)


def parse_return_acceptance(fields: Fields, *, stream: bool) -> bool:
    """Returns whether the chunks of the stream say which of their text comes from accepted draft tokens."""
    wanted = fields.boolean("return_acceptance", False)
    if wanted and not stream:
        raise InvalidRequest("return_acceptance needs stream to be true, got stream false", param="return_acceptance")
    return wanted


def refuse_acceptance_of_calls(wanted: bool) -> None:
    """Raises: InvalidRequest: the request has callable tools, whose calls are no text of the answer."""
    if wanted:
        raise InvalidRequest(
            "return_acceptance is not supported together with tools: leave one out, or send tool_choice none",
            param="return_acceptance",
            code="unsupported_parameter",
        )


def check_num_logprobs(num_logprobs: int | None, *, num_tokens: int) -> None:
    """`num_tokens`: sum of max_tokens over all choices. Raises: InvalidRequest: the response would be too large."""
    entries = 0 if num_logprobs is None else num_tokens * (1 + num_logprobs)
    if entries > MAX_LOGPROB_ENTRIES:
        raise InvalidRequest(
            f"{num_tokens} tokens with {num_logprobs} top log-probabilities each are {entries} entries, the limit is "
            f"{MAX_LOGPROB_ENTRIES}; lower max_tokens, n or the number of top log-probabilities",
            param="max_tokens",
            code="unsupported_parameter",
        )


def parse_prediction(fields: Fields, tokenizer: Tokenizer, *, max_seq_len: int) -> tuple[int, ...]:
    """Returns the token ids of `prediction`, OpenAI's predicted output; () without one. Raises: InvalidRequest."""
    if fields.get("prediction") is None:
        return ()
    prediction = Fields(fields.get("prediction"), path="prediction")
    if prediction.get("type") != "content":
        message = f"prediction.type must be 'content', got {kind_of(prediction.get('type'))}"
        raise InvalidRequest(message, param="prediction.type")
    reject_unknown(prediction, known=("type", "content"))
    content = prediction.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = []
    for i, value in enumerate(parts):
        part = Fields(value, path=f"prediction.content[{i}]" if parts is content else "prediction.content")
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InvalidRequest(f"{part.path} must be a string or text parts", param=part.path)
        reject_unsupported(part, known=("type", "text"))
        texts.append(encodable(part.string("text", ""), param=part.path))
    ids = tuple(tokenizer.encode("".join(texts), add_special_tokens=False))
    if len(ids) > max_seq_len:
        message = f"prediction has {len(ids)} tokens, but the context of this model holds {max_seq_len}"
        raise InvalidRequest(message, param="prediction")
    return ids


def _logit_bias(fields: Fields, vocab_size: int) -> tuple[tuple[int, float], ...]:
    biases = Fields(fields.mapping("logit_bias"), path="logit_bias")
    names = list(biases)
    if len(names) > MAX_LOGIT_BIAS:
        message = f"logit_bias may contain at most {MAX_LOGIT_BIAS} tokens, got {len(names)}"
        raise InvalidRequest(message, param="logit_bias")
    parsed: dict[int, float] = {}
    for name in names:
        if not _TOKEN_ID.fullmatch(name) or int(name) >= vocab_size:
            raise InvalidRequest(
                f"logit_bias must have token ids in 0..{vocab_size - 1} for keys, got {name[:40]!r}", param="logit_bias"
            )
        parsed[int(name)] = biases.number(name, 0.0, at_least=-100.0, at_most=100.0)
    return tuple(sorted(parsed.items()))


def _stop_token_ids(fields: Fields) -> frozenset[int]:
    ids: Any = fields.get("stop_token_ids")
    if ids is None:
        return frozenset()
    if not isinstance(ids, list) or len(ids) > MAX_STOP_TOKENS or not all(type(i) is int and i >= 0 for i in ids):
        message = f"stop_token_ids must be a list of at most {MAX_STOP_TOKENS} token ids, got {kind_of(ids)}"
        raise InvalidRequest(message, param="stop_token_ids")
    return frozenset(ids)

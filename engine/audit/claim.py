"""Parses the body of an audit: a request, and the response that is claimed to answer this request.

    {"model": ..., "request": {body of a chat or text completion}, "response": {the response to it}}

The audit reads these fields of the response: `choices` (`token_ids`, `finish_reason`, `logprobs`), `prompt_token_ids`,
`seed` and `system_fingerprint`. Token ids are required because tokenising the answer's text may give other tokens than
the generated ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine.fields import Fields, InvalidRequest, kind_of, reject_unknown
from engine.fingerprint import Fingerprint, UnknownFingerprint
from engine.openai.requests import ParsedRequest, parse_chat, parse_completion
from engine.openai.tool_calls import CallForm
from engine.request import Request
from engine.tokenizer import Tokenizer

# fields of a request that do not change the tokens of its answer
_NOT_OF_THE_ANSWER = frozenset({"model", "stream", "stream_options", "return_token_ids", "return_acceptance"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedChoice:
    index: int
    token_ids: tuple[int, ...]  # at least one
    finish_reason: str | None  # None: not claimed
    logprobs: tuple[float, ...] | None  # log-probabilities of the first tokens; None: not claimed
    prompt_token_ids: tuple[int, ...] | None  # None: not claimed


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A response to audit. If the request has a grammar, `parsed` must be compiled before `engine_requests`."""

    model: str  # as requested; "" if the body names none
    parsed: ParsedRequest
    fingerprint: Fingerprint
    choices: tuple[ClaimedChoice, ...]

    @property
    def num_tokens(self) -> int:
        """Number of tokens that an audit reads: each prompt once, and all answers."""
        prompts = {choice.index // self.parsed.n for choice in self.choices}
        answers = sum(len(choice.token_ids) for choice in self.choices)
        return answers + sum(len(self.parsed.prompts[prompt]) for prompt in prompts)

    def engine_requests(self, request_id: str, *, adapter: str | None) -> list[Request]:
        """Returns one request per claimed choice, which re-scores its tokens; ids are `<request_id>-<number>`."""
        requests = []
        for number, choice in enumerate(self.choices):
            prompt, sampling = self.parsed.choices[choice.index]
            requests.append(
                Request(
                    f"{request_id}-{number}",
                    self.parsed.prompts[prompt],
                    replace(sampling, num_logprobs=None if choice.logprobs is None else 0),
                    adapter,
                    expected_token_ids=choice.token_ids,
                )
            )
        return requests


def parse_claim(
    body: Mapping[str, Any], *, tokenizer: Tokenizer, max_seq_len: int, call_form: CallForm | None = None
) -> Claim:
    """Parses the body of an audit.

    Raises: InvalidRequest: the body is invalid (codes `missing_token_ids`, `unknown_fingerprint`, `missing_seed`), or
        the request in the body is invalid (codes of `parse_chat` and `parse_completion`).
    """
    fields = Fields(body)
    reject_unknown(fields, known=("model", "request", "response"))
    request, response = (Fields(fields.get(name), path=name) for name in ("request", "response"))
    values = {name: value for name, value in fields.mapping("request").items() if name not in _NOT_OF_THE_ANSWER}
    if values.get("seed") is None:
        values["seed"] = response.get("seed")
    parse = parse_chat if "messages" in values else parse_completion
    parsed = parse(values, tokenizer=tokenizer, max_seq_len=max_seq_len, call_form=call_form)
    if parsed.echo:
        message = "an audit does not read the log-probabilities of prompts: send the request with echo: false"
        raise InvalidRequest(message, param="request.echo", code="unsupported_parameter")
    if values["seed"] is None and parsed.sampling.temperature > 0:
        raise InvalidRequest(
            "the request has no seed, and the response does not name the seed that was used: add response.seed",
            param="response.seed",
            code="missing_seed",
        )
    return Claim(
        model=fields.string("model", request.string("model", "")),
        parsed=parsed,
        fingerprint=_fingerprint(response),
        choices=_choices(response, num_choices=len(parsed.choices), vocab_size=tokenizer.vocab_size),
    )


def _fingerprint(response: Fields) -> Fingerprint:
    text = response.get("system_fingerprint")
    try:
        if isinstance(text, str):
            return Fingerprint.parse(text)
        problem = f"it must be a string, got {kind_of(text)}"
    except UnknownFingerprint as error:
        problem = str(error)
    raise InvalidRequest(
        f"the response's system_fingerprint has no format that this release knows: {problem}",
        param="response.system_fingerprint",
        code="unknown_fingerprint",
    )


def _choices(response: Fields, *, num_choices: int, vocab_size: int) -> tuple[ClaimedChoice, ...]:
    values = response.get("choices")
    if not isinstance(values, list) or not 1 <= len(values) <= num_choices:
        message = f"response.choices must be a list of 1 to {num_choices} choices, as the request asks for"
        raise InvalidRequest(message, param="response.choices")
    choices = []
    for number, value in enumerate(values):
        choice = Fields(value, path=f"response.choices[{number}]")
        index = choice.integer("index", at_least=0, at_most=num_choices - 1)
        choices.append(
            ClaimedChoice(
                index=number if index is None else index,
                token_ids=_token_ids(choice, vocab_size),
                finish_reason=choice.string("finish_reason", "") or None,
                logprobs=_logprobs(choice),
                prompt_token_ids=_prompt_token_ids(choice, response),
            )
        )
    if len({choice.index for choice in choices}) < len(choices):
        raise InvalidRequest("response.choices must have each index once", param="response.choices")
    return tuple(choices)


def _token_ids(choice: Fields, vocab_size: int) -> tuple[int, ...]:
    ids, param = choice.get("token_ids"), f"{choice.path}.token_ids"
    if not ids:
        raise InvalidRequest(
            f"{param} is required, because tokenising the text again may give other token ids: "
            "send the request with return_token_ids: true",
            param=param,
            code="missing_token_ids",
        )
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < vocab_size for i in ids):
        raise InvalidRequest(f"{param} must be token ids in 0..{vocab_size - 1}, got {kind_of(ids)}", param=param)
    return tuple(ids)


def _logprobs(choice: Fields) -> tuple[float, ...] | None:
    """Reads the logprobs of a chat (`content`) or of a text completion (`token_logprobs`)."""
    logprobs = Fields(choice.mapping("logprobs"), path=f"{choice.path}.logprobs")
    content, values = logprobs.get("content"), logprobs.get("token_logprobs")
    if isinstance(content, list):
        values = [entry.get("logprob") if isinstance(entry, Mapping) else None for entry in content]
    if values is None:
        return None
    if not isinstance(values, list) or not all(_is_logprob(value) for value in values):
        raise InvalidRequest(f"{logprobs.path} must hold a log-probability for every token", param=logprobs.path)
    return tuple(map(float, values))


def _is_logprob(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e4 <= value <= 0.0


def _prompt_token_ids(choice: Fields, response: Fields) -> tuple[int, ...] | None:
    """Reads the ids of the choice (text completions) or of the response (chats)."""
    ids = choice.get("prompt_token_ids") or response.get("prompt_token_ids")
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        message = f"prompt_token_ids must be a list of token ids, got {kind_of(ids)}"
        raise InvalidRequest(message, param="response.prompt_token_ids")
    return tuple(ids)

"""Turns a normalised input row into an engine request, and an answer into an output row.

A row that the engine cannot answer becomes a `RowError`, and the job continues; the customer has to correct the row.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.grammars.compiler import GrammarCompiler
from engine.openai.answer import AnswerStream
from engine.openai.echo import echoed
from engine.openai.requests import InvalidRequest, ParsedRequest, parse_chat, parse_completion
from engine.openai.responses import Head, chat_completion, error_body, text_completion
from engine.openai.token_ids import add_token_ids
from engine.request import FinishReason, Request, SpeculationStats, StepOutput, TokenLogprob
from engine.thinking import Phase
from engine.tokenizer import Tokenizer
from workers.failures import InvalidInputError

_CHAT_URL = "/v1/chat/completions"
_COMPLETION_URL = "/v1/completions"


@dataclass(frozen=True, slots=True)
class InputRow:
    number: int  # line number in the whole input file, from 0
    custom_id: str
    url: str
    body: Mapping[str, Any]
    attempts: int = 1  # number of batches that have run the row, including this batch

    @property
    def response_prefix(self) -> str:
        return "chatcmpl-" if self.url == _CHAT_URL else "cmpl-"


@dataclass(frozen=True, slots=True)
class RowError:
    row: InputRow
    error: InvalidRequest


@dataclass(frozen=True, slots=True)
class RowRequest:
    row: InputRow
    parsed: ParsedRequest
    request: Request

    @property
    def length_limit(self) -> int:
        """The length limit that the row states. Only a continued answer exceeds this limit."""
        return self.parsed.sampling.max_tokens

    def continued(self, *, max_tokens: int | None, max_seq_len: int) -> "RowRequest":
        """Returns the request for an answer that goes on past the row's limit.

        The tokens of an answer do not depend on its length limit. One request with a higher limit therefore gives the
        same tokens up to the row's own limit, and then more: no state is restored and no token is computed twice.

        Args:
            max_tokens: a limit for the whole answer, which has no effect if it is below the row's own limit. None: the
                answer may fill the context.
        """
        room = max_seq_len - len(self.request.prompt_token_ids)
        limit = max(self.length_limit, room if max_tokens is None else min(max_tokens, room))
        return replace(self, request=replace(self.request, sampling=replace(self.request.sampling, max_tokens=limit)))


def read_rows(path: Path, *, row_to: int | None = None) -> Iterator[InputRow]:
    """Streams the rows before `row_to`.

    Raises: InvalidInputError: a line is not a normalised row, or the file ends too early.
    """
    number = -1
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if row_to is not None and number >= row_to:
                return
            yield _input_row(number, line)
    if row_to is not None and number + 1 < row_to:
        raise InvalidInputError("input_too_short", f"{path.name} should have {row_to} rows or more, has {number + 1}")


def _input_row(number: int, line: str) -> InputRow:
    try:
        values = json.loads(line)
        return InputRow(
            number=number,
            custom_id=values["custom_id"],
            url=values["url"],
            body=values["body"],
            attempts=values.get("earlier_attempts", 0) + 1,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(
            "invalid_input_row", f"row {number} must be a JSON object with custom_id, url and body, got {error!r}"
        ) from error


def prepare_row(
    row: InputRow,
    *,
    tokenizer: Tokenizer,
    grammars: GrammarCompiler,
    max_seq_len: int,
    seed_key: str,
    max_tokens: int | None = None,
) -> RowRequest | RowError:
    """Parses a row's body.

    Args:
        grammars: the grammar compiler of the engine that will answer.
        seed_key: the job id. The seed of a body without `seed` is derived from the job id and the row's number, so
            that a second attempt gives the same answer.
        max_tokens: an upper limit for the row's own max_tokens.
    """
    parse = {_CHAT_URL: parse_chat, _COMPLETION_URL: parse_completion}.get(row.url)
    try:
        if parse is None:
            raise InvalidRequest(f"url must be {_CHAT_URL} or {_COMPLETION_URL}, got {row.url!r:.80}", param="url")
        parsed = parse(
            row.body,
            tokenizer=tokenizer,
            max_seq_len=max_seq_len,
            default_seed=_row_seed(seed_key, row.number),
            max_tokens_cap=max_tokens,
        )
        if len(parsed.choices) != 1:
            raise InvalidRequest(
                f"a row has one answer: n must be 1 and the prompt single, got {len(parsed.choices)} answers",
                param="n" if parsed.n > 1 else "prompt",
            )
        if parsed.stream:
            raise InvalidRequest("a row's answer can't be streamed: stream must be false or absent", param="stream")
        parsed = parsed.compiled(grammars)
    except InvalidRequest as error:
        return RowError(row, error)
    memory = "job" if parsed.remember_answers else None  # a child process answers the rows of one job only
    request = Request(
        str(row.number),
        parsed.prompt_token_ids,
        parsed.sampling,
        memory=memory,
        prediction_token_ids=parsed.prediction,
    )
    return RowRequest(row, parsed, request)


def _row_seed(key: str, number: int) -> int:
    digest = hashlib.sha256(f"{key}/{number}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1  # 63 bits: many JSON readers parse integers into a signed int64


class RowAnswer:
    """Collects the engine's outputs for one row, until the model, a limit or a stop string ends the answer."""

    def __init__(self, request: RowRequest, tokenizer: Tokenizer) -> None:
        self.request = request
        self.token_ids: list[int] = []  # including a final stop token
        self.accepted: list[bool] = []  # whether each token was an accepted draft token
        self.speculation = SpeculationStats()
        self._prompt_logprobs: tuple[TokenLogprob, ...] | None = None
        self._tokenizer = tokenizer
        self._stream = AnswerStream(
            tokenizer,
            stop=request.parsed.stop,
            logprobs=request.request.sampling.num_logprobs is not None,
            thinking=request.parsed.separated,
            prediction=request.parsed.prediction,
        )

    @property
    def finish_reason(self) -> str | None:
        return self._stream.finish_reason

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def cut(self) -> dict[str, Any] | None:
        """Returns where the row's length limit cut the answer (see `BatchSpec`), or None if the answer ended before the
        limit."""
        limit, thinking = self.request.length_limit, self.request.request.sampling.thinking
        if self.num_tokens < limit or (self.num_tokens == limit and self.finish_reason is not FinishReason.LENGTH):
            return None
        within = "answer"
        if thinking is not None:
            phases = thinking.start()
            for token in self.token_ids[:limit]:
                phases.accept(token)
            within = "answer" if phases.phase is Phase.ANSWERING else "trace"
        return {"within": within, "continued": self.num_tokens > limit}

    def push(self, output: StepOutput) -> None:
        before = self._stream.num_tokens
        self._stream.push(output.token_ids, output.logprobs, output.finish_reason)
        num_used = self._stream.num_tokens - before  # fewer than the step's tokens if a stop string ended the answer
        self.token_ids += output.token_ids[:num_used]
        # The last token of a pass is sampled by the target itself; those before it are accepted draft tokens.
        self.accepted += [place + 1 < len(output.token_ids) for place in range(num_used)]
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs
        if output.speculation is not None:
            self.speculation = output.speculation

    def body(self, *, response_id: str, created: int, model: str, fingerprint: str | None = None) -> dict[str, Any]:
        """Returns the answer as OpenAI's completion object."""
        prompt, answer = self.request.request.prompt_token_ids, self._stream.answer()
        if self.request.parsed.echo:
            answer = echoed(answer, prompt, self._prompt_logprobs, self._tokenizer)
        respond = chat_completion if self.request.row.url == _CHAT_URL else text_completion
        body = respond(
            Head(
                response_id=response_id,
                created=created,
                model=model,
                seed=self.request.request.sampling.seed,
                limits=self.request.parsed.limits,
                fingerprint=fingerprint,
            ),
            [answer],
            num_prompt_tokens=len(prompt),
            num_cached_tokens=self.speculation.num_cached_tokens,
            stats=self.speculation,
            tokenizer=self._tokenizer,
            calls=self.request.parsed.calls,
        )
        return add_token_ids(body, [answer], self.request.parsed)


def output_row(*, row_id: str, row: InputRow, status: int, request_id: str, body: dict[str, Any]) -> dict[str, Any]:
    """Returns OpenAI's batch output row, with `attempts` in addition.

    For a refused row, `status` and `body` belong to the error response.
    """
    return {
        "id": row_id,
        "custom_id": row.custom_id,
        "response": {"status_code": status, "request_id": request_id, "body": body},
        "error": None,
        "attempts": row.attempts,
    }


def error_response(error: InvalidRequest) -> dict[str, Any]:
    return error_body(str(error), param=error.param, code=error.code)

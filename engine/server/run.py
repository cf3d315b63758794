"""A response in progress: converts the engine's outputs for all choices to text."""

import logging
import time
from collections.abc import AsyncIterator

from engine.openai.answer import Answer, AnswerStream, Piece, PredictionUsage
from engine.openai.echo import echoed
from engine.openai.requests import ParsedRequest
from engine.openai.responses import merged_stats
from engine.request import SpeculationStats, TokenLogprob
from engine.server.async_engine import AsyncEngine, Generation
from engine.server.metrics import ServerMetrics
from engine.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class PendingResponse:
    """The caller iterates over `pieces` to the end, then reads `answers` and `stats`. It must always call `close`."""

    def __init__(
        self,
        async_engine: AsyncEngine,
        parsed: ParsedRequest,
        *,
        request_id: str,
        adapter: str | None,
        memory: str | None,
        tokenizer: Tokenizer,
        metrics: ServerMetrics,
    ) -> None:
        """Raises what `AsyncEngine.open` raises."""
        self.parsed = parsed
        self._metrics = metrics
        self._streams = [
            AnswerStream(
                tokenizer,
                stop=parsed.stop,
                logprobs=sampling.num_logprobs is not None,
                keep=not parsed.stream,
                thinking=parsed.separated,
                prediction=parsed.prediction,
                acceptance=parsed.return_acceptance,
            )
            for _, sampling in parsed.choices
        ]
        self._tokenizer = tokenizer
        self._prompt_logprobs: dict[int, tuple[TokenLogprob, ...]] = {}  # by index of the choice
        self._choice_stats: dict[int, SpeculationStats] = {}  # by index of the choice
        self._generation: Generation = async_engine.open(
            parsed.engine_requests(request_id, adapter=adapter, memory=memory)
        )
        self._started_at = time.monotonic()
        self._last_token_at: dict[int, float] = {}
        self._request_id = request_id
        metrics.prompt_tokens.inc(parsed.num_prompt_tokens)
        logger.info("%s begins: %d tokens to read", request_id, parsed.num_prompt_tokens)

    @property
    def stats(self) -> SpeculationStats:
        return merged_stats(self._choice_stats.values())

    @property
    def num_cached_tokens(self) -> int:
        """Counts each prompt once, with the cached tokens of its first choice."""
        return sum(part.num_cached_tokens for index, part in self._choice_stats.items() if index % self.parsed.n == 0)

    @property
    def num_completion_tokens(self) -> int:
        return sum(stream.num_tokens for stream in self._streams)

    @property
    def num_reasoning_tokens(self) -> int:
        return sum(stream.num_reasoning_tokens for stream in self._streams)

    @property
    def predictions(self) -> list[PredictionUsage | None]:
        return [stream.prediction for stream in self._streams]

    def answers(self) -> list[Answer]:
        answers = [stream.answer() for stream in self._streams]
        if not self.parsed.echo:
            return answers
        prompts = [self.parsed.prompts[prompt] for prompt, _ in self.parsed.choices]
        return [
            echoed(answer, prompt, self._prompt_logprobs.get(index), self._tokenizer)
            for index, (answer, prompt) in enumerate(zip(answers, prompts, strict=True))
        ]

    def close(self) -> None:
        self._generation.close()

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """Yields the index of a choice and its new piece, whose text may be empty.

        Raises: InvalidRequest, ServerFault: a choice failed.
        """
        num_unfinished = len(self._streams)
        while num_unfinished:
            index, output = await self._generation.next()
            stream = self._streams[index]
            if output.prompt_logprobs is not None:
                self._prompt_logprobs[index] = output.prompt_logprobs
            was_finished, num_before = stream.finish_reason is not None, stream.num_tokens
            piece = stream.push(output.token_ids, output.logprobs, output.finish_reason, output.accepted)
            self._observe(index, stream.num_tokens - num_before)
            if output.finish_reason is not None:
                num_unfinished -= 1
                self._finish(index, output.speculation)
            elif stream.stopped and not was_finished:
                self._generation.cancel(index)  # its last output still contains the speculation statistics
            if not was_finished:
                yield index, piece

    def _observe(self, index: int, num_tokens: int) -> None:
        if num_tokens == 0:
            return
        now = time.monotonic()
        before = self._last_token_at.get(index)
        self._last_token_at[index] = now
        self._metrics.generation_tokens.inc(num_tokens)
        if before is None:
            self._metrics.time_to_first_token.observe(now - self._started_at)
        else:
            for _ in range(num_tokens):
                self._metrics.inter_token_latency.observe((now - before) / num_tokens)

    def _finish(self, index: int, speculation: SpeculationStats | None) -> None:
        finish_reason = self._streams[index].finish_reason
        assert finish_reason is not None
        seconds = time.monotonic() - self._started_at
        self._metrics.request_ended(str(finish_reason), seconds=seconds)
        num_tokens = self._streams[index].num_tokens
        logger.info(
            "%s choice %d ends: %s, %d tokens in %.3f s", self._request_id, index, finish_reason, num_tokens, seconds
        )
        if speculation is not None:
            self._choice_stats[index] = speculation

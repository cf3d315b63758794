"""Measures the requests to a deployment with a rollout, from the answers that the gateway passes on.

A stream is timed between its first and its last event. If a caller reads slowly, its stream is measured as slow,
whichever process answers it. A stream that its caller ended early is not counted.
"""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from time import monotonic

from control.billing.usage.services import Tokens
from control.serving.gateway.upstream import Answer, is_ended, is_failed
from control.serving.rollouts.evidence import Observation, Outcome

MAX_KEPT_BYTES = 256 << 10  # of an answer that is kept for a comparison
_ACCEPTED = re.compile(rb'(?<!\\)"num_accepted_draft_tokens": ?(\d+)')
_TAIL_BYTES = 4096  # the statistics are within this many bytes of the end of an answer


@dataclass(slots=True, kw_only=True)
class Measured:
    """The measurements of one request while an engine answers it."""

    organization_id: str
    rollout_id: str
    side: str
    request_id: str
    path: str
    keeps_answer: bool = False  # whether the answer is kept for a comparison with the candidate's answer
    kept: list[bytes] | None = field(default_factory=list)  # the answer; None: it is too long
    _is_stream: bool = False
    _num_kept: int = 0
    _tail: bytes = b""
    _first_at: float | None = None
    _last_at: float = 0.0
    _first_seconds: float | None = None
    _status: int = 0

    def begin(self, answer: Answer) -> Answer:
        """Notes the beginning of the answer. Returns the answer to pass on, whose stream is measured."""
        self._status = answer.status
        if isinstance(answer.body, bytes):
            self._add(answer.body)
            return answer
        self._is_stream, self._first_seconds = True, answer.waited_seconds
        return replace(answer, body=self._watched(answer.body))

    def failed(self) -> Observation:
        """Returns the observation of a request to which the engine gave no answer."""
        return self._observation("failed")

    def ended(self, tokens: Tokens) -> Observation | None:
        """Returns the observation of an answer that has ended; None if the answer says nothing about the engine."""
        if self._status >= 500 or self._is_failed_stream:
            return self._observation("failed")
        if not self.is_answered:
            return None
        inter = None
        if self._first_at is not None and tokens.output > 1:
            inter = (self._last_at - self._first_at) / (tokens.output - 1)
        return self._observation("complete", tokens, first=self._first_seconds, inter=inter)

    @property
    def is_refusal(self) -> bool:
        """Whether the engine refused the request, for a reason that the caller caused."""
        return 400 <= self._status < 500

    @property
    def is_answered(self) -> bool:
        """Whether the engine has given a complete answer."""
        is_whole = not self._is_stream or (is_ended(self._tail, self.path) and not self._is_failed_stream)
        return self._status == 200 and is_whole

    @property
    def _is_failed_stream(self) -> bool:
        return self._is_stream and is_failed(self._tail, self.path)

    def _observation(
        self, ended: Outcome, tokens: Tokens | None = None, *, first: float | None = None, inter: float | None = None
    ) -> Observation:
        return Observation(
            organization_id=self.organization_id,
            rollout_id=self.rollout_id,
            side=self.side,
            ended=ended,
            passes_per_token=None if tokens is None else passes_per_token(self._tail, tokens),
            first_seconds=first,
            inter_seconds=inter,
            request_id=self.request_id,
        )

    async def _watched(self, stream: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        async with aclosing(stream):
            async for events in stream:
                self._last_at = monotonic()
                self._first_at = self._first_at or self._last_at
                self._add(events)
                yield events

    def _add(self, part: bytes) -> None:
        self._tail = self._tail[-_TAIL_BYTES:] + part  # the last event is whole
        if self.keeps_answer and self.kept is not None:
            self._num_kept += len(part)
            self.kept.append(part)
            if self._num_kept > MAX_KEPT_BYTES:
                self.kept = None


def passes_per_token(answer: bytes, tokens: Tokens) -> float | None:
    """Returns the forward passes per generated token. A pass generates one token in addition to the accepted drafts.

    Args: answer: the end of an answer, which contains the engine's statistics.
    Returns: None if the answer has no statistics.
    """
    found = _ACCEPTED.findall(answer[-_TAIL_BYTES:])
    if not found or not tokens.output:
        return None
    return min(1.0, max(0.0, 1.0 - int(found[-1]) / tokens.output))

"""Compares a claimed answer with the engine's own, and builds the verdicts.

The engine drafts the claimed tokens and verifies them as it verifies any draft (engine/verify.py): at each position the
token is the argmax of row-invariant logits plus noise, after the request's filters. The engine's answer is therefore
the same as without the claim. One pass verifies up to 64 claimed tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.audit.claim import Claim, ClaimedChoice
from engine.fields import InvalidRequest
from engine.fingerprint import PARTS, Fingerprint
from engine.openai.answer import AnswerStream
from engine.openai.responses import finite, usage_block
from engine.request import FinishReason, StepOutput
from engine.row_invariance import RowInvariance
from engine.tokenizer import Tokenizer

EQUAL, DIFFERENT, FINGERPRINT_MISMATCH = "equal", "different", "fingerprint_mismatch"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between a claimed answer and the engine's own.

    what: "prompt", "token", "logprob" or "end".
    position: index of the token that differs; for "end", the number of tokens that agree.
    """

    what: str
    position: int
    # this engine's value: a token id, a log-probability, or the finish reason; None: it has no such value
    expected: Any
    actual: Any  # the response's value

    def as_json(self) -> dict[str, Any]:
        return {"differs": self.what, "position": self.position, "expected": self.expected, "actual": self.actual}


class ChoiceCheck:
    """Compares the engine's outputs with one claimed choice, until the outputs end or differ from the choice.

    `ended` is True afterwards.
    """

    def __init__(self, claim: Claim, choice: ClaimedChoice, tokenizer: Tokenizer) -> None:
        self.choice = choice
        self.difference = _prompt_difference(claim, choice)
        self.ended = self.difference is not None
        self._has_calls = claim.parsed.calls is not None
        self._stream = AnswerStream(tokenizer, stop=claim.parsed.stop, keep=False, thinking=claim.parsed.separated)
        self._num_checked = 0

    def push(self, output: StepOutput) -> None:
        if self.ended:
            return
        before = self._num_checked
        self._stream.push(output.token_ids, None, output.finish_reason)
        self._num_checked = self._stream.num_tokens  # fewer than the step's if a stop string ended the answer
        tokens = output.token_ids[: self._num_checked - before]
        self.difference = self._of_tokens(before, tokens, output) or self._of_end()
        self.ended = self.difference is not None or self._stream.finish_reason is not None

    def as_json(self) -> dict[str, Any]:
        verdict = {"index": self.choice.index, "num_tokens": len(self.choice.token_ids)}
        if self.difference is None:
            return verdict | {"verdict": EQUAL}
        return verdict | {"verdict": DIFFERENT} | self.difference.as_json()

    def _of_tokens(self, first: int, tokens: Sequence[int], output: StepOutput) -> Difference | None:
        claimed, logprobs = self.choice.token_ids, self.choice.logprobs or ()
        for position, token in enumerate(tokens, start=first):
            if position == len(claimed):
                return Difference("end", position, token, self.choice.finish_reason)
            if token != claimed[position]:
                return Difference("token", position, token, claimed[position])
            if position < len(logprobs) and output.logprobs is not None:
                logprob = finite(output.logprobs[position - first].logprob)
                if logprob != logprobs[position]:
                    return Difference("logprob", position, logprob, logprobs[position])
        return None

    def _of_end(self) -> Difference | None:
        reason, claimed = self._stream.finish_reason, self.choice.finish_reason
        if reason is None:
            return None
        if self._num_checked < len(self.choice.token_ids):
            return Difference("end", self._num_checked, str(reason), self.choice.token_ids[self._num_checked])
        allowed = {None, str(reason)}
        if self._has_calls and reason is FinishReason.STOP:
            allowed.add("tool_calls")
        return None if claimed in allowed else Difference("end", self._num_checked, str(reason), claimed)


def require_exact(fingerprint: Fingerprint | None, row_invariance: RowInvariance) -> Fingerprint:
    """Returns the fingerprint. Raises: InvalidRequest: this engine does not guarantee equal bits for equal requests."""
    if fingerprint is None or not row_invariance.exact:
        reason = row_invariance.reason or "it was not loaded from a folder"
        raise InvalidRequest(f"this engine cannot audit answers: {reason}", code="audit_unavailable", status=409)
    return fingerprint


def verdict_of(
    claim: Claim, checks: Iterable[ChoiceCheck], fingerprint: Fingerprint, *, num_cached: int
) -> dict[str, Any]:
    """Returns the JSON of an audit whose choices have all been checked. num_cached: number of prompt tokens in the
    cache."""
    choices = [check.as_json() for check in checks]
    verdict = EQUAL if all(choice["verdict"] == EQUAL for choice in choices) else DIFFERENT
    usage = usage_block(
        num_prompt_tokens=claim.num_tokens,
        num_completion_tokens=0,
        num_cached_tokens=num_cached,
        num_reasoning_tokens=0,
    )
    return _audit(verdict, fingerprint) | {"choices": choices, "usage": usage}


def mismatch_of(claim: Claim, fingerprint: Fingerprint) -> dict[str, Any] | None:
    """Returns the JSON of an audit that an engine with this fingerprint cannot make; None if the engine can make it."""
    parts = [
        {"part": part, "expected": getattr(fingerprint, part), "actual": getattr(claim.fingerprint, part)}
        for part in PARTS
        if getattr(fingerprint, part) != getattr(claim.fingerprint, part)
    ]
    if not parts:
        return None
    names = ", ".join(str(part["part"]) for part in parts)
    message = f"the answer was given with another {names}: audit it on an engine with the answer's fingerprint"
    usage = usage_block(num_prompt_tokens=0, num_completion_tokens=0, num_cached_tokens=0, num_reasoning_tokens=0)
    return _audit(FINGERPRINT_MISMATCH, fingerprint) | {"message": message, "parts": parts, "usage": usage}


def _audit(verdict: str, fingerprint: Fingerprint) -> dict[str, Any]:
    return {"object": "audit", "verdict": verdict, "system_fingerprint": str(fingerprint)}


def _prompt_difference(claim: Claim, choice: ClaimedChoice) -> Difference | None:
    if choice.prompt_token_ids is None:
        return None
    own, claimed = claim.parsed.prompts[choice.index // claim.parsed.n], choice.prompt_token_ids
    for position in range(max(len(own), len(claimed))):
        expected = own[position] if position < len(own) else None
        actual = claimed[position] if position < len(claimed) else None
        if expected != actual:
            return Difference("prompt", position, expected, actual)
    return None

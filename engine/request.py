"""Requests to the engine and its outputs. They contain only token ids; the callers of the engine handle text."""

from dataclasses import dataclass, field
from enum import StrEnum

from engine.errors import NonFiniteLogits
from engine.grammars.grammar import Grammar
from engine.thinking import Thinking

MAX_LOGIT_BIAS = 1024


class FinishReason(StrEnum):
    STOP = "stop"  # an end-of-sequence or stop token
    LENGTH = "length"
    CANCELLED = "cancelled"
    FAILED = "failed"  # `StepOutput.failure` says why; the API answers such requests with an error


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one answer. The prompt, the parameters and the seed determine the answer; drafts do not.

    The parameters are applied in this order: logit_bias; repetition, frequency and presence penalty; min_tokens and
    grammar, which exclude tokens; temperature; top_k; top_p; min_p. vLLM uses the same order, except that min_p
    precedes top_k there.
    """

    max_tokens: int
    min_tokens: int = 0  # tokens that end the answer are excluded until the answer has this many tokens
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # divides positive logits of tokens in prompt or answer, multiplies negative ones
    presence_penalty: float = 0.0  # subtracted from the logits of tokens in the answer so far
    frequency_penalty: float = 0.0  # subtracted once per occurrence of the token in the answer so far
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, bias added to its logit); ids are distinct
    grammar: Grammar | None = None
    # the reasoning before the answer, to which the grammar does not apply; None: the model does not reason
    thinking: Thinking | None = None
    seed: int = 0  # 64 bits
    stop_token_ids: frozenset[int] = frozenset()  # in addition to the model's end-of-sequence ids
    ignore_eos: bool = False
    num_logprobs: int | None = None  # k: log-probabilities of the sampled token and the k likeliest; None: not wanted
    prompt_logprobs: bool = False  # whether the prompt's tokens get log-probabilities as well; requires num_logprobs

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ValueError(f"min_tokens must be in 0..max_tokens = {self.max_tokens}, got {self.min_tokens}")
        if not 0.0 <= self.temperature <= 2.0:
            raise ValueError(f"temperature must be in 0..2, got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 or more, got {self.top_k}")
        if not 0.0 <= self.min_p <= 1.0:
            raise ValueError(f"min_p must be in 0..1, got {self.min_p}")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be in 0..2**64-1, got {self.seed}")
        self._check_adjustments()
        if self.prompt_logprobs and self.num_logprobs is None:
            raise ValueError("prompt_logprobs needs num_logprobs, got none")
        if self.num_logprobs is not None and not 0 <= self.num_logprobs <= 20:
            raise ValueError(f"num_logprobs must be in 0..20, got {self.num_logprobs}")

    def _check_adjustments(self) -> None:
        if not 0.0 < self.repetition_penalty <= 10.0:
            raise ValueError(f"repetition_penalty must be in (0, 10], got {self.repetition_penalty}")
        if not -2.0 <= self.presence_penalty <= 2.0:
            raise ValueError(f"presence_penalty must be in -2..2, got {self.presence_penalty}")
        if not -2.0 <= self.frequency_penalty <= 2.0:
            raise ValueError(f"frequency_penalty must be in -2..2, got {self.frequency_penalty}")
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise ValueError(f"logit_bias may contain at most {MAX_LOGIT_BIAS} tokens, got {len(self.logit_bias)}")
        if len({token for token, _ in self.logit_bias}) < len(self.logit_bias):
            raise ValueError("logit_bias must not contain a token twice")
        for token, bias in self.logit_bias:
            if token < 0 or not -100.0 <= bias <= 100.0:
                raise ValueError(f"logit_bias must give tokens from 0 a bias in -100..100, got {bias} for {token}")


@dataclass(frozen=True, slots=True)
class Request:
    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    adapter: str | None = None  # name of a loaded LoRA adapter
    # the name of a group of requests; drafters may copy from past answers of the same group. None: no copying
    memory: str | None = None
    expected_token_ids: tuple[int, ...] = ()  # an answer to verify (engine/audit), which replaces the drafter's drafts
    # text that the answer will probably repeat; its next tokens are drafted while the answer so far agrees with it
    prediction_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    logprob: float  # natural logarithm of the probability at temperature 1, without filters
    top: tuple[tuple[int, float], ...]  # (token id, logprob), best first


@dataclass(slots=True)
class SpeculationStats:
    """Speculation statistics of one request.

    The acceptance length includes the token that the target adds: 1 + accepted / steps.
    """

    num_spec_steps: int = 0  # verifications, including those without a draft
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    num_spec_tokens: int = 0  # the maximum depth of the drafter's drafts, named as in vLLM
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache
    acceptance_histogram: list[int] = field(default_factory=list)  # [i]: verifications that accepted i draft tokens

    @property
    def mean_acceptance_length(self) -> float:
        return 1.0 + self.num_accepted_draft_tokens / max(1, self.num_spec_steps)

    @property
    def draft_acceptance_rate(self) -> float:
        return self.num_accepted_draft_tokens / max(1, self.num_draft_tokens)

    def record(self, *, drafted: int, accepted: int) -> None:
        self.num_spec_steps += 1
        self.num_draft_tokens += drafted
        self.num_accepted_draft_tokens += accepted
        while len(self.acceptance_histogram) <= accepted:
            self.acceptance_histogram.append(0)
        self.acceptance_histogram[accepted] += 1


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The output of one step for one request; `speculation` is set in the last output of the request."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish_reason: FinishReason | None
    speculation: SpeculationStats | None
    failure: NonFiniteLogits | None = None  # set if the finish reason is FAILED
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None  # of prompt[1:], if requested; only in the first output
    num_drafted: int | None = None  # draft tokens that the pass verified; None: a prefill, which `speculation` omits
    step_sizes: tuple[int, ...] = ()  # numbers of tokens of the steps whose outputs this one joins; (): one step

    @property
    def accepted(self) -> list[bool]:
        """Whether each token was an accepted draft token. The last token of a step is sampled by the target itself."""
        sizes = self.step_sizes or (len(self.token_ids),)
        return [place + 1 < size for size in sizes for place in range(size)]


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer of `engine.generate.generate`. `token_ids` includes the stop token that ended the answer."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish_reason: FinishReason
    speculation: SpeculationStats

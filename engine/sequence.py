"""The state of a request in the engine."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from engine.cache.slots import Block
from engine.grammars.grammar import Constraint
from engine.prediction import PredictionFollower
from engine.request import Request, SpeculationStats, TokenLogprob
from engine.token_counts import TokenCounts


@dataclass(slots=True, eq=False)
class Sequence:
    """The tokens of a request, and what the engine has computed for them.

    The keys and values of tokens[:num_computed] are in the cache; the other tokens are pending. During prefill, the
    pending tokens belong to the prompt. Afterwards exactly one token is pending, the last sampled one. A preempted
    sequence starts again with `num_computed` = 0 and prefills its prompt and answer so far.
    """

    request: Request
    tokens: list[int]
    root: Hashable  # the LoRA adapter or None; only sequences with the same root share keys and values
    stats: SpeculationStats
    constraint: Constraint | None = None  # state of the answer in the request's grammar
    prediction: PredictionFollower | None = None  # state of the answer in the request's prediction
    num_computed: int = 0
    table_row: int = -1  # row of the cache's slot tables; -1 while the request waits
    num_tabled: int = 0  # number of positions whose slots are in the table
    slots: list[int] = field(default_factory=list)  # slots[i] is the cache slot of position i
    blocks: list[Block] = field(default_factory=list)  # blocks[i] is the i-th full block of positions
    draft_slots: list[int] = field(default_factory=list)  # cache slots of the current draft nodes
    found_blocks: list[Block] = field(default_factory=list)  # for a waiting request: cached blocks of its prefix
    token_counts: TokenCounts | None = None  # None until a penalty is applied
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # [i]: for prompt[i + 1], if requested

    @property
    def needs_prompt_logits(self) -> bool:
        """Whether the prompt must be computed even if its keys and values are cached."""
        missing = len(self.request.prompt_token_ids) - 1 - len(self.prompt_logprobs)
        return self.request.sampling.prompt_logprobs and missing > 0

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt_token_ids)

    @property
    def num_remaining(self) -> int:
        return self.request.sampling.max_tokens - self.num_generated

    @property
    def is_decoding(self) -> bool:
        return len(self.request.prompt_token_ids) < len(self.tokens) == self.num_computed + 1

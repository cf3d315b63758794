"""A request under way."""

from dataclasses import dataclass, field

from engine.request import FinishReason, Request, SpeculationStats, TokenLogprob


@dataclass(slots=True, eq=False)
class Sequence:
    """tokens[:num_computed] have their keys and values in the cache; the rest are pending.

    While the prompt is read, pending tokens are prompt tokens. Afterwards exactly one is pending: the last one chosen.
    """

    request: Request
    tokens: list[int]
    table_row: int
    num_reserved: int
    stats: SpeculationStats
    num_computed: int = 0
    slots: list[int] = field(default_factory=list)  # of the committed positions
    draft_slots: list[int] = field(default_factory=list)  # of the nodes under way, per node

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt_token_ids)

    @property
    def num_remaining(self) -> int:
        return self.request.sampling.max_tokens - self.num_generated

    @property
    def is_decoding(self) -> bool:
        return self.num_computed == len(self.tokens) - 1 and self.num_generated > 0


@dataclass(frozen=True, slots=True)
class Committed:
    """What one step decided for one sequence."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish_reason: FinishReason | None

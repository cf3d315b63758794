"""A request under way."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from engine.grammar import Constraint
from engine.request import Request, SpeculationStats
from engine.slots import Block


@dataclass(slots=True, eq=False)
class Sequence:
    """tokens[:num_computed] have their keys and values in the cache; the rest are pending.

    While the prompt is read, pending tokens are prompt tokens. Afterwards exactly one is pending: the last one chosen.
    A sequence that had to give way starts from `num_computed` 0 again, its answer so far read like a prompt.
    """

    request: Request
    tokens: list[int]
    root: Hashable  # what keys and values depend on beside the tokens
    stats: SpeculationStats
    constraint: Constraint | None = None  # where the answer stands in the request's grammar
    num_computed: int = 0
    table_row: int = -1  # of the cache's slot tables; -1 while it waits
    num_tabled: int = 0  # positions whose slots stand in the table
    slots: list[int] = field(default_factory=list)  # of the first positions
    blocks: list[Block] = field(default_factory=list)  # their full blocks, in order
    draft_slots: list[int] = field(default_factory=list)  # of the nodes under way, per node

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt_token_ids)

    @property
    def num_remaining(self) -> int:
        return self.request.sampling.max_tokens - self.num_generated

    @property
    def is_decoding(self) -> bool:
        return len(self.request.prompt_token_ids) < len(self.tokens) == self.num_computed + 1

"""No drafter: plain decoding."""

from collections.abc import Sequence as Many

from engine.draft import EMPTY_DRAFT, Draft
from engine.drafters.base import Drafter
from engine.sequence import Sequence


class NoDrafter(Drafter):
    name = "none"
    max_depth = 0

    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        return [EMPTY_DRAFT] * len(sequences)

"""What a drafter is to the engine.

A drafter guesses; it can't change an answer. It may be wrong, raise or return nothing: that costs speed only. Its
numerics are its own business.
"""

from collections.abc import Sequence as Many
from typing import Protocol

from engine.draft import Draft
from engine.sequence import Sequence


class Drafter(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def max_depth(self) -> int:
        """Longest path a draft may have; 0 never drafts."""
        ...

    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        """A draft of at most `budget` nodes for each sequence; every sequence is decoding and has its tap.

        Raises: DrafterError: the batch can't be served; the engine decodes plainly.
        """
        ...

    def forget(self, request_id: str) -> None:
        """The request ended."""
        ...

"""What a drafter is to the engine.

A drafter guesses; it can't change an answer. It may be wrong, raise or return nothing: that costs speed only. Its
numerics are its own business.

    prepare(cache) ─▶ every step: propose(decoding sequences) ─▶ pass of the target ─▶ observe(what was kept)
"""

from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from engine.draft import Draft
from engine.kv_cache import KVCache
from engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Kept:
    """Positions of one sequence that a pass computed and the engine kept.

    sequence: its tokens already hold what the pass chose, so the token after each kept position is known.
    position: of the first.
    rows: their rows of the pass, in position order.
    """

    sequence: Sequence
    position: int
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pass:
    """What the target computed.

    hidden: [M, H] after the final norm, in the model's dtype.
    taps: [M, T, H], the residual streams that enter the drafter's `tap_layers`; None where it wants none.
    kept: per sequence that goes on.
    """

    hidden: Tensor
    taps: Tensor | None
    kept: tuple[Kept, ...]


class Drafter(Protocol):
    """Subclasses override what they need; what they leave does nothing."""

    name: str
    max_depth: int  # longest path a draft may have; 0 never drafts
    tap_layers: tuple[int, ...] = ()  # i: what enters layer i of the target; its number of layers: what leaves the last
    slot_bytes: int = 0  # memory of its own keys and values per slot of the cache

    def prepare(self, cache: KVCache) -> None:
        """Called once, before all else. A drafter with keys and values lays them out by the cache's slots."""
        return

    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        """A draft of at most `budget` nodes for each sequence; every sequence is decoding.

        Raises: DrafterError: the batch can't be served; the engine decodes plainly.
        """
        raise NotImplementedError

    def observe(self, done: Pass) -> None:
        """Called after every pass. Positions may be missing: a prefix from the cache, a time before this drafter."""
        return

    def forget(self, request_id: str) -> None:
        """The request ended or was preempted; in the latter case it comes back with its prompt made longer."""
        return

    def forget_past(self) -> None:
        """Drops what was kept of requests that ended."""
        return


def slices(done: Pass, drafters: Many[Drafter]) -> Iterator[tuple[Drafter, Pass]]:
    """For drafters that share a pass, whose `tap_layers` stand one after the other in it: what each asked for."""
    first = 0
    for drafter in drafters:
        end = first + len(drafter.tap_layers)
        taps = done.taps[:, first:end] if done.taps is not None and end > first else None
        first = end
        yield drafter, replace(done, taps=taps)

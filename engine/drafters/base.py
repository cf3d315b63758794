"""The interface between a drafter and the engine.

A drafter proposes tokens but can't change the engine's output. If it proposes wrong tokens or none, or raises an
exception, only speed is lost. Its arithmetic need not be reproducible.

    prepare(cache) ─▶ every step: propose(decoding sequences) ─▶ pass of the target ─▶ observe(kept rows)

A tap is an intermediate hidden state of the target: the residual stream at the input of one of its layers.
`Drafter.tap_layers` lists the layers whose inputs the drafter reads.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from engine.cache.kv_cache import KVCache
from engine.draft import Draft
from engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Kept:
    """The positions of one sequence that a pass has computed and that the engine keeps: a part of the prompt, or the
    last token and the accepted draft nodes.

    sequence: `sequence.tokens` already includes the tokens sampled in the pass, so the token after each kept position
        is known.
    position: the first kept position.
    rows: the rows of the kept positions in the pass, in order.
    """

    sequence: Sequence
    position: int
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pass:
    """Hidden states of size H that the target computed in one pass of M rows.

    hidden: [M, H] after the final norm, in the model's dtype.
    taps: [M, T, H], the residual streams at the inputs of the drafter's T `tap_layers`; None if the drafter has none.
    kept: one entry per sequence that has not ended.
    """

    hidden: Tensor
    taps: Tensor | None
    kept: tuple[Kept, ...]


class Drafter(Protocol):
    """Subclasses implement `propose`. The other methods do nothing by default."""

    name: str
    max_depth: int  # maximum depth of a draft; 0: the drafter never drafts
    tap_layers: tuple[int, ...] = ()  # i: input of the target's layer i; number of layers: the last layer's output
    slot_bytes: int = 0  # memory of the drafter's keys and values per cache slot

    def prepare(self, cache: KVCache) -> None:
        """Called once, before other methods. A drafter with keys and values allocates them for the cache's slots."""
        return

    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        """Returns a draft of at most `budget` nodes for each sequence; every sequence is decoding.

        Raises: DrafterError: the drafter can't serve this batch; the engine then decodes without a draft.
        """
        raise NotImplementedError

    def observe(self, done: Pass) -> None:
        """Called after every pass.

        Some positions are never observed: positions of a cached prefix, and positions computed before this drafter
        replaced another drafter.
        """
        return

    def forget(self, request_id: str) -> None:
        """Called when a request has ended or was preempted. The tokens of a preempted request are prefilled again."""
        return

    def forget_past(self) -> None:
        """Drops what the drafter remembers of requests that have ended, such as their answers, before an evaluation."""
        return


def split_taps(done: Pass, drafters: Many[Drafter]) -> Iterator[tuple[Drafter, Pass]]:
    """Yields each drafter together with a copy of the pass that has only the taps of this drafter.

    `done.taps` has the taps of all drafters, concatenated in the order of `drafters`.
    """
    first = 0
    for drafter in drafters:
        end = first + len(drafter.tap_layers)
        taps = done.taps[:, first:end] if done.taps is not None and end > first else None
        first = end
        yield drafter, replace(done, taps=taps)

"""Measures a drafter's acceptance length at temperature 0 by decoding stored answers with it, as the engine would.

The target is not run, because its taps (intermediate hidden states) for these answers are stored. In every pass, the
drafter proposes a draft for each conversation. The longest prefix of the remaining answer that is in the draft is
accepted, and the drafter observes the pass. The last token of an answer always counts as sampled by the target.
"""

from dataclasses import dataclass

import torch

from engine.cache.kv_cache import KVCache
from engine.drafters.base import Drafter, Kept, Pass
from engine.models.base import Model
from engine.request import Request, SamplingParams, SpeculationStats
from engine.sequence import Sequence
from workers.training.acceptance import Acceptance, accepted_tokens
from workers.training.hidden_states import TapRows


@dataclass(slots=True)
class _Conversation:
    """A conversation that is being decoded."""

    sequence: Sequence  # with the tokens decoded so far
    ids: list[int]  # all tokens
    first_row: int  # row of position 0 in `TapRows.taps`

    @property
    def is_done(self) -> bool:
        return len(self.sequence.tokens) == len(self.ids)

    def decode(self, count: int) -> Kept:
        """Appends the next `count` tokens. Returns the positions that this pass computed, and their rows in the taps.

        After this pass, only the last token's position is not computed. This token is the input of the next pass.
        """
        sequence, start = self.sequence, self.sequence.num_computed
        sequence.tokens += self.ids[len(sequence.tokens) : len(sequence.tokens) + count]
        sequence.num_computed = len(sequence.tokens) - 1
        return Kept(sequence, start, tuple(range(self.first_row + start, self.first_row + sequence.num_computed)))


def simulate(drafter: Drafter, rows: TapRows, target: Model, *, budget: int) -> Acceptance:
    """Runs all conversations at once, with at most `budget` nodes per sequence and pass."""
    acceptance = Acceptance()
    running = _start(drafter, rows, target)
    _observe(drafter, rows, [conversation.decode(1) for conversation in running])  # the prefill
    while running := [conversation for conversation in running if not conversation.is_done]:
        drafts = drafter.propose([conversation.sequence for conversation in running], budget)
        kept = []
        for conversation, draft in zip(running, drafts, strict=True):
            continuation = conversation.ids[len(conversation.sequence.tokens) : -1]
            accepted = accepted_tokens(draft, continuation)
            acceptance.record(accepted)
            kept.append(conversation.decode(accepted + 1))
        _observe(drafter, rows, kept)
    return acceptance


def _start(drafter: Drafter, rows: TapRows, target: Model) -> list[_Conversation]:
    """Prepares the drafter's cache. Returns all conversations, with sequences that contain only the prompts."""
    lengths = [end - start + 1 for start, end in zip(rows.starts, rows.starts[1:], strict=False)]
    cache = KVCache(
        target.config,
        num_slots=sum(lengths),
        max_sequences=len(lengths),
        max_seq_len=max(lengths),
        dtype=target.dtype,
        device=target.device,
    )
    drafter.prepare(cache)
    running, tokens = [], rows.tokens.tolist()
    for index, (start, length, prompt) in enumerate(zip(rows.starts, lengths, rows.prompt_lengths, strict=False)):
        slots = list(range(start + index, start + index + length))  # each conversation has one slot more than rows
        cache.write_tables([index] * length, range(length), slots)
        ids = [rows.first_tokens[index], *tokens[start : start + length - 1]]
        sampling = SamplingParams(max_tokens=length - prompt, temperature=0.0)
        request = Request(f"simulated-{index}", tuple(ids[:prompt]), sampling)
        sequence = Sequence(request, ids[:prompt], None, SpeculationStats(), table_row=index, slots=slots)
        sequence.num_tabled = length
        running.append(_Conversation(sequence, ids, start))
    return running


def _observe(drafter: Drafter, rows: TapRows, kept: list[Kept]) -> None:
    """Lets the drafter observe a pass. The pass has only the rows in `kept`, so these rows are renumbered from 0."""
    selected = torch.tensor([row for part in kept for row in part.rows], device=rows.taps.device)
    renumbered, first = [], 0
    for part in kept:
        renumbered.append(Kept(part.sequence, part.position, tuple(range(first, first + len(part.rows)))))
        first += len(part.rows)
    drafter.observe(Pass(rows.taps[selected, -1], rows.taps[selected], tuple(renumbered)))

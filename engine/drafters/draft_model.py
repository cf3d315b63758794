"""Drafts with a small model of the same vocabulary, one token after the other.

The draft model's keys and values are indexed by the target's cache slots, so shared prefixes are computed once. Each
slot also stores a hash of all tokens up to its position. If this hash differs from the hash of the current text, the
slot's keys belong to another text. Such a position is called missing and is computed again. A step first computes all
missing positions and the last token in one pass. Then it makes one pass per depth over the best candidate of each
sequence, with keys and values in scratch slots that follow the target's slots. The best candidates of all depths form
the trunk of the tree; the other candidates become leaves. Unlikely paths are not continued.

At T > 0, candidates are ranked with the target's sampling noise (choice.py).

Source: Leviathan et al. 2023, arXiv:2211.17192; Gumbel coupling, arXiv:2408.07978.
"""

from array import array
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.cache.kv_cache import KVCache
from engine.cache.slots import BLOCK
from engine.draft import Draft
from engine.drafters.base import Drafter, Pass
from engine.drafters.choice import choose
from engine.errors import SpeculatorNotLoadable
from engine.models.base import Model
from engine.rows import RowBuilder
from engine.sequence import Sequence
from engine.tokenizer import Tokenizer

_MAX_DEPTH = 6
_CANDIDATES = 16  # number of candidates that are ranked per position
_BRANCHES = 3  # candidates proposed per depth
# Less likely trunks are not continued. A pass of the draft model is assumed to take a tenth of the target's time.
_LEAST_SURVIVAL = 0.1
_PASS_ROWS = 256  # maximum rows of a pass that computes missing positions
_MAX_PADDING = 128  # allowed difference of vocabulary sizes within a model family, as in llama.cpp
_EMPTY = -1  # not a valid hash, because hashes are not negative


@dataclass(slots=True)
class _Text:
    """The hashes of a sequence's tokens.

    hashes: hashes[i] is the hash of tokens[: i + 1].
    num_final: number of first positions whose keys are known to belong to this text, so that they need no check.
    """

    hashes: "array[int]" = field(default_factory=lambda: array("q"))
    num_final: int = 0

    def read(self, tokens: Many[int]) -> None:
        before = self.hashes[-1] if self.hashes else 0
        for token in tokens[len(self.hashes) :]:
            before = hash((before, token)) & 0x7FFFFFFFFFFFFFFF  # not negative, unlike _EMPTY
            self.hashes.append(before)


@dataclass(slots=True)
class _Path:
    """A sequence's draft in progress: the scratch slots of its trunk, and all nodes so far."""

    slots: tuple[int, ...] = ()
    trunk: int = -1  # last node of the trunk; -1: the sequence's last token
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    survival: list[float] = field(default_factory=list)

    @property
    def trunk_survival(self) -> float:
        return self.survival[self.trunk] if self.trunk >= 0 else 1.0

    def add(self, candidates: Many[int], probabilities: Many[float]) -> None:
        """Adds children of the trunk's last node, best first; the best one extends the trunk."""
        parent, parent_survival = self.trunk, self.trunk_survival
        self.trunk = len(self.tokens)
        for token, probability in zip(candidates, probabilities, strict=True):
            self.tokens.append(token)
            self.parents.append(parent)
            self.survival.append(parent_survival * min(probability, 1.0))

    def draft(self, budget: int) -> Draft:
        return Draft(tuple(self.tokens), tuple(self.parents), tuple(self.survival)).likeliest(budget)


class DraftModelDrafter(Drafter):
    name = "draft_model"

    def __init__(
        self,
        model: Model,
        target: Model,
        *,
        max_depth: int = _MAX_DEPTH,
        candidates: int = _CANDIDATES,
        least_survival: float = _LEAST_SURVIVAL,
    ) -> None:
        """
        Args:
            candidates: tokens per position that are ranked with the target's noise.
            least_survival: minimum survival at which the trunk is continued by another pass.

        Raises: SpeculatorNotLoadable: the models' vocabularies differ in size.
        """
        own_size, target_size = model.config.vocab_size, target.config.vocab_size
        if abs(own_size - target_size) > _MAX_PADDING:
            raise SpeculatorNotLoadable(
                f"the draft model must have the target's vocabulary of {target_size}, got {own_size}"
            )
        self.max_depth = max_depth
        self.slot_bytes = KVCache.slot_bytes(model.config, model.dtype)
        self._model = model
        self._candidates = candidates
        self._least_survival = least_survival
        self._texts: dict[str, _Text] = {}

    @torch.inference_mode()
    def prepare(self, cache: KVCache) -> None:
        self._target_cache = cache
        self._scratch = cache.num_slots  # the first scratch slot
        self._cache = KVCache(
            self._model.config,
            num_slots=cache.num_slots + cache.slot_tables.shape[0] * self.max_depth,
            max_sequences=1,
            max_seq_len=1,
            dtype=self._model.dtype,
            device=self._model.device,
        )
        self._slot_hashes = array("q", (_EMPTY,)) * cache.num_slots
        self._texts.clear()

    @torch.inference_mode()
    def observe(self, done: Pass) -> None:
        """Runs the draft model on each part of a prompt that the target has prefilled.

        A long prompt therefore does not delay the first draft.
        """
        prefilled = [(k.sequence, k.position + len(k.rows)) for k in done.kept if not k.sequence.is_decoding]
        if prefilled:
            self._catch_up(prefilled)

    def forget(self, request_id: str) -> None:
        self._texts.pop(request_id, None)

    @torch.inference_mode()
    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        paths = [_Path() for _ in sequences]
        max_depths = [min(self.max_depth, budget, sequence.num_remaining - 1) for sequence in sequences]
        alive = [index for index, depth in enumerate(max_depths) if depth > 0]  # sequences whose trunk still grows
        hidden = self._catch_up([(sequence, len(sequence.tokens)) for sequence in sequences])[alive]
        depth = 0
        while alive:
            logits = self._model.logits(hidden)
            candidates = choose(
                logits,
                [sequences[index].request.sampling for index in alive],
                [len(sequences[index].tokens) + depth for index in alive],
                count=self._candidates,
            )
            best = zip(
                candidates.tokens[:, :_BRANCHES].tolist(), candidates.survival[:, :_BRANCHES].tolist(), strict=True
            )
            for index, (tokens, probabilities) in zip(alive, best, strict=True):
                paths[index].add(tokens, probabilities)
            depth += 1
            alive = [n for n in alive if depth < max_depths[n] and paths[n].trunk_survival >= self._least_survival]
            if alive:
                hidden = self._step(sequences, paths, alive, depth)
        return [path.draft(budget) for path in paths]

    def _catch_up(self, ends: Many[tuple[Sequence, int]]) -> Tensor:
        """Computes the missing positions before `end` of each (sequence, end).

        Returns the hidden states [B, H] of the positions `end - 1` of B sequences.
        """
        self._write_tables([sequence for sequence, _ in ends])
        rows: list[tuple[Sequence, int]] = []
        last_rows: list[int] = []
        taken: set[int] = set()  # slots of `rows`: two sequences with a common prefix may miss the same slots
        for sequence, end in ends:
            text = self._texts.setdefault(sequence.request.request_id, _Text())
            text.read(sequence.tokens)
            for position in range(text.num_final, end):
                slot, text_hash = sequence.slots[position], text.hashes[position]
                last = position == end - 1  # always computed, because its hidden state is needed
                if slot not in taken and (last or self._slot_hashes[slot] != text_hash):
                    taken.add(slot)
                    rows.append((sequence, position))
                    self._slot_hashes[slot] = text_hash
            last_rows.append(len(rows) - 1)
            text.num_final = min(end - 1, BLOCK * len(sequence.blocks))
        hidden = [self._compute(rows[start : start + _PASS_ROWS]) for start in range(0, len(rows), _PASS_ROWS)]
        return torch.cat(hidden)[last_rows]

    def _compute(self, rows: Many[tuple[Sequence, int]]) -> Tensor:
        """Returns the hidden states [M, H] of positions and writes their keys to their slots."""
        builder = RowBuilder(self._target_cache)
        for sequence, position in rows:
            builder.add_row(
                token=sequence.tokens[position],
                position=position,
                slot=sequence.slots[position],
                table_row=sequence.table_row,
                prefix_len=position + 1,
                path=(),
            )
        return self._model.forward(builder.build()[0], self._cache).final

    def _step(self, sequences: Many[Sequence], paths: Many[_Path], alive: Many[int], depth: int) -> Tensor:
        """Returns the hidden states [M, H] of the last node of each trunk, which is at `depth`."""
        builder = RowBuilder(self._target_cache)
        for index in alive:
            sequence, path = sequences[index], paths[index]
            slot = self._scratch + index * self.max_depth + depth - 1
            path.slots += (slot,)
            builder.add_row(
                token=path.tokens[path.trunk],
                position=len(sequence.tokens) - 1 + depth,
                slot=slot,
                table_row=sequence.table_row,
                prefix_len=len(sequence.tokens),
                path=path.slots,
            )
        return self._model.forward(builder.build()[0], self._cache).final

    def _write_tables(self, sequences: Many[Sequence]) -> None:
        """Writes the slots of new positions to the slot tables, as the engine does later, before its own pass."""
        entries = [
            (sequence.table_row, position, sequence.slots[position])
            for sequence in sequences
            for position in range(sequence.num_tabled, len(sequence.slots))
        ]
        if entries:
            self._target_cache.write_tables(*zip(*entries, strict=True))


def check_vocabularies(own: Tokenizer, target: Tokenizer, size: int) -> None:
    """Compares the texts of about a thousand token ids below `size` in both vocabularies.

    Raises: SpeculatorNotLoadable: a token id has different texts in the two vocabularies.
    """
    for token_id in range(0, size, max(1, size // 1000)):
        own_bytes, target_bytes = own.token_bytes(token_id), target.token_bytes(token_id)
        if own_bytes != target_bytes:
            raise SpeculatorNotLoadable(
                f"token {token_id} must be {target_bytes!r} as in the target, got {own_bytes!r}"
            )

"""The EAGLE-3 drafter: one layer reads the target's intermediate hidden states, then its own output, to draft a tree.

    observe   writes the layer's keys and values at the accepted positions to a cache of its own, which uses the same
              slot numbers as the target's; stores the layer's output at each sequence's last accepted position, from
              which the next draft starts
    propose   proposes candidates from that output and runs the likeliest of them as the next level of the tree, with
              keys and values in scratch slots that follow the cache's; repeats while another level may save time

Each level of all sequences runs in one call. The layer's input at position t includes token t + 1. A sequence's last
token has no successor yet, so the cached keys end one position before it.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from engine.cache.kv_cache import KVCache
from engine.draft import EMPTY_DRAFT, Draft
from engine.drafters.base import Drafter, Kept, Pass
from engine.drafters.choice import choose
from engine.drafters.eagle3_layer import Features, ServedEagle3
from engine.drafters.eagle3_module import Eagle3
from engine.drafters.growing_tree import CANDIDATES, LEAST_GAIN, LEAST_SURVIVAL, WIDTH, GrowingTree
from engine.drafters.prompt_tokens import PromptTokens, extend, prompt_vocabulary
from engine.errors import DrafterError, SpeculatorNotLoadable
from engine.models.base import Model
from engine.sequence import Sequence
from kernels.attention import AttentionRows
from kernels.eagle3 import Limits, ObservedRow, Root

MAX_DEPTH = 8
_MAX_WHOLE_ROWS = 32  # with more observed rows, the layer's output is computed only for each sequence's last row


@dataclass(frozen=True, slots=True)
class Anchor:
    """The layer's output at the position before a sequence's last token."""

    num_tokens: int  # length of the sequence when the output was computed
    read: Tensor  # [H], the input of lm_head
    fed_back: Tensor  # [H], the input of the layer at the next position


@dataclass(frozen=True, slots=True)
class _Node:
    """A tree node, or the anchor, on which the layer has run and whose children can therefore be proposed."""

    tree: int  # index of the sequence in the batch
    node: int  # -1: the anchor
    depth: int
    path: tuple[int, ...]  # scratch slots from the anchor's child down to this node


class Eagle3Drafter(Drafter):
    name = "eagle3"
    max_depth = MAX_DEPTH

    def __init__(self, module: Eagle3, model: Model) -> None:
        """Raises: SpeculatorNotLoadable: the module does not fit the model's sizes."""
        config, target = module.config, model.config
        if (config.target_hidden_size, config.vocab_size) != (target.hidden_size, target.vocab_size):
            raise SpeculatorNotLoadable(
                f"eagle3 is for hidden size {config.target_hidden_size} and a vocabulary of {config.vocab_size} tokens,"
                f" but the model has hidden size {target.hidden_size} and a vocabulary of {target.vocab_size} tokens"
            )
        if module.embed_tokens is None and config.hidden_size != target.hidden_size:
            raise SpeculatorNotLoadable(f"eagle3 of hidden size {config.hidden_size} needs its own embeddings")
        self.tap_layers = config.taps_of(target.num_layers)
        if not all(0 <= layer <= target.num_layers for layer in self.tap_layers):
            layers = list(self.tap_layers)
            raise SpeculatorNotLoadable(f"eagle3 reads the layers {layers}, but the model has 0..{target.num_layers}")
        self.slot_bytes = 2 * config.num_kv_heads * config.head_dim * model.dtype.itemsize
        self._device = model.device
        self.layer = ServedEagle3(module, embedding=model.weights.embedding, dtype=model.dtype, device=model.device)
        self.vocab = module.draft_vocab.to(model.device)
        fits = config.hidden_size == target.hidden_size  # as the rows of the target's lm_head require
        self._prompts = prompt_vocabulary(config.prompt_tokens and fits, self.vocab, model)
        self.max_position = config.max_positions - 1
        self._grower = self.layer.grower(self.vocab)
        self._anchors: dict[str, Anchor] = {}
        self.keys_values: tuple[Tensor, Tensor] | None = None

    @classmethod
    def load(cls, folder: Path, model: Model) -> "Eagle3Drafter":
        """Raises: SpeculatorNotLoadable."""
        return cls(Eagle3.load(folder), model)

    def prepare(self, cache: KVCache) -> None:
        self._tables = cache.slot_tables
        self.scratch = cache.num_slots
        num_scratch = cache.slot_tables.shape[0] * WIDTH * (MAX_DEPTH - 1)
        self.keys_values = self.layer.make_cache(cache.num_slots + num_scratch, self._device)

    def forget(self, request_id: str) -> None:
        self._anchors.pop(request_id, None)
        if self._prompts is not None:
            self._prompts.forget(request_id)

    def _prompt_tokens(self, sequence: Sequence) -> PromptTokens | None:
        request = sequence.request
        return None if self._prompts is None else self._prompts.of(request.request_id, request.prompt_token_ids)

    def anchor(self, sequence: Sequence) -> Anchor | None:
        """Returns the start of the sequence's next draft.

        None if the pass that produced the sequence's last token was not observed.
        """
        anchor = self._anchors.get(sequence.request.request_id)
        return anchor if anchor is not None and anchor.num_tokens == len(sequence.tokens) else None

    @torch.inference_mode()
    def observe(self, done: Pass) -> None:
        if self.keys_values is None or done.taps is None:
            raise DrafterError("eagle3 needs a prepared cache and the target's taps")
        if not done.kept:
            return
        last_rows = [count - 1 for count in accumulate(len(kept.rows) for kept in done.kept)]  # one per part
        if self._grower is not None and last_rows[-1] < _MAX_WHOLE_ROWS:
            rows = [row for kept in done.kept for row in _observed(kept, self.max_position)]
            features = Features(
                *self._grower.observe(done.taps, rows, cache=self.keys_values, slot_tables=self._tables)
            )
        else:
            features, last_rows = self._run_kept(done.taps, done.kept, last_rows), list(range(len(done.kept)))
        for kept, row in zip(done.kept, last_rows, strict=True):
            sequence = kept.sequence
            if kept.position + len(kept.rows) == len(sequence.tokens) - 1:
                anchor = Anchor(len(sequence.tokens), features.read[row], features.fed_back[row])
                self._anchors[sequence.request.request_id] = anchor

    def _run_kept(self, taps: Tensor, parts: Many[Kept], last_rows: list[int]) -> Features:
        """Runs the layer on the rows that the engine keeps. Returns its outputs at the last row of each part."""
        assert self.keys_values is not None
        rows = [row for kept in parts for row in _observed(kept, self.max_position)]
        pass_row, token, position, slot = self._integers(
            [row.pass_row for row in rows],
            [row.token for row in rows],
            [row.position for row in rows],
            [row.slot for row in rows],
        )
        g = self.layer.fuse(taps[pass_row])
        if len(rows) <= _MAX_WHOLE_ROWS:
            keys = [(kept.sequence, kept.position + 1 + n, ()) for kept in parts for n in range(len(kept.rows))]
            outputs = self.layer.run(g, token, position, slot, self._attended(keys), self.keys_values)
            return Features(outputs.read[last_rows], outputs.fed_back[last_rows])
        residual, x = self.layer.read(g, token)
        query = self.layer.write(x, position, slot, self.keys_values)
        keys = [(kept.sequence, kept.position + len(kept.rows), ()) for kept in parts]
        return self.layer.finish(residual[last_rows], query[last_rows], self._attended(keys), self.keys_values)

    @torch.inference_mode()
    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        anchors = map(self.anchor, sequences)
        ready = {index: anchor for index, anchor in enumerate(anchors) if anchor is not None}
        drafts = [EMPTY_DRAFT] * len(sequences)
        if not ready or budget < 1:
            return drafts
        features = Features(
            torch.stack([anchor.read for anchor in ready.values()]),
            torch.stack([anchor.fed_back for anchor in ready.values()]),
        )
        if self._grower is not None:
            for index, draft in zip(ready, self._grown(sequences, list(ready), features, budget), strict=True):
                drafts[index] = draft
            return drafts
        trees = {index: GrowingTree(budget) for index in ready}
        nodes = [_Node(index, -1, 0, ()) for index in ready]
        self._grow(sequences, trees, nodes, features)
        for index, tree in trees.items():
            drafts[index] = tree.draft()
        return drafts

    def _grown(self, sequences: Many[Sequence], ready: list[int], features: Features, budget: int) -> Iterator[Draft]:
        """Returns what `_grow` would draft for the sequences `ready`, from one call of the compiled function."""
        assert self._grower is not None
        assert self.keys_values is not None
        limits = Limits(
            budget=budget,
            max_depth=MAX_DEPTH,
            width=WIDTH,
            num_candidates=CANDIDATES,
            least_gain=LEAST_GAIN,
            least_survival=LEAST_SURVIVAL,
            max_position=self.max_position,
            first_scratch=self.scratch,
        )
        grown = self._grower.grow(
            [_root(sequences[index], self._prompt_tokens(sequences[index])) for index in ready],
            limits,
            read=features.read,
            fed_back=features.fed_back,
            cache=self.keys_values,
            slot_tables=self._tables,
        )
        return (Draft(tuple(tokens), tuple(parents), tuple(survival)) for tokens, parents, survival in grown)

    def _grow(
        self, sequences: Many[Sequence], trees: dict[int, GrowingTree], nodes: list[_Node], features: Features
    ) -> None:
        """Grows levels below `nodes`, for which the layer has computed `features`."""
        free_slot = self.scratch
        for depth in range(1, MAX_DEPTH + 1):
            self._offer(sequences, trees, nodes, features.read)
            if depth == MAX_DEPTH:
                return
            row_of = {(node.tree, node.node): row for row, node in enumerate(nodes)}
            parents: list[int] = []
            next_level: list[_Node] = []
            for index, tree in trees.items():
                for node in tree.frontier(WIDTH):
                    row = row_of[index, tree.parent(node)]
                    parents.append(row)
                    next_level.append(_Node(index, node, depth, (*nodes[row].path, free_slot)))
                    free_slot += 1
            num_expected = sum(trees[node.tree].survival(node.node) for node in next_level)
            if not next_level or num_expected < LEAST_GAIN * len(trees):
                return
            features = self._run(sequences, trees, next_level, features.fed_back[parents])
            nodes = next_level

    def _offer(
        self, sequences: Many[Sequence], trees: dict[int, GrowingTree], nodes: list[_Node], read: Tensor
    ) -> None:
        """Adds the candidates below every node to the node's tree."""
        extras = [self._prompt_tokens(sequences[node.tree]) for node in nodes]
        logits, vocab = extend(self.layer.logits(read), read, self.vocab, extras)
        candidates = choose(
            logits,
            [sequences[node.tree].request.sampling for node in nodes],
            [len(sequences[node.tree].tokens) + node.depth for node in nodes],
            count=CANDIDATES,
            vocab=vocab,
        )
        for tree in trees.values():
            tree.start_level()
        for node, tokens, survival in zip(nodes, candidates.tokens.tolist(), candidates.survival.tolist(), strict=True):
            trees[node.tree].offer(node.node, tokens, survival)

    def _run(self, sequences: Many[Sequence], trees: dict[int, GrowingTree], nodes: list[_Node], g: Tensor) -> Features:
        """Runs the layer on M draft nodes. g: [M, H], the layer's outputs at their parents (`Features.fed_back`)."""
        assert self.keys_values is not None
        node_sequences = [sequences[node.tree] for node in nodes]
        # A node's row is at the position before the node's token, because the layer's input includes the next token.
        token, position, slot = self._integers(
            [trees[node.tree].token(node.node) for node in nodes],
            [
                min(len(sequence.tokens) + node.depth - 2, self.max_position)
                for sequence, node in zip(node_sequences, nodes, strict=True)
            ],
            [node.path[-1] for node in nodes],
        )
        keys = [(s, len(s.tokens) - 1, node.path) for s, node in zip(node_sequences, nodes, strict=True)]
        return self.layer.run(g, token, position, slot, self._attended(keys), self.keys_values)

    def _attended(self, keys: Many[tuple[Sequence, int, tuple[int, ...]]]) -> AttentionRows:
        """Returns the slots that each row attends to.

        The slots of tokens that were accepted in the last pass are not in the slot table yet. They are therefore added
        to the row's own list of slots, before its scratch slots.

        keys: for each row: the sequence, the number of its first positions to attend to, and scratch slots.
        """
        tabled = [min(sequence.num_tabled, count) for sequence, count, _ in keys]
        paths = [
            (*sequence.slots[first:count], *path) for (sequence, count, path), first in zip(keys, tabled, strict=True)
        ]
        width = max(1, *map(len, paths))
        padded = torch.tensor([path + (0,) * (width - len(path)) for path in paths], dtype=torch.int32)
        seqs, prefix_lens, path_lens = self._integers(
            [sequence.table_row for sequence, _, _ in keys], tabled, [len(path) for path in paths]
        )
        return AttentionRows(self._tables, seqs, prefix_lens, padded.to(self._device), path_lens)

    def _integers(self, *columns: Many[int]) -> Tensor:
        """Returns n columns of length M as [n, M] int64, with one copy to the device."""
        return torch.tensor(columns, dtype=torch.int64).to(self._device)


def _observed(kept: Kept, max_position: int) -> Iterator[ObservedRow]:
    sequence = kept.sequence
    for position, pass_row in enumerate(kept.rows, start=kept.position):
        tabled = min(sequence.num_tabled, position + 1)
        yield ObservedRow(
            pass_row=pass_row,
            token=sequence.tokens[position + 1],
            position=min(position, max_position),
            slot=sequence.slots[position],
            table_row=sequence.table_row,
            prefix_len=tabled,
            tail=sequence.slots[tabled : position + 1],
        )


def _root(sequence: Sequence, extra: PromptTokens | None) -> Root:
    count, sampling = len(sequence.tokens) - 1, sequence.request.sampling
    tabled = min(sequence.num_tabled, count)
    return Root(
        length=len(sequence.tokens),
        table_row=sequence.table_row,
        prefix_len=tabled,
        tail=sequence.slots[tabled:count],
        seed=sampling.seed,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        top_k=sampling.top_k or 0,
        extra=None if extra is None else (extra.head, extra.tokens),
    )

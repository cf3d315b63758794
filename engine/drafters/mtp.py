"""Drafts a tree with a multi-token prediction module, which runs repeatedly on its own output.

    observe   runs the module on kept positions, with keys and values in the target's cache slots; stores the output at
              each sequence's last kept position, from which the next draft starts
    propose   proposes candidates from that output and runs the likeliest of them as the next level of the tree, with
              keys and values in scratch slots that follow the cache's; repeats while another level may save time

The module's input at position t includes token t + 1, and it predicts token t + 2. A sequence's last token has no
successor yet, so the cached keys end one position before it. Each level of all sequences runs in one call.
"""

import json
from collections.abc import Sequence as Many
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.cache.kv_cache import KVCache
from engine.draft import EMPTY_DRAFT, Draft
from engine.drafters.base import Drafter, Kept, Pass
from engine.drafters.choice import choose
from engine.drafters.growing_tree import CANDIDATES, LEAST_GAIN, WIDTH, GrowingTree
from engine.drafters.mtp_layer import DensePrediction, PredictionModule
from engine.drafters.mtp_model import Mtp
from engine.errors import SpeculatorNotLoadable
from engine.models.base import Model
from engine.models.deepseek import Deepseek
from engine.models.deepseek_mtp import MtpModule
from engine.sequence import Sequence
from engine.tensor_parallel.leader import ShardedModel
from kernels.attention import AttentionRows
from kernels.decoder import DecoderRows

_DEEPSEEK_STEPS = 4  # DeepSeek's module was trained for one step only, so further steps predict worse


@dataclass(frozen=True, slots=True)
class Anchor:
    """The module's output at the position before a sequence's last token."""

    num_tokens: int  # length of the sequence when the output was computed
    output: Tensor  # [H]


@dataclass(frozen=True, slots=True)
class _Row:
    """An input row of the module: a kept position, or a node of a draft.

    The row attends to the first `prefix` positions of the slot table, and to the slots of `path`. If the path is not
    empty, its last slot is the row's own slot.
    """

    sequence: Sequence
    position: int
    next_token: int
    prefix: int
    path: tuple[int, ...]
    tree: int = -1  # when drafting: index of the sequence in the batch
    node: int = -1  # index of the node in the tree; -1: the row is at a computed position
    parent: int = -1  # for a node: index of the parent's row in the previous level

    @property
    def slot(self) -> int:
        return self.path[-1] if self.path else self.sequence.slots[self.position]


class MtpDrafter(Drafter):
    name = "mtp"

    def __init__(self, module: PredictionModule, model: Model, *, max_depth: int) -> None:
        self.max_depth = max_depth
        self.slot_bytes = module.slot_bytes
        self.module = module
        self._device = model.device
        self.last_position = model.max_positions - 1
        self._anchors: dict[str, Anchor] = {}

    @classmethod
    def load(cls, folder: Path | None, model: Model) -> "MtpDrafter":
        """Loads a module in the layout of speculators or of DeepSeek.

        folder: folder of the module; None: DeepSeek's module in the model's own folder.
        Raises: SpeculatorNotLoadable: there is no such module, or it does not fit the model.
        """
        if folder is not None and "speculators_model_type" in _config(folder):
            module = Mtp.load(folder)
            return cls(DensePrediction(module, model), model, max_depth=module.config.num_steps)
        if not isinstance(model, Deepseek | ShardedModel) or model.config.latent is None:
            raise SpeculatorNotLoadable(
                "this model has no multi-token prediction module of its own: give the folder of a speculator"
            )
        return cls(MtpModule.load(model, folder), model, max_depth=_DEEPSEEK_STEPS)

    def prepare(self, cache: KVCache) -> None:
        self._tables = cache.slot_tables
        self.scratch = cache.num_slots
        num_scratch = cache.slot_tables.shape[0] * WIDTH * self.max_depth
        self.keys = self.module.make_keys(cache.num_slots + num_scratch)

    def forget(self, request_id: str) -> None:
        self._anchors.pop(request_id, None)

    def anchor(self, sequence: Sequence) -> Anchor | None:
        """Returns the start of the sequence's next draft; None if the pass before the last token was not observed."""
        anchor = self._anchors.get(sequence.request.request_id)
        return anchor if anchor is not None and anchor.num_tokens == len(sequence.tokens) else None

    @torch.inference_mode()
    def observe(self, done: Pass) -> None:
        rows: list[_Row] = []
        pass_rows: list[int] = []  # indices of the rows in the pass
        last: list[int] = []  # rows from which the next drafts start
        for kept in done.kept:
            if kept.position + len(kept.rows) > len(kept.sequence.slots):
                continue  # the sequence has been preempted since the pass and has fewer slots
            rows += _kept_rows(kept)
            pass_rows += kept.rows
            if rows[-1].position == len(kept.sequence.tokens) - 2:
                last.append(len(rows) - 1)
        if not rows:
            return
        output = self._run(rows, done.hidden[torch.tensor(pass_rows).to(self._device)])
        for row in last:
            sequence = rows[row].sequence
            self._anchors[sequence.request.request_id] = Anchor(len(sequence.tokens), output[row])

    @torch.inference_mode()
    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        drafts = [EMPTY_DRAFT] * len(sequences)
        trees: dict[int, GrowingTree] = {}
        outputs: list[Tensor] = []
        for index, sequence in enumerate(sequences):
            if (anchor := self.anchor(sequence)) is not None:
                trees[index] = GrowingTree(budget)
                outputs.append(anchor.output)
        if not trees or budget < 1:
            return drafts
        self._grow(sequences, trees, torch.stack(outputs))
        for index, tree in trees.items():
            drafts[index] = tree.draft()
        return drafts

    def _grow(self, sequences: Many[Sequence], trees: dict[int, GrowingTree], output: Tensor) -> None:
        """Grows the trees level by level. output: [M, H], outputs at the anchors, in the order of `trees`."""
        level = [_anchor_row(sequences[index], index) for index in trees]
        free_slot = self.scratch
        for depth in range(1, self.max_depth + 1):
            self._offer(trees, level, output)
            if depth == self.max_depth:
                return
            row_of = {(row.tree, row.node): index for index, row in enumerate(level)}
            next_level: list[_Row] = []
            for index, tree in trees.items():
                for node in tree.frontier(WIDTH):
                    parent = row_of[index, tree.parent(node)]
                    next_level.append(_node_row(level[parent], parent, node, tree.token(node), free_slot))
                    free_slot += 1
            if sum(trees[row.tree].survival(row.node) for row in next_level) < LEAST_GAIN * len(trees):
                return
            output = self._run(next_level, output[[row.parent for row in next_level]])
            level = next_level

    def _offer(self, trees: dict[int, GrowingTree], level: list[_Row], output: Tensor) -> None:
        """Adds the candidates below every row to the row's tree."""
        candidates = choose(
            self.module.logits(output),
            [row.sequence.request.sampling for row in level],
            [row.position + 2 for row in level],  # the row at position t predicts token t + 2
            count=CANDIDATES,
            vocab=self.module.vocab,
        )
        for tree in trees.values():
            tree.start_level()
        for row, tokens, survival in zip(level, candidates.tokens.tolist(), candidates.survival.tolist(), strict=True):
            trees[row.tree].offer(row.node, tokens, survival)

    def _run(self, rows: Many[_Row], hidden: Tensor) -> Tensor:
        """Runs the module on M rows; hidden [M, H]: the target's hidden states or the parents' outputs -> [M, H]."""
        integers = torch.tensor(
            (
                [min(row.position, self.last_position) for row in rows],
                [row.slot for row in rows],
                [row.next_token for row in rows],
                [row.sequence.table_row for row in rows],
                [row.prefix for row in rows],
                [len(row.path) for row in rows],
            )
        ).to(self._device)
        positions, slots, tokens, seqs, prefix_lens, path_lens = integers.unbind()
        width = max(1, *(len(row.path) for row in rows))
        paths = torch.tensor([row.path + (0,) * (width - len(row.path)) for row in rows], dtype=torch.int32)
        attention = AttentionRows(self._tables, seqs, prefix_lens, paths.to(self._device), path_lens)
        return self.module.forward(hidden, tokens, DecoderRows(positions, slots, attention), self.keys)


def _kept_rows(kept: Kept) -> list[_Row]:
    """Returns one row per kept position.

    Slots that were accepted in the last pass are not in the slot table yet, so they are in the path.
    """
    sequence = kept.sequence
    rows = []
    for position in range(kept.position, kept.position + len(kept.rows)):
        prefix = min(sequence.num_tabled, position + 1)
        path = tuple(sequence.slots[prefix : position + 1])
        rows.append(_Row(sequence, position, sequence.tokens[position + 1], prefix, path))
    return rows


def _anchor_row(sequence: Sequence, tree: int) -> _Row:
    """Returns the row of the position before the sequence's last token."""
    position = len(sequence.tokens) - 2
    prefix = min(sequence.num_tabled, position + 1)
    return _Row(sequence, position, sequence.tokens[-1], prefix, tuple(sequence.slots[prefix : position + 1]), tree)


def _node_row(parent: _Row, parent_index: int, node: int, token: int, slot: int) -> _Row:
    """`parent_index`: index of the parent in its level."""
    path = (*parent.path, slot)
    return _Row(parent.sequence, parent.position + 1, token, parent.prefix, path, parent.tree, node, parent_index)


def _config(folder: Path) -> dict[str, object]:
    """Raises: SpeculatorNotLoadable."""
    try:
        values: dict[str, object] = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise SpeculatorNotLoadable(f"{folder} has no readable config.json: {error}") from error
    return values

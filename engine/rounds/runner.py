"""A round on the device, as two programs that never ask the host:

    draft    a tree under each sequence's last token, from what the drafter keeps of its lane
    verify   rows laid out, one pass, tokens chosen, trees walked down, slots of accepted nodes into the tables, lanes
             moved on, and what the drafter reads of the pass

Programs are made for sizes, (sequences, nodes), and run in buffers of that size; a round of fewer sequences is filled
up with the lane that is nobody's, which changes no bit of the others, as no row depends on another.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.draft import MAX_DEPTH, Draft
from engine.kv_cache import KVCache
from engine.lora_stacks import LoraStacks
from engine.model import Decoder
from engine.models.base import Hidden, Rows
from engine.rounds.choosing import chooser_of
from engine.rounds.device import Device, Fetch, Mark, Program
from engine.rounds.drafters.base import RoundDrafter, Verified
from engine.rounds.lanes import Lanes
from kernels.lora import StackedRows
from kernels.tree import Accepted, Commit, Trees, accept_trees
from kernels.tree_rows import Roots, tree_rows

_FEW_SEQUENCES = 8  # up to here sizes are powers of two, beyond it multiples


@dataclass(frozen=True, slots=True)
class Launched:
    """A round under way. result: what `Outcome.of` reads. hidden: for drafters on the host, until the next round."""

    result: Fetch
    began: Mark
    drafted: Mark
    ended: Mark
    hidden: Hidden | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one sequence in a round. tokens: of the kept nodes, and the one that the target adds."""

    tokens: tuple[int, ...]
    path: tuple[int, ...]  # kept nodes, top down
    draft: Draft

    @classmethod
    def of(cls, result: Tensor, num_nodes: int) -> list["Outcome"]:
        """result: [B, ...] as `_packed` has it, on the host."""
        integers, survival = result[:, : -num_nodes or None], result[:, -num_nodes or result.shape[1] :]
        chances = survival.contiguous().view(torch.float64)
        outcomes = []
        for (accepted, drafted, *rest), likely in zip(integers.tolist(), chances.tolist(), strict=True):
            nodes, rest = rest[:num_nodes], rest[num_nodes:]
            tokens, rest = rest[: num_nodes + 1], rest[num_nodes + 1 :]
            draft = Draft(tuple(rest[:drafted]), tuple(rest[num_nodes:][:drafted]), tuple(likely[:drafted]))
            outcomes.append(cls(tuple(tokens[: accepted + 1]), tuple(nodes[:accepted]), draft))
        return outcomes


def _packed(accepted: Accepted, trees: Trees) -> Tensor:
    """[B, 3 + 5 N] int64: how many accepted and drafted nodes there are, then both, survivals as bits of float64."""
    counts = torch.stack((accepted.counts, trees.counts), dim=1)
    survival = trees.survival.double().view(torch.int64)
    return torch.cat((counts, accepted.nodes, accepted.tokens, trees.tokens, trees.parents, survival), dim=1)


class _Size:
    """Buffers and programs of rounds of B sequences with N nodes each."""

    def __init__(self, num_sequences: int, num_nodes: int, device: torch.device) -> None:
        B, N = num_sequences, num_nodes
        self.rows = torch.zeros(B, dtype=torch.int64, device=device)
        self.slots = torch.zeros(B, 1 + N, dtype=torch.int32, device=device)
        tokens, parents = torch.zeros(2, B, N, dtype=torch.int64, device=device)
        counts = torch.zeros(B, dtype=torch.int64, device=device)
        self.trees = Trees(tokens, parents, torch.zeros(B, N, device=device), counts)
        self.result = torch.zeros(B, 3 + 5 * N, dtype=torch.int64, device=device)
        self.hidden: Hidden | None = None
        self.draft: Program | None = None
        self.verify: dict[tuple[bool, bool], Program] = {}  # by whether there are filters, and adapters


class Runner:
    def __init__(
        self,
        model: Decoder,
        cache: KVCache,
        lanes: Lanes,
        device: Device,
        drafter: RoundDrafter | None,
        *,
        taps: Many[int] = (),
        keeps_hidden: bool = False,
        stacks: LoraStacks | None = None,
    ) -> None:
        """
        Args:
            stacks: of the adapters that sequences have.
            drafter: None where trees come from the host, or none do.
            taps: layers whose states the drafter reads, here or on the host.
            keeps_hidden: a drafter on the host reads what passes compute.
        """
        self._model = model
        self._cache = cache
        self._lanes = lanes
        self._device = device
        self._drafter = drafter
        self._taps = tuple(taps)
        self._keeps_hidden = keeps_hidden
        self._stacks = stacks
        self._stacks_version = 0
        self._chooser = chooser_of(model)
        self._sizes: dict[tuple[int, int], _Size] = {}

    def launch(
        self,
        rows: Many[int],
        slots: Many[Many[int]],
        num_nodes: int,
        *,
        drafts: Many[Draft] | None = None,
        filtered: bool = False,
        adapted: bool = False,
    ) -> Launched:
        """Returns at once.

        Args:
            rows: lanes, at least one. slots: of each its last token's and 1 slot for each node.
            drafts: trees made on the host, of at most `num_nodes` nodes; None: the device drafts.
            filtered: some sequence has filters.
            adapted: some sequence has an adapter, which is in the stacks.
        """
        size = self._size(_rounded(len(rows), self._lanes.padding_row), num_nodes)
        missing = size.rows.shape[0] - len(rows)
        lanes, nobodys = self._lanes, [[self._lanes.padding_slot] * (1 + num_nodes)]
        self._device.put(size.rows, torch.tensor([*rows, *[lanes.padding_row] * missing], dtype=torch.int64))
        self._device.put(size.slots, torch.tensor([*slots, *nobodys * missing], dtype=torch.int32))
        began = self._device.mark()
        if drafts is not None or self._drafter is None:
            self._put_drafts(size, drafts or ())
        elif num_nodes:
            self._draft_program(size)()
        drafted = self._device.mark()
        self._verify_program(size, filtered, adapted)()
        return Launched(self._device.fetch(size.result), began, drafted, self._device.mark(), size.hidden)

    @property
    def drafts(self) -> bool:
        """Whether trees are grown on the device."""
        return self._drafter is not None

    def _size(self, num_sequences: int, num_nodes: int) -> _Size:
        key = (num_sequences, num_nodes)
        if key not in self._sizes:
            self._sizes[key] = size = _Size(*key, self._model.device)
            if self._keeps_hidden:
                size.hidden = self._kept(num_sequences * (1 + num_nodes))
        return self._sizes[key]

    def _kept(self, num_rows: int) -> Hidden:
        """Where what a pass computes is kept, as a drafter on the host reads it."""
        width, dtype, device = self._model.config.hidden_size, self._model.dtype, self._model.device
        final = torch.zeros(num_rows, width, dtype=dtype, device=device)
        taps = torch.zeros(num_rows, len(self._taps), width, dtype=dtype, device=device) if self._taps else None
        return Hidden(final, taps)

    def _put_drafts(self, size: _Size, drafts: Many[Draft]) -> None:
        B, N = size.trees.tokens.shape
        padded = [
            [[*draft.tokens, *[0] * (N - len(draft))], [*draft.parents, *[-2] * (N - len(draft))]] for draft in drafts
        ]
        padded += [[[0] * N, [-2] * N]] * (B - len(drafts))
        counts = [*map(len, drafts), *[0] * (B - len(drafts))]
        if N:
            host = torch.tensor(padded, dtype=torch.int64)
            self._device.put(size.trees.tokens, host[:, 0].contiguous())
            self._device.put(size.trees.parents, host[:, 1].contiguous())
        self._device.put(size.trees.counts, torch.tensor(counts, dtype=torch.int64))

    def _draft_program(self, size: _Size) -> Program:
        if size.draft is None:
            drafter, trees = self._drafter, size.trees
            assert drafter is not None

            def draft() -> None:
                grown = drafter.draft(self._lanes.state(size.rows), trees.tokens.shape[1])
                trees.tokens.copy_(grown.tokens)
                trees.parents.copy_(grown.parents)
                trees.survival.copy_(grown.survival)
                trees.counts.copy_(grown.counts)

            size.draft = self._device.program(draft)
        return size.draft

    def _verify_program(self, size: _Size, filtered: bool, adapted: bool) -> Program:
        if self._stacks is not None and self._stacks.version != self._stacks_version:
            self._stacks_version = self._stacks.version
            for known in self._sizes.values():  # what was captured reads stacks that are gone
                known.verify = {key: program for key, program in known.verify.items() if not key[1]}
        key = (filtered, adapted)
        if key not in size.verify:
            size.verify[key] = self._device.program(lambda: self._verify(size, filtered, adapted))
        return size.verify[key]

    def _verify(self, size: _Size, filtered: bool, adapted: bool) -> None:
        lanes, trees = self._lanes, size.trees
        B, N = trees.tokens.shape
        state = lanes.state(size.rows)
        roots = Roots(
            slot_tables=lanes.slot_tables,
            table_rows=state.rows,
            lengths=state.lengths,
            tokens=state.tokens,
            slots=size.slots,
        )
        depth = self.max_path(N)
        laid = tree_rows(trees, roots, depth=depth, last_position=self._model.max_positions - 1)
        stacked = None
        if adapted and self._stacks is not None:
            stacked = StackedRows(state.adapters.repeat_interleave(1 + N), B, self._stacks.layers)
        hidden = self._model.forward(Rows(laid.tokens, laid.rows, stacked=stacked), self._cache, self._taps)
        below = laid.rows.positions.view(B, 1 + N) + 1 - state.lengths.unsqueeze(1)
        chosen = self._chooser.choose(hidden.final, state.sampling_below(below), filtered=filtered).view(B, 1 + N)
        commit = Commit(
            slot_tables=lanes.slot_tables,
            table_rows=state.rows,
            positions=state.lengths,
            node_slots=size.slots[:, 1:].contiguous(),
        )
        accepted = accept_trees(chosen, trees, commit)
        added = accepted.tokens.gather(1, accepted.counts.unsqueeze(1)).squeeze(1)
        lanes.move_on(state, accepted.counts, added)
        if self._drafter is not None:
            self._drafter.observe(Verified(hidden, state, accepted, size.slots, depth))
        size.result.copy_(_packed(accepted, trees))
        if size.hidden is not None:
            size.hidden.final.copy_(hidden.final)
            if hidden.taps is not None and size.hidden.taps is not None:
                size.hidden.taps.copy_(hidden.taps)

    def max_path(self, num_nodes: int) -> int:
        """How long a path may be in a tree of so many nodes."""
        deepest = MAX_DEPTH if self._drafter is None else self._drafter.max_depth
        return max(1, min(num_nodes, deepest))


def _rounded(num_sequences: int, most: int) -> int:
    """The size of round that so many sequences take."""
    if num_sequences <= _FEW_SEQUENCES:
        return min(1 << (num_sequences - 1).bit_length(), most)
    return min(-(-num_sequences // _FEW_SEQUENCES) * _FEW_SEQUENCES, most)

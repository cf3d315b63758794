"""Launches graph steps. On the device, a graph step consists of two programs that never wait for the host:

    draft    grow a tree below each sequence's last token, from the drafter's state in the sequence's batch slot
    verify   lay out the rows, run one forward pass, sample tokens, accept nodes, write the cache slots of accepted
             nodes to the slot tables, advance the batch slots, and let the drafter observe the pass

The programs are captured, with their own buffers, for several batch shapes (B sequences, N draft nodes per sequence).
They are captured separately for short and for long contexts, because a graph always launches attention kernels with
enough thread blocks for the longest context that it allows. A smaller batch is padded with a batch slot that belongs to
no sequence. Neither the padding nor the allowed context changes a bit of the result: a row does not depend on other
sequences, and thread blocks beyond a row's keys add nothing to it.

A batch slot holds the decoding state of one sequence on the device, a cache slot the keys and values of one token. The
slot table of a sequence maps its positions to cache slots.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cache.kv_cache import KVCache
from engine.draft import MAX_DEPTH, Draft
from engine.graph_decoding.batch_slots import BatchSlots
from engine.graph_decoding.device import Device, Fetch, Mark, Program
from engine.graph_decoding.drafters.base import GraphDrafter, Verified
from engine.graph_decoding.sampling import NO_TOKEN, token_sampler_for
from engine.lora.stacks import LoraStacks
from engine.models.base import Hidden, Rows
from engine.models.dense import Decoder
from kernels.lora import StackedRows
from kernels.tree import Accepted, Commit, Trees, accept_trees
from kernels.tree_rows import Roots, tree_rows

SHORT_CONTEXT = 8192  # maximum number of keys in the graphs for short contexts
_FEW_SEQUENCES = 8  # captured batch sizes are the powers of two up to this number, and then its multiples


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A graph step in flight.

    result: the packed result, which `Outcome.of` unpacks.
    began, drafted, ended: marks before drafting, between drafting and verification, and after verification.
    hidden: hidden states for a drafter on the host, which the next step overwrites; None if the host does not draft.
    """

    result: Fetch
    began: Mark
    drafted: Mark
    ended: Mark
    hidden: Hidden | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one step for one sequence."""

    tokens: tuple[int, ...]  # tokens of the accepted nodes, and then the token that the target sampled after them
    failed: bool  # the logits of that token are not finite, so it could not be sampled and is missing
    path: tuple[int, ...]  # accepted nodes, from the root down
    draft: Draft

    @classmethod
    def of(cls, result: Tensor, num_nodes: int) -> list["Outcome"]:
        """Unpacks the result of a step. result: [B, 3 + 5 N] int64, the output of `_packed`, copied to the host."""
        width = result.shape[1] - num_nodes  # number of integer columns; the rest are the bits of float64 survivals
        integers, survival = result[:, :width], result[:, width:].contiguous().view(torch.float64)
        outcomes = []
        for (accepted, drafted, *rest), survivals in zip(integers.tolist(), survival.tolist(), strict=True):
            nodes, rest = rest[:num_nodes], rest[num_nodes:]
            tokens, rest = rest[: num_nodes + 1], rest[num_nodes + 1 :]
            draft = Draft(tuple(rest[:drafted]), tuple(rest[num_nodes:][:drafted]), tuple(survivals[:drafted]))
            failed = tokens[accepted] == NO_TOKEN
            kept = tokens[: accepted + (not failed)]
            outcomes.append(cls(tuple(kept), failed, tuple(nodes[:accepted]), draft))
        return outcomes


def _packed(accepted: Accepted, trees: Trees) -> Tensor:
    """Packs the result of a step into one tensor [B, 3 + 5 N] int64, so that only one copy to the host is needed.

    Columns: number of accepted nodes [1], number of draft nodes [1], accepted nodes [N], their tokens followed by the
    token that the target sampled after them [N + 1], draft tokens [N], parents [N], and survivals as the bits of
    float64 [N].
    """
    counts = torch.stack((accepted.counts, trees.counts), dim=1)
    survival = trees.survival.double().view(torch.int64)
    return torch.cat((counts, accepted.nodes, accepted.tokens, trees.tokens, trees.parents, survival), dim=1)


class _Buffers:
    """Buffers and programs for B sequences with N draft nodes each, whose rows attend to at most `max_keys` keys."""

    def __init__(self, num_sequences: int, num_nodes: int, max_keys: int, device: torch.device) -> None:
        B, N = num_sequences, num_nodes
        self.max_keys = max_keys
        self.rows = torch.zeros(B, dtype=torch.int64, device=device)
        self.slots = torch.zeros(B, 1 + N, dtype=torch.int32, device=device)
        tokens, parents = torch.zeros(2, B, N, dtype=torch.int64, device=device)
        counts = torch.zeros(B, dtype=torch.int64, device=device)
        self.trees = Trees(tokens, parents, torch.zeros(B, N, device=device), counts)
        self.result = torch.zeros(B, 3 + 5 * N, dtype=torch.int64, device=device)
        self.hidden: Hidden | None = None
        self.draft: Program | None = None
        self.verify: dict[tuple[bool, bool], Program] = {}  # by (filtered, adapted), arguments of `launch`


class Runner:
    def __init__(
        self,
        model: Decoder,
        cache: KVCache,
        batch_slots: BatchSlots,
        device: Device,
        drafter: GraphDrafter | None,
        *,
        taps: Many[int] = (),
        keeps_hidden: bool = False,
        stacks: LoraStacks | None = None,
    ) -> None:
        """
        Args:
            drafter: None if the host drafts or there is no drafter.
            taps: layers whose hidden states the drafter reads, on the device or on the host.
            keeps_hidden: whether steps keep the hidden states for a drafter on the host.
            stacks: the LoRA adapters of the sequences.
        """
        self._model = model
        self._cache = cache
        self._batch_slots = batch_slots
        self._device = device
        self._drafter = drafter
        self._taps = tuple(taps)
        self._keeps_hidden = keeps_hidden
        self._stacks = stacks
        self._stacks_version = 0
        self._sampler = token_sampler_for(model)
        self._buffers: dict[tuple[int, int, int], _Buffers] = {}  # by the arguments of `_Buffers`

    def launch(
        self,
        rows: Many[int],
        slots: Many[Many[int]],
        num_nodes: int,
        *,
        max_keys: int,
        drafts: Many[Draft] | None = None,
        filtered: bool = False,
        adapted: bool = False,
    ) -> LaunchedStep:
        """Launches a graph step and returns without waiting for the device.

        Args:
            rows: the batch slots of the sequences, at least one.
            slots: for each sequence, a cache slot for its last token and one for each draft node.
            max_keys: upper bound of the number of keys that a row of the target or of the drafter attends to.
            drafts: trees of at most `num_nodes` nodes made on the host; None: the device drafts.
            filtered: whether any sequence uses top-k, top-p or min-p.
            adapted: whether any sequence uses a LoRA adapter. Its weights must be in the stacks.
        """
        buffers = self._buffers_for(_rounded(len(rows), self._batch_slots.padding_row), num_nodes, max_keys)
        num_padding = buffers.rows.shape[0] - len(rows)
        batch_slots, padding = self._batch_slots, [[self._batch_slots.padding_slot] * (1 + num_nodes)]
        self._device.put(
            buffers.rows, torch.tensor([*rows, *[batch_slots.padding_row] * num_padding], dtype=torch.int64)
        )
        self._device.put(buffers.slots, torch.tensor([*slots, *padding * num_padding], dtype=torch.int32))
        began = self._device.mark()
        if drafts is not None or self._drafter is None:
            self._put_drafts(buffers, drafts or ())
        elif num_nodes:
            self._draft_program(buffers)()
        drafted = self._device.mark()
        self._verify_program(buffers, filtered, adapted)()
        return LaunchedStep(self._device.fetch(buffers.result), began, drafted, self._device.mark(), buffers.hidden)

    @property
    def drafts_on_device(self) -> bool:
        return self._drafter is not None

    def _buffers_for(self, num_sequences: int, num_nodes: int, max_keys: int) -> _Buffers:
        longest = self._batch_slots.slot_tables.shape[1] + MAX_DEPTH
        key = (num_sequences, num_nodes, SHORT_CONTEXT if max_keys <= SHORT_CONTEXT < longest else longest)
        if key not in self._buffers:
            self._buffers[key] = buffers = _Buffers(*key, self._model.device)
            if self._keeps_hidden:
                buffers.hidden = self._hidden_buffers(num_sequences * (1 + num_nodes))
        return self._buffers[key]

    def _hidden_buffers(self, num_rows: int) -> Hidden:
        """Returns new buffers for the hidden states that a drafter on the host reads."""
        width, dtype, device = self._model.config.hidden_size, self._model.dtype, self._model.device
        final = torch.zeros(num_rows, width, dtype=dtype, device=device)
        taps = torch.zeros(num_rows, len(self._taps), width, dtype=dtype, device=device) if self._taps else None
        return Hidden(final, taps)

    def _put_drafts(self, buffers: _Buffers, drafts: Many[Draft]) -> None:
        """Copies drafts to the device, padded to N nodes. The parent of a padding node is -2: neither a node nor the
        root, which is -1.
        """
        B, N = buffers.trees.tokens.shape
        padded = [
            [[*draft.tokens, *[0] * (N - len(draft))], [*draft.parents, *[-2] * (N - len(draft))]] for draft in drafts
        ]
        padded += [[[0] * N, [-2] * N]] * (B - len(drafts))
        counts = [*map(len, drafts), *[0] * (B - len(drafts))]
        if N:
            on_host = torch.tensor(padded, dtype=torch.int64)  # [B, 2, N]
            self._device.put(buffers.trees.tokens, on_host[:, 0].contiguous())
            self._device.put(buffers.trees.parents, on_host[:, 1].contiguous())
        self._device.put(buffers.trees.counts, torch.tensor(counts, dtype=torch.int64))

    def _draft_program(self, buffers: _Buffers) -> Program:
        if buffers.draft is None:
            drafter, trees = self._drafter, buffers.trees
            assert drafter is not None

            def draft() -> None:
                grown = drafter.draft(self._batch_slots.state(buffers.rows, buffers.max_keys), trees.tokens.shape[1])
                trees.tokens.copy_(grown.tokens)
                trees.parents.copy_(grown.parents)
                trees.survival.copy_(grown.survival)
                trees.counts.copy_(grown.counts)

            buffers.draft = self._device.program(draft)
        return buffers.draft

    def _verify_program(self, buffers: _Buffers, filtered: bool, adapted: bool) -> Program:
        if self._stacks is not None and self._stacks.version != self._stacks_version:
            self._stacks_version = self._stacks.version
            for other in self._buffers.values():  # captured graphs still read the old stacks
                other.verify = {key: program for key, program in other.verify.items() if not key[1]}
        key = (filtered, adapted)
        if key not in buffers.verify:
            buffers.verify[key] = self._device.program(lambda: self._verify(buffers, filtered, adapted))
        return buffers.verify[key]

    def _verify(self, buffers: _Buffers, filtered: bool, adapted: bool) -> None:
        batch_slots, trees = self._batch_slots, buffers.trees
        B, N = trees.tokens.shape
        state = batch_slots.state(buffers.rows, buffers.max_keys)
        roots = Roots(
            slot_tables=batch_slots.slot_tables,
            table_rows=state.rows,
            lengths=state.lengths,
            tokens=state.tokens,
            slots=buffers.slots,
            max_keys=buffers.max_keys,
        )
        depth = self.max_path(N)
        layout = tree_rows(trees, roots, depth=depth, last_position=self._model.max_positions - 1)
        stacked = None
        if adapted and self._stacks is not None:
            stacked = StackedRows(state.adapters.repeat_interleave(1 + N), B, self._stacks.layers)
        hidden = self._model.forward(Rows(layout.tokens, layout.rows, stacked=stacked), self._cache, self._taps)
        depths = layout.rows.positions.view(B, 1 + N) + 1 - state.lengths.unsqueeze(1)  # 0: the last token
        sampled = self._sampler.sample(hidden.final, state.sampling_below(depths), filtered=filtered).view(B, 1 + N)
        commit = Commit(
            slot_tables=batch_slots.slot_tables,
            table_rows=state.rows,
            positions=state.lengths,
            node_slots=buffers.slots[:, 1:].contiguous(),
        )
        accepted = accept_trees(sampled, trees, commit)
        last_tokens = accepted.tokens.gather(1, accepted.counts.unsqueeze(1)).squeeze(1)
        last_tokens = last_tokens.clamp(min=0)  # a step in flight embeds this token even if it is NO_TOKEN
        batch_slots.advance(state, accepted.counts, last_tokens)
        if self._drafter is not None:
            self._drafter.observe(Verified(hidden, state, accepted, buffers.slots, depth))
        buffers.result.copy_(_packed(accepted, trees))
        if buffers.hidden is not None:
            buffers.hidden.final.copy_(hidden.final)
            if hidden.taps is not None and buffers.hidden.taps is not None:
                buffers.hidden.taps.copy_(hidden.taps)

    def max_path(self, num_nodes: int) -> int:
        """Returns the maximum depth of a draft with `num_nodes` nodes; 1 if there are none."""
        limit = MAX_DEPTH if self._drafter is None else self._drafter.max_depth
        return max(1, min(num_nodes, limit))


def _rounded(num_sequences: int, maximum: int) -> int:
    """Returns the captured batch size to which `num_sequences` sequences are padded, at most `maximum`."""
    if num_sequences <= _FEW_SEQUENCES:
        return min(1 << (num_sequences - 1).bit_length(), maximum)
    num_groups = -(-num_sequences // _FEW_SEQUENCES)  # rounded up
    return min(num_groups * _FEW_SEQUENCES, maximum)

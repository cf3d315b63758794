"""Allocates the slots of the KV cache, each for one token. A slot is free, used by sequences, or in a cached prefix.

Sixteen consecutive positions of a text form a block. A block is identified by its tokens and the previous block (the
first block of a text: by its tokens and the adapter). A cached prefix is therefore found by looking up one block after
the other. Two texts share a block only if they have the same adapter and equal tokens up to the end of the block. All
sequences with the same block use the same slots. A sequence holds a block while it uses the block's slots. A block that
no sequence holds stays cached until its slots are needed; the least recently used block is evicted first. Sharing
changes no bit, because the key and value of a position depend only on the adapter and the tokens up to the position
(kernels/decoder.py).

Source: hash-chained blocks as in vLLM's prefix caching; pages of one token as in SGLang.
"""

import bisect
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

BLOCK = 16


@dataclass(slots=True, eq=False)
class Block:
    """A block of 16 positions.

    slots: the cache slots of the positions.
    key: the previous block (for the first block, the adapter or None), and the block's tokens.
    """

    slots: tuple[int, ...]
    key: tuple[Hashable, tuple[int, ...]]
    num_users: int = 1  # number of sequences that hold the block


class SlotPool:
    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))  # a stack with the lowest slot on top
        self._blocks: dict[tuple[Hashable, tuple[int, ...]], Block] = {}
        self._idle: dict[Block, None] = {}  # blocks that no sequence holds, least recently used first

    @property
    def num_available(self) -> int:
        return len(self._free) + BLOCK * len(self._idle)

    def allocate(self, count: int) -> list[int]:
        assert count <= self.num_available
        while len(self._free) < count:
            self._evict(next(iter(self._idle)))
        return [self._free.pop() for _ in range(count)]

    def free(self, slots: Sequence[int]) -> None:
        self._free.extend(reversed(slots))

    def match(self, root: Hashable, tokens: Sequence[int], found: list[Block] | None = None) -> list[Block]:
        """Returns the blocks of the longest cached prefix of `tokens` that leaves at least one token to compute.

        Args:
            root: the adapter, or None.
            found: the list that an earlier call for the same tokens returned. This call updates the list and returns
                it, and looks up only the blocks after the last one in the list that is still cached.
        """
        blocks: list[Block] = [] if found is None else found
        while blocks and not self._is_cached(blocks[-1]):  # the last blocks of a text are evicted first
            blocks.pop()
        before = blocks[-1] if blocks else root
        for start in range(BLOCK * len(blocks), len(tokens) - BLOCK, BLOCK):
            block = self._blocks.get((before, tuple(tokens[start : start + BLOCK])))
            if block is None:
                break
            blocks.append(block)
            before = block
        return blocks

    def num_available_after_holding(self, blocks: Sequence[Block]) -> int:
        """Returns what `num_available` would be after `hold(blocks)`; `blocks`: the first blocks of one text."""
        # A sequence that holds a block also holds all blocks before it. So the held blocks come first in `blocks`.
        num_held = bisect.bisect_left(blocks, True, key=lambda block: block.num_users == 0)
        return self.num_available - BLOCK * (len(blocks) - num_held)

    def hold(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            self._idle.pop(block, None)
            block.num_users += 1

    def release(self, blocks: Sequence[Block]) -> None:
        for block in reversed(blocks):  # so that a later block of a text is evicted before an earlier one
            block.num_users -= 1
            if block.num_users > 0:
                continue
            if self._is_cached(block):
                self._idle[block] = None
            else:
                self.free(block.slots)

    def register(self, before: Hashable, tokens: tuple[int, ...], slots: tuple[int, ...]) -> Block:
        """Holds and returns the block of 16 computed positions; frees `slots` if an equal block is cached already."""
        cached = self._blocks.get((before, tokens))
        if cached is None:
            cached = self._blocks[(before, tokens)] = Block(slots, (before, tokens))
        else:
            self.hold([cached])
            self.free(slots)
        return cached

    def forget_prefixes(self) -> None:
        """Makes all cached blocks unavailable to later sequences.

        A block that sequences still hold is freed when the last of them releases it.
        """
        for block in list(self._idle):
            self._evict(block)
        self._blocks.clear()

    def _is_cached(self, block: Block) -> bool:
        return self._blocks.get(block.key) is block

    def _evict(self, block: Block) -> None:
        del self._idle[block]
        del self._blocks[block.key]
        self.free(block.slots)

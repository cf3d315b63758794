"""The block drafter: one pass proposes candidates for every depth, and a tree is grown from the candidates.

The anchor is a sequence's last token. The taps of a position are hidden states of the target (base.py), and the context
of a position is a vector computed from its taps (block_model.py).

    observe  projects the contexts of kept positions to keys and values of every layer, indexed by the target's cache
             slots
    propose  runs the block [anchor, mask, ..., mask] of every sequence as rows of one pass; a row attends to the
             contexts before the anchor (in the sequence's cache slots) and to its own block (in scratch slots, which
             follow the cache's slots)

Contexts do not attend to each other, so a prefix that several sequences share is projected once, and the drafter keeps
no state per request. If a position was never observed, its keys are zeros or old values, which only makes the proposals
worse.
"""

from collections.abc import Sequence as Many
from pathlib import Path

import torch
from torch import Tensor

from engine.cache.kv_cache import KVCache
from engine.draft import Draft
from engine.drafters.base import Drafter, Pass
from engine.drafters.block_heads import Anchor, BlockHeads
from engine.drafters.block_layers import BlockLayers
from engine.drafters.block_model import BlockModel
from engine.errors import SpeculatorNotLoadable
from engine.models.base import Model
from engine.sequence import Sequence


class BlockDrafter(Drafter):
    name = "block"

    def __init__(self, block: BlockModel, model: Model) -> None:
        """Raises: SpeculatorNotLoadable: the drafter does not fit the model's sizes."""
        config, target = block.config, model.config
        if (config.hidden_size, config.vocab_size) != (target.hidden_size, target.vocab_size):
            raise SpeculatorNotLoadable(
                f"the block drafter is for hidden size {config.hidden_size} and {config.vocab_size} tokens, "
                f"the model has {target.hidden_size} and {target.vocab_size}"
            )
        if not all(0 <= layer <= target.num_layers for layer in config.tap_layers):
            raise SpeculatorNotLoadable(f"taps must be in 0..{target.num_layers}, got {list(config.tap_layers)}")
        self.config = config
        self.max_depth = config.max_depth
        self.tap_layers = config.tap_layers
        self.slot_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * model.dtype.itemsize
        self._device = model.device
        self.layers = BlockLayers(block, model)
        self.heads = BlockHeads(block, model)
        own = None if block.embed_tokens is None else block.embed_tokens.weight.to(model.device, model.dtype)
        shared = own is None or torch.equal(own, model.weights.embedding)
        self.embedding = model.weights.embedding if own is None or shared else own

    @classmethod
    def load(cls, folder: Path, model: Model) -> "BlockDrafter":
        """Raises: SpeculatorNotLoadable."""
        return cls(BlockModel.load(folder), model)

    def prepare(self, cache: KVCache) -> None:
        self.layers.prepare(cache)

    @torch.inference_mode()
    def observe(self, done: Pass) -> None:
        if done.taps is None:
            return
        # If a sequence was preempted after the pass, it has fewer slots, so its contexts are not stored.
        kept = [k for k in done.kept if k.position + len(k.rows) <= len(k.sequence.slots)]
        rows = [row for k in kept for row in k.rows]
        positions = [k.position + offset for k in kept for offset in range(len(k.rows))]
        slots = [slot for k in kept for slot in k.sequence.slots[k.position : k.position + len(k.rows)]]
        indices = torch.tensor((rows, positions, slots), dtype=torch.int64).to(self._device)  # [3, M]
        self.layers.write_contexts(done.taps[indices[0]], indices[1], indices[2])

    @torch.inference_mode()
    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        anchors = [Anchor(s.tokens[-1], len(s.tokens) - 1, s.request.sampling) for s in sequences]
        hidden = self.layers.blocks(self._embeddings(anchors), sequences)
        first, depths = self.config.first_row, min(self.max_depth, budget)
        return self.heads.drafts(hidden[:, first : first + depths], anchors, budget)

    def _embeddings(self, anchors: Many[Anchor]) -> Tensor:
        """Returns the inputs of S blocks of B tokens, [S, B, H] float32."""
        tokens = torch.full((len(anchors), self.config.block_size), self.config.mask_token_id)
        tokens[:, 0] = torch.tensor([anchor.token for anchor in anchors])
        return self.embedding[tokens.to(self._device)].float()

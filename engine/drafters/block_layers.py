"""The layers of a block drafter for serving. Keys and values are stored by the target's cache slots.

Shape letters: M contexts, S sequences, B tokens per block, T tap layers, H hidden size, D head size, Hkv key heads.
"""

from collections.abc import Callable
from collections.abc import Sequence as Many
from itertools import groupby

import torch
from torch import Tensor, nn

from engine.cache.kv_cache import KVCache
from engine.drafters.block_config import LayerAttention
from engine.drafters.block_model import BlockAttention, BlockLayer, BlockModel
from engine.models.base import Model
from engine.sequence import Sequence
from kernels.attention import AttentionRows
from kernels.decoder import DecoderLayers, DecoderRows, DecoderShape, LayerWeights, decoder
from kernels.linear import LinearWeight, linear, pack_draft
from kernels.norm import rms_norm
from kernels.rope import HeadNorms, rope_write


class BlockLayers:
    def __init__(self, block: BlockModel, model: Model) -> None:
        self.config = block.config
        self._dtype, self._device = model.dtype, model.device
        cosines, sines = block.rotary_tables(model.max_positions + block.config.block_size)
        self._tables = cosines.to(model.device).contiguous(), sines.to(model.device).contiguous()
        layers = [layer for layer in block.layers if isinstance(layer, BlockLayer)]
        self._fc = self._pack(block.fc)
        self._context_norm = self._norm(block.hidden_norm)
        # projects a context to the keys and values of all layers in one product
        self._projection = self._pack(*(part for x in layers for part in (x.self_attn.k_proj, x.self_attn.v_proj)))
        self._head_norms = [self._norms_of(layer.self_attn) for layer in layers]
        self._groups = self._group(layers, self._norm(block.norm))

    def prepare(self, cache: KVCache) -> None:
        """Allocates keys and values for every slot of the cache, and scratch slots for a block of every sequence."""
        config = self.config
        self._slot_tables = cache.slot_tables
        self.scratch = cache.num_slots
        slots = cache.num_slots + cache.slot_tables.shape[0] * config.block_size
        shape = (slots, config.num_kv_heads, config.head_dim)
        # zeros, because attention may read positions that were never observed
        self._keys = [torch.zeros(shape, dtype=self._dtype, device=self._device) for _ in config.attention]
        self._values = [torch.zeros(shape, dtype=self._dtype, device=self._device) for _ in config.attention]

    def write_contexts(self, taps: Tensor, positions: Tensor, slots: Tensor) -> None:
        """Writes the keys and values of M contexts to their slots.

        taps: [M, T, H], the target's hidden states at the T tap layers. positions, slots: [M] int64, slots distinct.
        """
        config = self.config
        M = taps.shape[0]
        joined = taps.flatten(1).to(self._dtype).contiguous()
        context = rms_norm(linear(joined, self._fc), self._context_norm, config.norm_eps, self._dtype)
        keys_values = linear(context, self._projection).view(M, config.num_layers, -1).transpose(0, 1).contiguous()
        for layer, norms in enumerate(self._head_norms):
            destination = (*self._tables, positions, slots, self._keys[layer], self._values[layer])
            rope_write(keys_values[layer], *destination, norms)  # the input is [M, 2 Hkv D]: no queries

    def blocks(self, embeddings: Tensor, sequences: Many[Sequence]) -> Tensor:
        """Runs the blocks of S sequences in one pass. The anchor of a block is the last token of its sequence.

        embeddings: [S, B, H] float32, B tokens per block; overwritten.

        Returns: [S, B, H] after the final norm.
        """
        anchors = torch.tensor([len(sequence.tokens) - 1 for sequence in sequences]).to(self._device)
        return self.run(embeddings, anchors, lambda attention: self._rows(attention, sequences))

    def run(self, embeddings: Tensor, anchors: Tensor, rows_of: Callable[[LayerAttention], AttentionRows]) -> Tensor:
        """Like `blocks`, but with the attention rows that `rows_of` returns for each kind of layer attention.

        anchors: [S] int64, positions of the last tokens.
        """
        S, B, H = embeddings.shape
        positions = (anchors.unsqueeze(1) + torch.arange(B, device=self._device)).flatten()
        slots = torch.arange(self.scratch, self.scratch + S * B, device=self._device)
        residual = embeddings.view(S * B, H)
        hidden = residual
        first = 0
        for attention, layers in self._groups:
            rows = DecoderRows(positions, slots, rows_of(attention))
            own = slice(first, first + len(layers.layers))
            hidden, _ = decoder(layers, residual, rows, self._keys[own], self._values[own])
            first = own.stop
        return hidden.view(S, B, H)

    def _rows(self, attention: LayerAttention, sequences: Many[Sequence]) -> AttentionRows:
        """Returns the slots that each row attends to: a prefix of the slot table, a list of slots, and the row's block.

        If a window excludes the first positions, the prefix is empty and all contexts are in the list. Otherwise the
        list has only the slots of tokens accepted in the last pass, because these are not in the slot table yet.
        """
        B = self.config.block_size
        prefix_lens: list[int] = []
        paths: list[list[int]] = []
        path_lens: list[int] = []
        for index, sequence in enumerate(sequences):
            anchor, first = len(sequence.tokens) - 1, self.scratch + index * B
            prefix = min(sequence.num_tabled, anchor)
            if attention.window is not None and anchor > attention.window:
                prefix, listed = 0, sequence.slots[anchor - attention.window : anchor]
            else:
                listed = sequence.slots[prefix:anchor]
            prefix_lens += [prefix] * B
            paths.append([*listed, *range(first, first + B)])
            path_lens += [len(listed) + (row if attention.causal else B) for row in range(1, B + 1)]
        width = max(map(len, paths))
        padded = torch.tensor([path + [0] * (width - len(path)) for path in paths], dtype=torch.int32)
        table_rows = [sequence.table_row for sequence in sequences for _ in range(B)]
        seqs, prefixes, lengths = torch.tensor((table_rows, prefix_lens, path_lens)).to(self._device)
        return AttentionRows(
            slot_tables=self._slot_tables,
            seqs=seqs,
            prefix_lens=prefixes,
            paths=padded.to(self._device).repeat_interleave(B, dim=0),
            path_lens=lengths,
        )

    def _group(self, layers: Many[BlockLayer], final_norm: Tensor) -> list[tuple[LayerAttention, DecoderLayers]]:
        """Groups consecutive layers with equal attention, which run in one call."""
        config = self.config
        shape = DecoderShape(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            norm_eps=config.norm_eps,
            dtype=self._dtype,
        )
        return [
            (attention, DecoderLayers(shape, tuple(map(self._layer, group)), final_norm, *self._tables))
            for attention, group in groupby(layers, key=lambda layer: layer.self_attn.attention)
        ]

    def _layer(self, layer: BlockLayer) -> LayerWeights:
        attention, mlp = layer.self_attn, layer.mlp
        return LayerWeights(
            input_norm=self._norm(layer.input_layernorm),
            qkv=self._pack(attention.q_proj, attention.k_proj, attention.v_proj),
            head_norms=self._norms_of(attention),
            output=self._pack(attention.o_proj),
            post_norm=self._norm(layer.post_attention_layernorm),
            gate_up=self._pack(mlp.gate_proj, mlp.up_proj),
            down=self._pack(mlp.down_proj),
        )

    def _norms_of(self, attention: BlockAttention) -> HeadNorms:
        return HeadNorms(self._norm(attention.q_norm), self._norm(attention.k_norm), self.config.norm_eps)

    def _norm(self, norm: nn.RMSNorm) -> Tensor:
        return norm.weight.detach().float().to(self._device).contiguous()

    def _pack(self, *linears: nn.Linear) -> LinearWeight:
        """Packs several linear layers as one product."""
        weight = torch.cat([part.weight.detach() for part in linears]).to(self._device, self._dtype)
        biases = [part.bias.detach().to(self._device) for part in linears if part.bias is not None]
        return pack_draft(weight, torch.cat(biases) if biases else None)

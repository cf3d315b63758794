"""Multi-token prediction modules for serving: their interface, and the dense module of mtp_model.py.

Shape letters: M rows, H hidden size, D head size, Hkv key heads, Vd draft vocabulary.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from engine.drafters.mtp_model import Mtp
from engine.errors import SpeculatorNotLoadable
from engine.models.base import Model
from kernels.decoder import DecoderLayers, DecoderRows, DecoderShape, LayerWeights, decoder
from kernels.linear import LinearWeight, linear, pack_draft
from kernels.norm import rms_norm
from kernels.rope import HeadNorms


class PredictionModule(Protocol):
    """Implemented by `MtpModule` of engine/models/deepseek_mtp.py and by `DensePrediction`."""

    vocab: Tensor | None  # [Vd] int64, the target's token id of each column of the logits; None: the column's index

    @property
    def slot_bytes(self) -> int:
        """Memory per slot of the tensor that `make_keys` returns."""

    def make_keys(self, num_slots: int) -> Tensor:
        """Returns a tensor of zeros in which `forward` stores keys and values by slot."""

    def forward(self, hidden: Tensor, next_token_ids: Tensor, rows: DecoderRows, keys: Tensor) -> Tensor:
        """Runs M rows. hidden, outputs: [M, H] in the model's dtype. next_token_ids: [M] int64."""

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [M, H], outputs of `forward` -> [M, Vd] float32."""


class DensePrediction:
    """A dense module that runs on the kernels.

    own_head: [Vd, H], the target's lm_head rows of the draft vocabulary; None: the module uses the whole lm_head.
    """

    def __init__(self, module: Mtp, model: Model) -> None:
        """Raises: SpeculatorNotLoadable: the module does not fit the model's sizes."""
        config, target = module.config.layer, model.config
        if (config.hidden_size, config.vocab_size) != (target.hidden_size, target.vocab_size):
            raise SpeculatorNotLoadable(
                f"the MTP module is for hidden size {config.hidden_size} and {config.vocab_size} tokens, "
                f"the model has {target.hidden_size} and {target.vocab_size}"
            )
        self.vocab = None if module.draft_vocab is None else module.draft_vocab.to(model.device)
        if self.vocab is not None and not 0 <= int(self.vocab.min()) <= int(self.vocab.max()) < target.vocab_size:
            raise SpeculatorNotLoadable(f"the MTP module proposes tokens that are not in 0..{target.vocab_size - 1}")
        self.own_head = None if self.vocab is None else pack_draft(model.lm_head[self.vocab])
        self.hidden_size, self.dtype = target.hidden_size, model.dtype
        self._model = model
        self._attention = module.layer.self_attn
        layer = module.layer
        self._eps: float = config.rms_norm_eps
        self._token_norm, self._hidden_norm = self._norm(layer.token_layernorm), self._norm(layer.hidden_layernorm)
        self._merge = self._pack(layer.input_proj)
        shape = DecoderShape(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=self._attention.num_heads,
            num_kv_heads=self._attention.num_kv_heads,
            head_dim=self._attention.head_dim,
            norm_eps=self._eps,
            dtype=model.dtype,
        )
        cosines, sines = (table.to(model.device) for table in module.rotary_tables(model.max_positions))
        weights = LayerWeights(
            input_norm=self._norm(layer.input_layernorm),
            qkv=self._pack(self._attention.q_proj, self._attention.k_proj, self._attention.v_proj),
            head_norms=self._head_norms(),
            output=self._pack(self._attention.o_proj),
            post_norm=self._norm(layer.post_attention_layernorm),
            gate_up=self._pack(layer.mlp.gate_proj, layer.mlp.up_proj),
            down=self._pack(layer.mlp.down_proj),
        )
        self._layers = DecoderLayers(shape, (weights,), self._norm(layer.final_layernorm), cosines, sines)

    @property
    def slot_bytes(self) -> int:
        numbers: int = 2 * self._attention.num_kv_heads * self._attention.head_dim
        return numbers * self._model.dtype.itemsize

    def make_keys(self, num_slots: int) -> Tensor:
        """Returns keys and values [2, num_slots, Hkv, D]. They are zeros: attention may read unwritten slots."""
        shape = (2, num_slots, self._attention.num_kv_heads, self._attention.head_dim)
        return torch.zeros(shape, dtype=self._model.dtype, device=self._model.device)

    @torch.inference_mode()
    def forward(self, hidden: Tensor, next_token_ids: Tensor, rows: DecoderRows, keys: Tensor) -> Tensor:
        dtype = self._model.dtype
        tokens = rms_norm(self._model.weights.embedding[next_token_ids].float(), self._token_norm, self._eps, dtype)
        features = rms_norm(hidden.float(), self._hidden_norm, self._eps, dtype)
        residual = linear(torch.cat([tokens, features], dim=-1), self._merge)
        out, _ = decoder(self._layers, residual, rows, [keys[0]], [keys[1]])
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden) if self.own_head is None else linear(hidden.contiguous(), self.own_head)

    def _head_norms(self) -> HeadNorms | None:
        query, key = self._attention.q_norm, self._attention.k_norm
        if query is None or key is None:
            return None
        return HeadNorms(self._norm(query), self._norm(key), self._eps)

    def _norm(self, norm: nn.RMSNorm) -> Tensor:
        return norm.weight.detach().float().to(self._model.device).contiguous()

    def _pack(self, *linears: nn.Linear) -> LinearWeight:
        """Packs several linear layers as one product."""
        weight = torch.cat([part.weight.detach() for part in linears]).to(self._model.device, self._model.dtype)
        biases = [part.bias.detach().to(self._model.device) for part in linears if part.bias is not None]
        return pack_draft(weight, torch.cat(biases) if biases else None)

"""DeepSeek-V3's multi-token prediction module: an additional layer that predicts the token after the next.

    x_t = W [RMSNorm(E[token_{t+1}]) | RMSNorm(h_t)];   h'_t = RMSNorm(layer(x_1 .. x_t));   logits = head(h'_t)

E is the embedding, W a matrix, and [ | ] a concatenation. h_t is the target's hidden state at position t, after the
final norm. The logits of h'_t predict token t + 2. When the module runs again on its own prediction, h'_t replaces
h_{t+1}. The module uses the target's embedding and head. (DeepSeek's files contain copies of these weights.)

A drafter allocates `make_keys(cache.num_slots + scratch)` once and passes the result to every call, where `scratch` is
the number of slots for its draft nodes. The latent of position t is in the slot that the target's cache uses for
position t. Rows have the same meaning as for the target (kernels/decoder.py).

Shape letters: M rows, H the hidden size, V the vocabulary size, R the rank of the latent, P the rotary elements.

Source: DeepSeek-V3, arXiv:2412.19437, section 2.2; the order inside [ | ] is that of the published weights.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import ModelNotLoadable, SpeculatorNotLoadable
from engine.models.deepseek import Deepseek
from engine.models.deepseek_weights import DeepseekLayer, DeepseekReader
from engine.models.weights import open_weights
from engine.tensor_parallel.leader import ShardedModel
from kernels.decoder import DecoderRows
from kernels.linear import LinearWeight, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpWeights:
    embedding_norm: Tensor  # [H] float32
    hidden_norm: Tensor  # [H] float32
    merge: LinearWeight  # [H, 2 H], embedding first
    layer: DeepseekLayer
    final_norm: Tensor  # [H] float32


class MtpModule:
    vocab: Tensor | None = None  # the module predicts the target's whole vocabulary

    def __init__(self, model: Deepseek | ShardedModel, weights: MtpWeights) -> None:
        self.model = model
        self.weights = weights

    @classmethod
    def load(cls, model: Deepseek | ShardedModel, folder: Path | None = None) -> "MtpModule":
        """Loads the module.

        folder: of a fine-tuned module with the same names of tensors. None: the target's folder.
        Raises: SpeculatorNotLoadable: the folder holds no module, or the module does not fit the target.
        """
        config, folder = model.config, folder or model.folder
        base, H = f"model.layers.{config.num_layers}", config.hidden_size
        try:
            with open_weights(folder) as source:
                reader = DeepseekReader(source, config, model.dtype, model.device)
                weights = MtpWeights(
                    embedding_norm=reader.norm(f"{base}.enorm", H),
                    hidden_norm=reader.norm(f"{base}.hnorm", H),
                    merge=reader.linear(f"{base}.eh_proj", H, 2 * H),
                    layer=reader.layer(config.num_layers),
                    final_norm=reader.norm(f"{base}.shared_head.norm", H),
                )
        except ModelNotLoadable as error:
            raise SpeculatorNotLoadable(f"no multi-token prediction module for this model: {error}") from error
        return cls(model, weights)

    @property
    def slot_bytes(self) -> int:
        """Memory that `make_keys` takes per slot."""
        return self.model.config.cache_layout.num_elements * self.model.dtype.itemsize

    def make_keys(self, num_slots: int) -> Tensor:
        """Returns a cache of zeros, [num_slots, 1, R + P] in the model's dtype.

        Attention computes its keys and its values from the same cache.
        """
        width = self.model.config.cache_layout.key_width
        return torch.zeros(num_slots, 1, width, dtype=self.model.dtype, device=self.model.device)

    @torch.inference_mode()
    def forward(self, hidden: Tensor, next_token_ids: Tensor, rows: DecoderRows, keys: Tensor) -> Tensor:
        """Writes the rows' latents to `keys` and returns h' [M, H] in the model's dtype.

        Args:
            hidden: [M, H] in the model's dtype: the target's hidden states at the rows' positions, or this method's
                output for the previous position.
            next_token_ids: [M] int64, for each row the token at the next position.
            rows: position, slot and attended keys of each row; a row also attends to its own key.
        """
        layers, weights = self.model.layers, self.weights
        embedded = self.model.weights.embedding[next_token_ids].float()
        parts = (layers.norm(embedded, weights.embedding_norm), layers.norm(hidden.float(), weights.hidden_norm))
        residual = linear(torch.cat(parts, dim=-1), weights.merge)  # [M, H]
        layers.run(weights.layer, residual, rows, keys)
        return layers.norm(residual, weights.final_norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns logits [M, V] float32. hidden: h' [M, H]."""
        return self.model.logits(hidden)

"""The EAGLE-3 module for serving. Its keys and values are stored by the target's cache slots.

eagle3_module.py has the equations. Shape letters: M rows, T tap layers, H and Ht the drafter's and the target's hidden
size, D head size, Hq and Hkv query and key heads, Vd draft vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.drafters.eagle3_module import Eagle3
from engine.models.rotary import tables_of
from kernels.attention import AttentionRows, attention
from kernels.decoder import DecoderLayers, DecoderRows, DecoderShape, LayerWeights, decoder
from kernels.eagle3 import Fusion, TreeGrower, is_supported
from kernels.linear import LinearWeight, linear, pack_draft
from kernels.norm import rms_norm
from kernels.rope import rope_write
from kernels.swiglu import swiglu


@dataclass(frozen=True, slots=True)
class Features:
    """The layer's outputs for M rows.

    read: [M, H] in the model's dtype, which lm_head reads.
    fed_back: [M, H] float32, which replaces the fused taps g as the layer's input at the next position.
    """

    read: Tensor
    fed_back: Tensor


class ServedEagle3:
    def __init__(self, module: Eagle3, *, embedding: Tensor, dtype: torch.dtype, device: torch.device) -> None:
        """embedding: the target's embedding [V, H], used if the module has no embedding."""
        self.config = module.config
        self.dtype = dtype
        layer, attn, mlp = module.layer, module.layer.self_attn, module.layer.mlp
        self._embedding = embedding
        if module.embed_tokens is not None:
            self._embedding = module.embed_tokens.weight.detach().to(device, dtype)
        linears = {
            "fc": (module.fc,),
            "qkv": (attn.q_proj, attn.k_proj, attn.v_proj),
            "output": (attn.o_proj,),
            "gate_up": (mlp.gate_proj, mlp.up_proj),
            "down": (mlp.down_proj,),
            "lm_head": (module.lm_head,),
        }
        self._weights = {
            name: pack_draft(torch.cat([part.weight.detach() for part in parts]).to(device, dtype))
            for name, parts in linears.items()
        }
        norms = {
            "token": layer.input_layernorm,
            "hidden": layer.hidden_norm,
            "post": layer.post_attention_layernorm,
            "final": module.norm,
        }
        self._norms = {name: _weight(norm, device) for name, norm in norms.items()}
        self._input_norm = None if module.input_norm is None else _weight(module.input_norm, device)
        self._tap_norms = None if module.fc_norm is None else [_weight(norm, device) for norm in module.fc_norm]
        tables = tables_of(self.config.layer_config(), self.config.head_dim, self.config.max_positions)
        self._cosines, self._sines = (table.to(device) for table in tables)
        # `decoder` does not support norm_before_residual, with which the residual is the normalized input of the layer.
        self._layers = None if self.config.norm_before_residual else self._whole_layer()

    @property
    def lm_head(self) -> LinearWeight:
        """[Vd, H]"""
        return self._weights["lm_head"]

    def grower(self, vocab: Tensor) -> TreeGrower | None:
        """Returns the compiled functions of the drafter, or None if they do not support this layer or machine.

        vocab: [Vd] int64, the target's tokens in the draft vocabulary.
        """
        norms = [self._input_norm] if self._input_norm is not None else self._tap_norms or []
        fusion = Fusion(
            product=self._weights["fc"], norms=torch.cat(norms) if norms else None, num_norms=max(1, len(norms))
        )
        if self._layers is None or not is_supported(self._layers, fusion, self.lm_head, self._embedding):
            return None
        return TreeGrower(
            self._layers,
            fusion=fusion,
            lm_head=self.lm_head,
            embedding=self._embedding,
            token_norm=self._norms["token"],
            vocab=vocab,
            feeds_normed=self.config.norm_output,
        )

    def make_cache(self, num_slots: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Returns keys and values, [num_slots, Hkv, D] each. They are zeros: attention may read unwritten slots."""
        shape = (num_slots, self.config.num_kv_heads, self.config.head_dim)
        keys, values = (torch.zeros(shape, dtype=self.dtype, device=device) for _ in range(2))
        return keys, values

    def fuse(self, taps: Tensor) -> Tensor:
        """taps [M, T, Ht] in the model's dtype -> g [M, H] float32."""
        if self._tap_norms is not None:
            parts = [
                self._normed(tap.float().contiguous(), weight)
                for tap, weight in zip(taps.unbind(1), self._tap_norms, strict=True)
            ]
            flat = torch.cat(parts, dim=-1)
        elif self._input_norm is not None:
            flat = self._normed(taps.flatten(1).float(), self._input_norm)
        else:
            flat = taps.flatten(1).contiguous()
        return linear(flat, self._weights["fc"])

    def run(
        self,
        g: Tensor,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        rows: AttentionRows,
        cache: tuple[Tensor, Tensor],
    ) -> Features:
        """Runs `read`, `write` and `finish` for the same rows, in one kernel call if possible. May overwrite g."""
        if self._layers is None:
            residual, x = self.read(g, tokens)
            return self.finish(residual, self.write(x, positions, slots, cache), rows, cache)
        token = self._normed(self._embedding[tokens].float(), self._norms["token"])
        keys, values = cache
        where = DecoderRows(positions, slots, rows)
        normed, _ = decoder(self._layers, g, where, (keys,), (values,), qkv_prefix=token)
        return Features(normed, normed.float() if self.config.norm_output else g)

    def read(self, g: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """g [M, H] float32, tokens [M] int64 -> residual [M, H] float32 and attention input [M, 2 H]."""
        token = self._normed(self._embedding[tokens].float(), self._norms["token"])
        normed = self._normed(g, self._norms["hidden"])
        residual = normed.float() if self.config.norm_before_residual else g
        return residual, torch.cat([token, normed], dim=-1)

    def write(self, x: Tensor, positions: Tensor, slots: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
        """Writes keys and values of x [M, 2 H]; returns the queries [M, Hq, D] float32."""
        qkv = linear(x, self._weights["qkv"])
        rope_write(qkv, self._cosines, self._sines, positions, slots, *cache)
        return qkv.view(x.shape[0], -1, self.config.head_dim)[:, : self.config.num_heads]

    def finish(self, residual: Tensor, query: Tensor, rows: AttentionRows, cache: tuple[Tensor, Tensor]) -> Features:
        """Runs attention and MLP; query is the result of `write`. Overwrites residual [M, H] float32."""
        attended = attention(query, *cache, rows)
        linear(attended.flatten(1), self._weights["output"], add_to=residual)
        inner = linear(self._normed(residual, self._norms["post"]), self._weights["gate_up"])
        linear(swiglu(inner, self.dtype), self._weights["down"], add_to=residual)
        normed = self._normed(residual, self._norms["final"])
        return Features(normed, normed.float() if self.config.norm_output else residual)

    def logits(self, read: Tensor) -> Tensor:
        """read [M, H] in the model's dtype -> [M, Vd] float32."""
        return linear(read, self._weights["lm_head"])

    def _whole_layer(self) -> DecoderLayers:
        config, weights, norms = self.config, self._weights, self._norms
        shape = DecoderShape(
            hidden_size=config.hidden_size,
            intermediate_size=weights["down"].in_features,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            norm_eps=config.norm_eps,
            dtype=self.dtype,
        )
        layer = LayerWeights(
            input_norm=norms["hidden"],
            qkv=weights["qkv"],
            head_norms=None,
            output=weights["output"],
            post_norm=norms["post"],
            gate_up=weights["gate_up"],
            down=weights["down"],
        )
        return DecoderLayers(shape, (layer,), norms["final"], self._cosines, self._sines)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.config.norm_eps, self.dtype)


def _weight(norm: nn.Module, device: torch.device) -> Tensor:
    assert isinstance(norm.weight, Tensor)
    return norm.weight.detach().to(device, torch.float32)

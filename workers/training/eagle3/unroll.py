"""Unrolls an EAGLE-3 drafter in training ("training-time test"): every step reads the output of the step before it.

Step 0 computes a key and a value at every position, but a query only at the anchors, because other positions have no
loss. Step s > 0 adds one position after each anchor. This position attends to the positions up to the anchor, and to
the positions that steps 1 .. s added for this anchor.

data.py defines most shape letters. In addition, Hq and Hkv are the numbers of query heads and of key heads, G is
Hq / Hkv, D the head size, and s the current step.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from engine.drafters.eagle3_module import Eagle3
from kernels.rope import rotate
from workers.training.eagle3.data import Eagle3Batch


class Unroll:
    def __init__(self, module: Eagle3, embedding: Tensor, tables: tuple[Tensor, Tensor]) -> None:
        """embedding: [V, H]. tables: cosines and sines of the rotary embedding, each [positions, D / 2]."""
        self._module = module
        self._embedding = embedding
        self._cosines, self._sines = tables

    def outputs(self, batch: Eagle3Batch, step_anchors: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yields for each step the inputs of lm_head, [As, H]. step_anchors: see `step_anchors` in steps.py."""
        module, attention = self._module, self._module.layer.self_attn
        residual, x = module.read(module.fuse(batch.taps), self._embed(batch.tokens))
        keys, values = self._heads(attention.k_proj(x)), self._heads(attention.v_proj(x))  # [R, Hkv, D]
        keys = self._rotate(keys, batch.positions)
        residual, x = residual[batch.anchors], x[batch.anchors]
        prefix = Prefix(keys[batch.keys], values[batch.keys], batch.num_keys)
        added: list[tuple[Tensor, Tensor]] = []
        fed_back = residual
        for step, anchors in enumerate(step_anchors):
            positions = batch.positions[batch.anchors[anchors]] + step
            if step:
                fed_back, added = narrowed(fed_back, added, before=step_anchors[step - 1], after=anchors)
                residual, x = module.read(fed_back, self._embed(batch.input_tokens[anchors, step]))
                key = self._rotate(self._heads(attention.k_proj(x)), positions)
                added.append((key, self._heads(attention.v_proj(x))))
            query = self._rotate(self._heads(attention.q_proj(x)), positions)
            attended = prefix.attend(query, added, batch.grid_index[anchors])
            features, fed_back = module.split(module.finish(residual, attended))
            yield features

    def _embed(self, tokens: Tensor) -> Tensor:
        return self._embedding[tokens].float()

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, self._module.config.head_dim)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [R, heads, D]."""
        return rotate(x, self._cosines[positions], self._sines[positions])


def narrowed(
    outputs: Tensor, added: list[tuple[Tensor, Tensor]], *, before: Tensor, after: Tensor
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Returns a step's outputs, and the keys and values added so far, for the anchors of the next step only.

    before, after: the anchors of the step and of the next step, from `step_anchors`.
    """
    kept = torch.searchsorted(before, after)
    return outputs[kept], [(key[kept], value[kept]) for key, value in added]


class Prefix:
    """Keys and values of step 0, padded to [B, Lmax, Hkv, D], which the queries of every step attend to."""

    def __init__(self, keys: Tensor, values: Tensor, num_keys: Tensor) -> None:
        self._keys = keys.permute(0, 2, 3, 1).unsqueeze(2)  # [B, Hkv, 1, D, Lmax]
        self._values = values.permute(0, 2, 1, 3).unsqueeze(2)  # [B, Hkv, 1, Lmax, D]
        # Padding attends to one key, because the softmax over no keys would be NaN. `_from_grid` drops the padding.
        masked = torch.arange(keys.shape[1], device=keys.device) >= num_keys.clamp(min=1).unsqueeze(-1)
        # [B, Amax, Lmax]
        self._bias = torch.where(masked, float("-inf"), 0.0)[:, None, None]
        self._grid = (*num_keys.shape,)

    def attend(self, query: Tensor, added: list[tuple[Tensor, Tensor]], grid_index: Tensor) -> Tensor:
        """query [A, Hq, D] -> attention output [A, Hq * D].

        added: the key and value, [A, Hkv, D] each, that every step from 1 to the current one added for each anchor.
        """
        A, Hq, D = query.shape
        num_kv_heads, L = self._keys.shape[1], self._keys.shape[-1]
        query = query.view(A, num_kv_heads, -1, D) * D**-0.5  # [A, Hkv, G, D]
        scores = self._to_grid(query, grid_index) @ self._keys + self._bias  # [B, Hkv, G, Amax, L]
        if added:
            new_scores = torch.stack([(query * key.unsqueeze(2)).sum(-1) for key, _ in added], dim=-1)  # [A, Hkv, G, s]
            scores = torch.cat([scores, self._to_grid(new_scores, grid_index)], dim=-1)
        weights = scores.softmax(-1)
        out = self._from_grid(weights[..., :L] @ self._values, grid_index)  # [A, Hkv, G, D]
        if added:
            shares = self._from_grid(weights[..., L:], grid_index)  # [A, Hkv, G, s]
            for step, (_, value) in enumerate(added):
                out = out + shares[..., step, None] * value.unsqueeze(2)
        return out.reshape(A, Hq * D)

    def _to_grid(self, x: Tensor, grid_index: Tensor) -> Tensor:
        """[A, Hkv, G, n] -> [B, Hkv, G, Amax, n]: groups the anchors by conversation, padded with zeros."""
        B, N = self._grid
        grid = x.new_zeros(B * N, *x.shape[1:]).index_copy(0, grid_index, x)
        return grid.view(B, N, *x.shape[1:]).permute(0, 2, 3, 1, 4)

    def _from_grid(self, x: Tensor, grid_index: Tensor) -> Tensor:
        """[B, Hkv, G, Amax, n] -> [A, Hkv, G, n], the inverse of `_to_grid`."""
        return x.permute(0, 3, 1, 2, 4).flatten(0, 1)[grid_index]

"""Unrolls a multi-token-prediction module in training as in serving: every step reads the output of the step before.

Step 0 reads the target's final hidden state at every position and computes keys and values that later steps attend to.
Step s > 0 adds one position after each anchor. The input of this position is the output of the previous step. Shape
letters are those of workers/training/eagle3/unroll.py.

Source: FastMTP, arXiv:2509.18362 (weights shared by all steps).
"""

from collections.abc import Iterator, Sequence

from torch import Tensor

from engine.drafters.mtp_model import Mtp
from kernels.rope import rotate
from workers.training.eagle3.data import Eagle3Batch
from workers.training.eagle3.unroll import Prefix, narrowed


class MtpUnroll:
    def __init__(self, module: Mtp, embedding: Tensor, tables: tuple[Tensor, Tensor]) -> None:
        """embedding: [V, H], of the target. tables: cosines and sines of the rotary embedding, [positions, D / 2]."""
        self._layer = module.layer
        self._embedding = embedding
        self._cosines, self._sines = tables

    def outputs(self, batch: Eagle3Batch, step_anchors: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yields for each step the inputs of lm_head, [As, H].

        batch: `batch.taps` [R, 1, H] are final hidden states.
        step_anchors: see `step_anchors` in workers/training/eagle3/steps.py.
        """
        layer, attention = self._layer, self._layer.self_attn
        residual = layer.read(batch.taps[:, 0], self._embed(batch.tokens))
        x = layer.input_layernorm(residual)
        keys, values = attention.keys_values(x)  # [R, Hkv, D]
        keys = self._rotate(keys, batch.positions)
        prefix = Prefix(keys[batch.keys], values[batch.keys], batch.num_keys)
        residual, x = residual[batch.anchors], x[batch.anchors]
        added: list[tuple[Tensor, Tensor]] = []
        output = residual
        for step, anchors in enumerate(step_anchors):
            positions = batch.positions[batch.anchors[anchors]] + step
            if step:
                output, added = narrowed(output, added, before=step_anchors[step - 1], after=anchors)
                residual = layer.read(output, self._embed(batch.input_tokens[anchors, step]))
                x = layer.input_layernorm(residual)
                key, value = attention.keys_values(x)
                added.append((self._rotate(key, positions), value))
            query = self._rotate(attention.query(x), positions)
            output = layer.finish(residual, attention.o_proj(prefix.attend(query, added, batch.grid_index[anchors])))
            yield output

    def _embed(self, tokens: Tensor) -> Tensor:
        return self._embedding[tokens].float()

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [R, heads, D]."""
        return rotate(x, self._cosines[positions], self._sines[positions])

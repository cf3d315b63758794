"""Samples the target's next token for all rows of a graph step at once.

The token of a row depends only on the row's own sampling parameters, not on other rows in the batch. Rows without
top-k, top-p and min-p are sampled from hidden states without storing logits; other rows are sampled from logits.
"""

from typing import Protocol

import torch
from torch import Tensor

from engine.models.dense import Decoder
from kernels.candidates import RowSampling
from kernels.filtered import sample_filtered_rows
from kernels.lm_head import Head, SampledRows, sample_rows
from kernels.sampling import finite_rows, sample_token

NO_TOKEN = -1  # stands for a token that cannot be sampled, because the logits are not finite


class TokenSampler(Protocol):
    def sample(self, hidden: Tensor, rows: RowSampling, *, filtered: bool) -> Tensor:
        """Samples a token for each row: hidden [M, H] after the final norm -> tokens [M] int64.

        The token of a row whose logits are not finite is NO_TOKEN.
        filtered: whether any row uses top-k, top-p or min-p.
        """


def token_sampler_for(model: Decoder) -> TokenSampler:
    return HostTokenSampler(model) if model.device.type == "cpu" else DeviceTokenSampler(model)


class DeviceTokenSampler:
    def __init__(self, model: Decoder) -> None:
        packed = model.weights.lm_head_packed
        self._model = model
        self._head = Head(data=packed.data, scales=packed.scales)

    def sample(self, hidden: Tensor, rows: RowSampling, *, filtered: bool) -> Tensor:
        tokens = sample_rows(hidden, self._head, SampledRows(rows.temperatures, rows.seeds, rows.positions))
        # Logits are not stored. They are a linear function of the hidden states, so the hidden states are checked.
        tokens = torch.where(hidden.isfinite().all(-1), tokens, NO_TOKEN)
        if not filtered:
            return tokens
        is_filtered = (rows.top_ks > 0) | (rows.top_ps < 1.0) | (rows.min_ps > 0.0)
        filtered_tokens = sample_filtered_rows(self._model.logits(hidden), rows)
        chosen = torch.where((rows.temperatures > 0.0) & is_filtered, filtered_tokens, tokens)
        return torch.where(tokens == NO_TOKEN, NO_TOKEN, chosen)


class HostTokenSampler:
    """Samples row by row on the CPU, as engine/verify.py does."""

    def __init__(self, model: Decoder) -> None:
        self._model = model

    def sample(self, hidden: Tensor, rows: RowSampling, *, filtered: bool) -> Tensor:
        names = ("temperatures", "top_ks", "top_ps", "min_ps", "seeds", "positions")
        columns = (getattr(rows, name).tolist() for name in names)
        all_logits = self._model.logits(hidden)
        return torch.tensor(
            [
                NO_TOKEN
                if not finite
                else sample_token(
                    logits,
                    temperature=temperature,
                    top_k=top_k,
                    top_p=top_p,
                    min_p=min_p,
                    seed=seed % 2**64,  # undoes the mapping to int64 (batch_slots.py)
                    position=position,
                )
                for logits, finite, temperature, top_k, top_p, min_p, seed, position in zip(
                    all_logits, finite_rows(all_logits), *columns, strict=True
                )
            ]
        )

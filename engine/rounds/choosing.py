"""The target's next tokens of a round's rows, all at once.

Which way a row's token is chosen follows from its own parameters alone, never from its company: rows without filters
straight from their hidden states, so that no logits are stored, those with filters from logits.
"""

from typing import Protocol

import torch
from torch import Tensor

from engine.model import Decoder
from kernels.candidates import RowSampling
from kernels.filtered import sample_filtered_rows
from kernels.lm_head import Head, SampledRows, sample_rows
from kernels.sampling import sample_token


class Chooser(Protocol):
    def choose(self, hidden: Tensor, rows: RowSampling, *, filtered: bool) -> Tensor:
        """hidden [M, H] after the final norm -> tokens [M] int64; `filtered`: some row has filters."""


def chooser_of(model: Decoder) -> Chooser:
    return HostChooser(model) if model.device.type == "cpu" else DeviceChooser(model)


class DeviceChooser:
    def __init__(self, model: Decoder) -> None:
        packed = model.weights.lm_head_packed
        self._model = model
        self._head = Head(data=packed.data, scales=packed.scales)

    def choose(self, hidden: Tensor, rows: RowSampling, *, filtered: bool) -> Tensor:
        tokens = sample_rows(hidden, self._head, SampledRows(rows.temperatures, rows.seeds, rows.positions))
        if not filtered:
            return tokens
        narrowed = (rows.top_ks > 0) | (rows.top_ps < 1.0) | (rows.min_ps > 0.0)
        others = sample_filtered_rows(self._model.logits(hidden), rows)
        return torch.where((rows.temperatures > 0.0) & narrowed, others, tokens)


class HostChooser:
    """Row by row, as engine/verify.py."""

    def __init__(self, model: Decoder) -> None:
        self._model = model

    def choose(self, hidden: Tensor, rows: RowSampling, *, filtered: bool) -> Tensor:
        names = ("temperatures", "top_ks", "top_ps", "min_ps", "seeds", "positions")
        columns = (getattr(rows, name).tolist() for name in names)
        return torch.tensor(
            [
                sample_token(
                    logits,
                    temperature=temperature,
                    top_k=top_k,
                    top_p=top_p,
                    min_p=min_p,
                    seed=seed % 2**64,
                    position=position,
                )
                for logits, temperature, top_k, top_p, min_p, seed, position in zip(
                    self._model.logits(hidden), *columns, strict=True
                )
            ]
        )

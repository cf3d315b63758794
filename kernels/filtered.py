"""Samples a token from each row of logits with filters and noise keyed by the position, without waiting for the host.

    token = argmax_{v kept} logits[v] / T + gumbel(seed, position, v)

As in kernels/sampling.py, top_k keeps the k best tokens, top_p the smallest set of the remaining tokens with at least p
of their probability mass, and min_p the remaining tokens that are at least min_p times as probable as the best. The
kept tokens are therefore the first ones when all tokens are sorted by descending logit.
"""

import torch
from torch import Tensor

from kernels.candidates import RowSampling
from kernels.checks import check_tensor
from kernels.sampling import sample_token_reference


def sample_filtered_rows_reference(logits: Tensor, rows: RowSampling) -> Tensor:
    """Reference of `sample_filtered_rows`, which samples row by row."""
    names = ("temperatures", "top_ks", "top_ps", "min_ps", "seeds", "positions")
    tokens = [
        sample_token_reference(
            row,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed % 2**64,
            position=position,
        )
        for row, temperature, top_k, top_p, min_p, seed, position in zip(
            logits, *(getattr(rows, name).tolist() for name in names), strict=True
        )
    ]
    return torch.tensor(tokens, dtype=torch.int64, device=logits.device)


def sample_filtered_rows(logits: Tensor, rows: RowSampling) -> Tensor:
    """Samples from logits [M, V] float32 -> tokens [M] int64. Rows at temperature 0 get an arbitrary valid token.

    Raises: ValueError: shapes or dtypes do not fit.
    """
    check_tensor(logits, "logits", (None, None), torch.float32)
    rows.check(logits.shape[0])
    if logits.is_cuda:
        from kernels.cuda.filtered import sample_filtered_rows as launch  # imported here, because triton requires CUDA

        return launch(logits, rows)
    return sample_filtered_rows_reference(logits, rows)

"""Samples a token from each row of logits with the filters top_k, top_p and min_p, without waiting for the host.

    token = argmax_{v kept} logits[v] / T + gumbel(seed, position, v)

The filters and the noise are defined in kernels/sampling.py. Each filter keeps the best tokens, so the kept tokens are
the first ones when all tokens are sorted by descending logit.
"""

import torch
from torch import Tensor

from kernels.candidates import RowSampling
from kernels.checks import check_tensor
from kernels.sampling import sample_token_reference


def sample_filtered_rows_reference(logits: Tensor, rows: RowSampling) -> Tensor:
    """Reference of `sample_filtered_rows`. It samples each row separately."""
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
    """Samples from logits [M, V] float32 -> tokens [M] int64. At temperature 0 the token is valid but arbitrary.

    Raises: ValueError: shapes or dtypes do not fit.
    """
    check_tensor(logits, "logits", (None, None), torch.float32)
    rows.check(logits.shape[0])
    if logits.is_cuda:
        from kernels.cuda.filtered import sample_filtered_rows as launch  # imported here, because triton requires CUDA

        return launch(logits, rows)
    return sample_filtered_rows_reference(logits, rows)

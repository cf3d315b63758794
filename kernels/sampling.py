"""Position-keyed sampling: which token stands at a position is decided by the logits, the seed and the position.

    token = argmax_{v kept by the filters} logits[v] / T + gumbel(seed, position, v)      (T = 0: argmax logits)

By the Gumbel-max trick this is a draw from softmax(logits / T) restricted to the kept tokens. No other state goes in,
so the answer to a request is the same with any drafter, in any batch.

Source: Gumbel coupling for speculative decoding, Daliri, Musco and Suresh 2024, arXiv:2408.07978.
"""

import torch
from torch import Tensor

from kernels.philox import MAX_GUMBEL, gumbel


def kept_tokens(scaled: Tensor, *, top_k: int, top_p: float, min_p: float) -> Tensor:
    """scaled [V] = logits / T -> [V] bool. Filters work in this order, each on what the former kept.

    top_k keeps the k best (0: all); top_p the smallest set of best tokens that holds at least p of the mass; min_p
    those at least min_p times as probable as the best. Ties go to the lower token id. The best is always kept.
    """
    kept = torch.ones_like(scaled, dtype=torch.bool)
    if top_k > 0 or top_p < 1.0:
        values, order = torch.sort(scaled, descending=True, stable=True)
        if 0 < top_k < scaled.numel():
            kept[order[top_k:]] = False
            values, order = values[:top_k], order[:top_k]
        if top_p < 1.0:
            probabilities = torch.softmax(values.double(), dim=0)
            before = torch.cumsum(probabilities, dim=0) - probabilities
            kept[order[before >= top_p]] = False
    if min_p > 0.0:
        kept &= scaled >= scaled.max() + torch.log(torch.tensor(min_p))
    return kept


def sample_token(
    logits: Tensor, *, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int
) -> int:
    """logits [V] float32 -> the token at `position`."""
    best = int(logits.argmax())
    if temperature == 0.0:
        return best
    scaled = logits.double() / temperature
    # Who lies more than MAX_GUMBEL below the best token's score can't win, whatever its noise.
    best_id = torch.tensor([best], device=logits.device)
    can_win = scaled >= scaled[best] + gumbel(seed, position, best_id) - MAX_GUMBEL
    if top_k > 0 or top_p < 1.0 or min_p > 0.0:
        can_win &= kept_tokens(scaled, top_k=top_k, top_p=top_p, min_p=min_p)
    candidates = can_win.nonzero().squeeze(1)
    scores = scaled[candidates] + gumbel(seed, position, candidates)
    return int(candidates[scores.argmax()])

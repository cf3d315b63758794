"""Position-keyed sampling: the token at a position is determined by the logits, the seed and the position.

    token = argmax_{v kept by the filters} logits[v] / T + gumbel(seed, position, v)      (T = 0: argmax logits)

By the Gumbel-max trick this is a draw from softmax(logits / T) restricted to the kept tokens. There is no other state,
so the answer to a request is the same with any drafter, in any batch.

On the CPU only tokens near the best are sorted. If the filters or the noise could select a token outside, the range is
extended until they cannot.

Source: Gumbel coupling for speculative decoding, Daliri, Musco and Suresh 2024, arXiv:2408.07978.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.philox import (
    MAX_GUMBEL,
    MIN_GUMBEL,
    Ids,
    gumbel_of,
    gumbel_rows_reference,
    noise_words,
    vocabulary_words,
)

_Values = NDArray[np.float32]
_Scaled = NDArray[np.float64]

_RANGES = (8.0, 16.0, math.inf)  # nats below the best of logits / T; the first has at most a few hundred tokens
_SPARSE = 8  # up to a share of 1 / 8 of the tokens, noise per token is cheaper than for the whole vocabulary
_LOWEST = -3.4e38
_MASS_ERROR = 1e-4  # relative error bound of a sum of exponentials in float32


def kept_tokens(scaled: Tensor, *, top_k: int, top_p: float, min_p: float) -> Tensor:
    """scaled [V] = logits / T -> [V] bool. Each filter works on the tokens that the previous one kept.

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
            mass = torch.cumsum(torch.exp(values.double() - values[0]), dim=0)
            kept[order[1:][mass[:-1] >= top_p * mass[-1]]] = False
    if min_p > 0.0:
        kept &= scaled >= scaled.max() + math.log(min_p)
    return kept


def sample_token_reference(
    logits: Tensor, *, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int
) -> int:
    """logits [V] float32 -> the token at `position`. Computes the noise of every token, on any device."""
    if temperature == 0.0:
        return int(logits.argmax())
    scaled = logits.double() / temperature
    noise = gumbel_rows_reference([seed], [position], torch.arange(len(logits), device=logits.device).unsqueeze(0))
    kept = kept_tokens(scaled, top_k=top_k, top_p=top_p, min_p=min_p)
    return int((scaled + noise.squeeze(0)).masked_fill(~kept, -math.inf).argmax())


def sample_token(
    logits: Tensor, *, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int
) -> int:
    """Computes `sample_token_reference`, with a faster algorithm on the CPU."""
    if logits.device.type != "cpu":
        return sample_token_reference(
            logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, position=position
        )
    values = logits.numpy()
    if temperature == 0.0:
        return int(values.argmax())
    if top_k > 0 or top_p < 1.0:
        ids, scaled = _best(values, temperature, top_k=top_k, top_p=top_p)
    elif min_p > 0.0:
        ids, scaled = _within(values, temperature, -math.log(min_p))
    else:
        return _winner_of_all(values, temperature, seed, position)
    if min_p > 0.0:
        kept = scaled >= scaled.max() + math.log(min_p)
        ids, scaled = ids[kept], scaled[kept]
    return _winner(ids, scaled, len(values), seed, position)


def greedy_tokens(logits: Tensor) -> list[int]:
    """logits [M, V] float32 -> the best token of each row, of equal ones the lowest."""
    # 16 rows of 49152 take 0.05 ms on the CPU, with torch's argmax 0.65 ms
    best = logits.numpy().argmax(-1) if logits.device.type == "cpu" else logits.argmax(-1)
    return [int(token) for token in best.tolist()]


def _within(values: _Values, temperature: float, nats: float) -> tuple[Ids, _Scaled]:
    """Tokens at most `nats` below the best of logits / T, and possibly some slightly further below."""
    cut = float(values.max()) - nats * temperature
    return _above(values, temperature, cut - 1e-6 * abs(cut))


def _above(values: _Values, temperature: float, cut: float) -> tuple[Ids, _Scaled]:
    """Tokens with logits of at least `cut`, ascending, and their logits / T; excludes tokens with -inf (grammar)."""
    ids = np.flatnonzero(values >= np.float32(max(cut, _LOWEST)))
    return ids, values[ids].astype(np.float64) / temperature


def _best(values: _Values, temperature: float, *, top_k: int, top_p: float) -> tuple[Ids, _Scaled]:
    """Tokens that top_k and top_p keep, best first, and their logits / T."""
    if top_k > 0:
        ids, scaled = _descending(*_above(values, temperature, _least_of_best(values, top_k)))
        ids, scaled = ids[:top_k], scaled[:top_k]
        mass = np.exp(scaled - scaled[0]).cumsum()
        count = _count(mass, top_p * mass[-1]) if top_p < 1.0 else len(ids)
        return ids[:count], scaled[:count]
    for nats in _RANGES:
        ids, scaled = _descending(*_within(values, temperature, nats))
        count = _nucleus(scaled, values, temperature, top_p)
        if count <= len(ids):
            break
    return ids[:count], scaled[:count]


def _least_of_best(values: _Values, count: int) -> float:
    """A value reached by at least `count` tokens and few more: `count` chunks have a maximum that reaches it."""
    size = min(128, max(1, len(values) // (4 * count)))
    maxima = values[: len(values) // size * size].reshape(-1, size).max(-1)
    return float(np.partition(maxima, -count)[-count]) if count <= len(maxima) else _LOWEST


def _descending(ids: Ids, scaled: _Scaled) -> tuple[Ids, _Scaled]:
    order = np.argsort(-scaled, kind="stable")
    return ids[order], scaled[order]


def _nucleus(scaled: _Scaled, values: _Values, temperature: float, top_p: float) -> int:
    """The number of best tokens that top_p keeps; larger than `scaled` if its tokens do not have the mass."""
    mass = np.exp(scaled - scaled[0]).cumsum()
    best = values.max()
    total = float(np.exp((values - best) / np.float32(temperature)).sum(dtype=np.float64))
    least = _count(mass, top_p * total * (1.0 - _MASS_ERROR))
    if least == _count(mass, top_p * total * (1.0 + _MASS_ERROR)):
        return least
    return _count(mass, top_p * float(np.exp((values - np.float64(best)) / temperature).sum()))


def _count(mass: _Scaled, wanted: float) -> int:
    """The number of tokens that are preceded by less than `wanted` of the mass."""
    return 1 + int(np.searchsorted(mass, wanted))


def _winner(ids: Ids, scaled: _Scaled, vocab_size: int, seed: int, position: int) -> int:
    if len(ids) == 1:
        return int(ids[0])
    if len(ids) * _SPARSE < vocab_size:
        words = noise_words([seed], [position], ids[None])[0]
    else:
        words = vocabulary_words(seed, position, vocab_size)[ids]
    return int(ids[(scaled + gumbel_of(words)).argmax()])


def _winner_of_all(values: _Values, temperature: float, seed: int, position: int) -> int:
    """Samples without filters: any token can win, but a token far below the best needs unusually high noise."""
    reach = MAX_GUMBEL - MIN_GUMBEL  # tokens further below the best cannot win, whatever the noise
    if np.count_nonzero(values >= values.max() - reach * temperature) * _SPARSE < len(values):
        return _winner(*_within(values, temperature, reach), len(values), seed, position)
    words = vocabulary_words(seed, position, len(values))
    ids, scaled = _within(values, temperature, _RANGES[0])
    needed = (scaled + gumbel_of(words[ids])).max() - scaled.max() + _RANGES[0]  # of tokens outside this range
    loud = np.flatnonzero(words >= np.uint32(2.0**32 * math.exp(-math.exp(-needed)) - 2.0))
    ids = np.concatenate((ids, loud))
    return int(ids[(values[ids].astype(np.float64) / temperature + gumbel_of(words[ids])).argmax()])

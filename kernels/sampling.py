"""Samples a token from logits. The result depends only on the logits, the request's parameters, and the position.

    token = argmax_{v kept by the filters} logits[v] / T + gumbel(seed, position, v)      (T = 0: argmax logits)

By the Gumbel-max trick this is a draw from softmax(logits / T) restricted to the kept tokens. There is no other random
state, so the answer to a request is the same with any drafter and in any batch.

Sorting the whole vocabulary is slow. On the CPU, only tokens whose logits are within some range below the largest one
are sorted. The range is extended if the filters could keep a token outside it.

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

# The ranges of logits / T below the largest one, which are tried in turn. 8 usually includes a few hundred tokens.
_RANGES = (8.0, 16.0, math.inf)
_SPARSE = 8  # noise is computed for the whole vocabulary if at least 1 / 8 of the tokens need it
_LOWEST = -3.4e38  # lower than any logit except -inf
_MASS_ERROR = 1e-4  # relative error bound of a sum of exponentials in float32


def kept_tokens(scaled: Tensor, *, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Returns [V] bool: the tokens that all filters keep. scaled: [V], logits / T.

    The filters are applied in turn, each to the tokens that the previous one kept. top_k keeps the k best tokens (0:
    all); top_p the smallest set of best tokens with at least p of the probability mass; min_p the tokens that are at
    least min_p times as probable as the best. Of tokens with equal logits the lower id ranks first. The best token is
    always kept.
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
    """Samples the token at `position` from logits [V] float32 on any device, with noise for every token."""
    if temperature == 0.0:
        return int(logits.argmax())
    scaled = logits.double() / temperature
    noise = gumbel_rows_reference([seed], [position], torch.arange(len(logits), device=logits.device).unsqueeze(0))
    kept = kept_tokens(scaled, top_k=top_k, top_p=top_p, min_p=min_p)
    return int((scaled + noise.squeeze(0)).masked_fill(~kept, -math.inf).argmax())


def sample_token(
    logits: Tensor, *, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int
) -> int:
    """Returns the token of `sample_token_reference`, with a faster algorithm on the CPU."""
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
    """Returns the best token of each row of logits [M, V] float32; of tokens with equal logits the lowest id."""
    # For 16 rows of 49152 on the CPU, numpy's argmax takes 0.05 ms and torch's 0.65 ms.
    best = logits.numpy().argmax(-1) if logits.device.type == "cpu" else logits.argmax(-1)
    return [int(token) for token in best.tolist()]


def finite_rows(logits: Tensor) -> list[bool]:
    """Returns for each row of logits [M, V] float32 whether its largest logit is finite; false for a row with a NaN."""
    largest = logits.numpy().max(-1) if logits.device.type == "cpu" else logits.amax(-1).cpu().numpy()
    return [bool(finite) for finite in np.isfinite(largest)]


def _within(values: _Values, temperature: float, nats: float) -> tuple[Ids, _Scaled]:
    """Returns the tokens whose logits / T are at most `nats` below the largest, and their logits / T.

    The limit is lowered slightly, so that no such token is lost because of rounding.
    """
    cut = float(values.max()) - nats * temperature
    return _above(values, temperature, cut - 1e-6 * abs(cut))


def _above(values: _Values, temperature: float, cut: float) -> tuple[Ids, _Scaled]:
    """Returns the tokens with logits of at least `cut`, by ascending id, and their logits / T.

    Tokens with a logit of -inf, which a grammar has excluded, are never returned.
    """
    ids = np.flatnonzero(values >= np.float32(max(cut, _LOWEST)))
    return ids, values[ids].astype(np.float64) / temperature


def _best(values: _Values, temperature: float, *, top_k: int, top_p: float) -> tuple[Ids, _Scaled]:
    """Returns the tokens that top_k and top_p keep, best first, and their logits / T."""
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
    """Returns a lower bound of the `count`-th largest value: the `count`-th largest of the maxima of chunks."""
    size = min(128, max(1, len(values) // (4 * count)))
    maxima = values[: len(values) // size * size].reshape(-1, size).max(-1)
    return float(np.partition(maxima, -count)[-count]) if count <= len(maxima) else _LOWEST


def _descending(ids: Ids, scaled: _Scaled) -> tuple[Ids, _Scaled]:
    order = np.argsort(-scaled, kind="stable")
    return ids[order], scaled[order]


def _nucleus(scaled: _Scaled, values: _Values, temperature: float, top_p: float) -> int:
    """Returns how many tokens top_p keeps. The result exceeds `len(scaled)` if more tokens must be sorted.

    The total mass is first computed in float32, and in float64 only if the rounding error could change the result.
    """
    mass = np.exp(scaled - scaled[0]).cumsum()
    best = values.max()
    total = float(np.exp((values - best) / np.float32(temperature)).sum(dtype=np.float64))
    least = _count(mass, top_p * total * (1.0 - _MASS_ERROR))
    if least == _count(mass, top_p * total * (1.0 + _MASS_ERROR)):
        return least
    return _count(mass, top_p * float(np.exp((values - np.float64(best)) / temperature).sum()))


def _count(mass: _Scaled, wanted: float) -> int:
    """Returns how many tokens are needed for the mass `wanted`. mass: cumulative, the best token first."""
    return 1 + int(np.searchsorted(mass, wanted))


def _winner(ids: Ids, scaled: _Scaled, vocab_size: int, seed: int, position: int) -> int:
    """Returns the token of `ids` whose logit / T plus noise is the largest."""
    if len(ids) == 1:
        return int(ids[0])
    if len(ids) * _SPARSE < vocab_size:
        words = noise_words([seed], [position], ids[None])[0]
    else:
        words = vocabulary_words(seed, position, vocab_size)[ids]
    return int(ids[(scaled + gumbel_of(words)).argmax()])


def _winner_of_all(values: _Values, temperature: float, seed: int, position: int) -> int:
    """Samples without filters. Tokens outside the first range are considered only if their noise is high enough."""
    reach = MAX_GUMBEL - MIN_GUMBEL  # tokens further below the best one cannot win with any noise
    if np.count_nonzero(values >= values.max() - reach * temperature) * _SPARSE < len(values):
        return _winner(*_within(values, temperature, reach), len(values), seed, position)
    words = vocabulary_words(seed, position, len(values))
    ids, scaled = _within(values, temperature, _RANGES[0])
    # The least noise with which a token outside this range could win. `high_noise` are the tokens whose random word
    # gives at least this noise; 2 is subtracted, so that rounding excludes none of them.
    needed = (scaled + gumbel_of(words[ids])).max() - scaled.max() + _RANGES[0]
    high_noise = np.flatnonzero(words >= np.uint32(2.0**32 * math.exp(-math.exp(-needed)) - 2.0))
    ids = np.concatenate((ids, high_noise))
    return int(ids[(values[ids].astype(np.float64) / temperature + gumbel_of(words[ids])).argmax()])

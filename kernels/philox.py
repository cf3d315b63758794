"""Philox 4x32-10, a counter-based random generator: the same bits for (seed, position, token) everywhere.

    word = philox(key = seed, counter = (token, position, 0, 0))[0]
    u = (word + 1/2) / 2^32 in (0, 1)      gumbel = -log(-log(u))

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_Counter = tuple[Tensor, Tensor, Tensor, Tensor]

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF

# -log(-log(u)) at the largest u there is: no token's noise exceeds it.
MAX_GUMBEL = 22.874


def philox(seed: int, counter: _Counter) -> _Counter:
    """Four words of 32 bits, as int64 tensors of the counters' shape. `seed` has 64 bits."""
    words = torch.stack(counter)
    key = torch.tensor([seed & _MASK, seed >> 32], device=words.device)
    return _philox(key.view(2, *[1] * (words.dim() - 1)), words)


def _philox(key: Tensor, words: Tensor) -> _Counter:
    """key [2, ...], words [4, ...], int64, broadcast together. Products wrap at 64 bits, which keeps all of theirs."""
    ones = [1] * (words.dim() - 1)
    rounds = torch.arange(_ROUNDS, device=words.device).view(-1, 1, *ones)
    keys = (key + rounds * torch.tensor(_WEYL, device=words.device).view(2, *ones)) & _MASK  # [rounds, 2, ...]
    multipliers = torch.tensor(_MULTIPLIERS, device=words.device).view(2, *ones)
    even, odd = words[0::2], words[1::2]
    for of_round in keys:
        products = multipliers * even
        even, odd = (((products >> 32) & _MASK).flip(0) ^ odd) ^ of_round, (products & _MASK).flip(0)
    return even[0], odd[0], even[1], odd[1]


def gumbel(seed: int, position: int, token_ids: Tensor) -> Tensor:
    """token_ids [n] int64 -> [n] float64: the noise of these tokens at this position."""
    zero = torch.zeros_like(token_ids)
    return _gumbel(philox(seed, (token_ids, zero + position, zero, zero))[0])


def gumbel_rows(seeds: Sequence[int], positions: Sequence[int], token_ids: Tensor) -> Tensor:
    """token_ids [M, n] int64 -> [M, n] float64: as `gumbel`, each row with its own seed and position."""
    words = [(seed & _MASK, seed >> 32, position) for seed, position in zip(seeds, positions, strict=True)]
    rows = torch.tensor(words, dtype=torch.int64).to(token_ids.device).T.unsqueeze(-1)  # [3, M, 1]
    zero = torch.zeros_like(token_ids)
    return _gumbel(_philox(rows[:2], torch.stack((token_ids, zero + rows[2], zero, zero)))[0])


def _gumbel(word: Tensor) -> Tensor:
    uniform = (word.double() + 0.5) / 2.0**32
    return -torch.log(-torch.log(uniform))

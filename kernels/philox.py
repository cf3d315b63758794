"""Philox 4x32-10, a counter-based random generator: the same bits for (seed, position, token) everywhere.

    word = philox(key = seed, counter = (token, position, 0, 0))[0]
    u = (word + 1/2) / 2^32 in (0, 1)      gumbel = -log(-log(u))

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

import torch
from torch import Tensor

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF

# -log(-log(u)) at the largest u there is: no token's noise exceeds it.
MAX_GUMBEL = 22.874


def _multiply(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a * b; split, because the product of two 32-bit numbers overflows int64."""
    low = a * (b & 0xFFFF)  # below 2**48
    high = a * (b >> 16) + (low >> 16)  # below 2**49
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def philox(seed: int, counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four words of 32 bits, as int64 tensors of the counters' shape. `seed` has 64 bits."""
    c0, c1, c2, c3 = counter
    k0, k1 = seed & _MASK, seed >> 32
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def gumbel(seed: int, position: int, token_ids: Tensor) -> Tensor:
    """token_ids [n] int64 -> [n] float64: the noise of these tokens at this position."""
    zero = torch.zeros_like(token_ids)
    word = philox(seed, (token_ids, zero + position, zero, zero))[0]
    uniform = (word.double() + 0.5) / 2.0**32
    return -torch.log(-torch.log(uniform))
